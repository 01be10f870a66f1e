"""A Scenario <-> a `vllm serve` line, and a run -> /metrics text in vLLM's names.

The line says only what differs from what vLLM 0.32 would choose by itself on that GPU; what no release of vLLM can do
is named beside it instead of being written down.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from sim import catalog
from sim.advice import likely_cap
from sim.scenario import SETTINGS, Scenario, SimError
from sim.sentences import Note

from .clean import note

if TYPE_CHECKING:
    from sim.results import Run

GIB = 2**30
TODAY = (0, 32)
_NOT_FLAGS = {"weights", "model"}
SERVER_FIELDS = tuple(name for name, s in SETTINGS.items() if s.flag and name not in _NOT_FLAGS)
"""Fields of a Scenario that a `vllm serve` line carries, besides the model and its weights."""
_WHAT_IF = ("batching", "preemption_mode", "victim", "host", "expert_skew")


def defaults(gpu: str, model: str = "", version: tuple[int, int] = TODAY) -> dict[str, Any]:
    """What `vllm serve` of this version chooses by itself on this GPU, by field of Scenario (SEMANTICS.md, section 8)."""
    card = catalog.gpu(gpu)
    gib = card.memory_bytes / GIB
    if version < (0, 8):  # V0
        seqs, tokens = 256, 512
    elif gib >= 160:
        seqs, tokens = 1024, 16384
    elif gib >= 70 and "A100" not in card.name:
        seqs, tokens = 1024, 8192
    else:
        seqs, tokens = 256, 2048
    found = {name: SETTINGS[name].default for name in SERVER_FIELDS}
    found |= {
        "max_num_seqs": seqs,
        "max_num_batched_tokens": tokens,
        "gpu_memory_utilization": 0.92 if version >= (0, 12) else 0.9,
    }
    if version < (0, 8):
        found |= {"enable_prefix_caching": False, "scheduler_reserve_full_isl": True}
    if model:
        try:
            found["max_model_len"] = catalog.model(model).max_position or SETTINGS["max_model_len"].default
        except (SimError, ValueError, KeyError):
            found["max_model_len"] = SETTINGS["max_model_len"].default
    return found


@dataclass(frozen=True, slots=True)
class CommandLine:
    """A command, and what it cannot say: (field, value) pairs that are history, what-if, or not the server's."""

    words: tuple[str, ...]
    not_expressible: tuple[tuple[str, Any], ...]

    def __str__(self) -> str:
        lines: list[str] = []
        for word in self.words[3:]:
            if word.startswith("--") or not lines:
                lines.append(shlex.quote(word))
            else:
                lines[-1] += " " + shlex.quote(word)
        return " \\\n  ".join([shlex.join(self.words[:3]), *lines])


def hub_name(model: str) -> str:
    """The model's name on the hub, as far as the catalogue knows it; for a visitor's own a path to be filled in."""
    try:
        known = catalog.model(model)
    except (SimError, ValueError, KeyError):
        return model
    found = re.search(r"huggingface\.co/([\w.\-]+/[\w.\-]+)", known.source)
    return found[1] if found else model if model in catalog.models() else f"PATH/TO/{known.name}"


def command_line(scenario: Scenario) -> CommandLine:
    """The shortest `vllm serve` line of today that makes this scenario's server."""
    s = scenario
    words = ["vllm", "serve", hub_name(s.model)]
    if s.weights != "bf16":
        words += ["--quantization", {"fp8": "fp8", "int4": "awq"}[s.weights]]
    usual = defaults(s.gpu, s.model)
    for name in SERVER_FIELDS:
        value = getattr(s, name)
        # a default may move with the next release, and the cap and the budget decide everything: they are always written
        if value == usual[name] and name not in ("max_num_seqs", "max_num_batched_tokens"):
            continue
        flag = SETTINGS[name].flag
        if isinstance(value, bool):
            words.append(flag if value else flag.replace("--", "--no-", 1))
        elif isinstance(value, float):
            words += [flag, repr(value)]
        else:
            words += [flag, str(value)]
        if name == "num_redundant_experts":
            words.append("--enable-eplb")
    lost = [(n, getattr(s, n)) for n in _WHAT_IF if getattr(s, n) != SETTINGS[n].default]
    if s.model not in catalog.models():
        lost.append(("model", catalog.model(s.model).name))
    if s.router != "vllm" and s.data_parallel_size > 1:
        lost.append(("router", s.router))
    return CommandLine(tuple(words), tuple(lost))


def settings_of(
    parse: Mapping[str, Any], *, gpu: str | None = None, image: str | None = None, base: Scenario | None = None
) -> tuple[Scenario, list[Note]]:
    """The scenario of a read command line (`serve.read(...).parse`), with the defaults that GPU and version imply.

    Traffic and what no flag says are `base`'s. Also returns what had to be assumed or left out, as Notes.
    Raises SimError if no scenario comes of it.
    """
    start = base or Scenario()
    card = gpu or start.gpu
    notes: list[Note] = []
    version = TODAY
    found = re.search(r":v?(\d+)\.(\d+)", image or "")
    if found:
        version = (int(found[1]), int(found[2]))
        if version < (0, 8):
            notes.append(note("v0"))
    model = _model(str(parse.get("model", "")), start.model, notes)
    values: dict[str, Any] = defaults(card, model, version)
    values |= {"gpu": card, "model": model, "weights": _weights(parse)}
    if version < (0, 8) and not parse.get("enable_chunked_prefill"):
        values["batching"] = "prefill_first"
        values["max_num_batched_tokens"] = max(values["max_num_batched_tokens"], values["max_model_len"])
    for name in SERVER_FIELDS:
        given: Any = parse.get(name)
        if given is None:
            continue
        setting = SETTINGS[name]
        if name == "kv_cache_dtype":
            given = "fp8" if "fp8" in str(given) or "int8" in str(given) else "auto"
        elif name == "max_model_len" and (given == "auto" or given == -1):
            continue
        if setting.kind is float and isinstance(given, int) and not isinstance(given, bool):
            given = float(given)
        if not isinstance(given, setting.kind) or (setting.choices and given not in setting.choices):
            notes.append(note("not_simulated", name=name, value=str(given)[:60]))
            continue
        number: Any = given
        if setting.low is not None and setting.high is not None and not setting.low <= number <= setting.high:
            notes.append(note("not_simulated", name=name, value=given))
            continue
        values[name] = given
    eplb = parse.get("eplb_config")
    if isinstance(eplb, Mapping) and isinstance(eplb.get("num_redundant_experts"), int):
        values["num_redundant_experts"] = max(0, min(512, eplb["num_redundant_experts"]))
    if version >= (0, 8) and not isinstance(parse.get("max_num_seqs"), int):
        values["max_num_seqs"] = min(values["max_num_seqs"], values["max_num_batched_tokens"])
    if not isinstance(parse.get("max_num_batched_tokens"), int):
        if not values["enable_chunked_prefill"]:
            values["max_num_batched_tokens"] = max(values["max_num_batched_tokens"], values["max_model_len"])
        values["max_num_batched_tokens"] = max(values["max_num_batched_tokens"], values["max_num_seqs"])
    for name in ("pipeline_parallel_size", "speculative_config", "cpu_offload_gb", "enable_lora", "kv_transfer_config"):
        if parse.get(name) not in (None, 1, False):
            notes.append(note("not_simulated", name=name, value=str(parse[name])[:60]))
    return start.but(**values), notes


def _weights(parse: Mapping[str, Any]) -> str:
    words = f"{parse.get('quantization') or ''} {parse.get('model') or ''}".lower()
    if re.search(r"awq|gptq|int4|w4a16|4bit|bitsandbytes|gguf|mxfp4|nvfp4", words):
        return "int4"
    return "fp8" if re.search(r"fp8|w8a8|int8", words) else "bf16"


def _model(given: str, fallback: str, notes: list[Note]) -> str:
    """The catalogue's name of what a command line calls its model."""

    def plain(name: str) -> str:
        bare = name.rstrip("/").rsplit("/", 1)[-1].lower()
        bare = re.sub(
            r"meta-|-(?:instruct|chat|hf|awq|gptq|fp8|int4|int8|bf16|base|it|2507|quantized|w4a16|w8a8|v\d(?:\.\d)?)\b",
            "",
            bare,
        )
        return re.sub(r"[^a-z0-9]", "", bare.replace("3.3-70b", "3.1-70b"))

    if not given:
        notes.append(note("no_model", model=fallback))
        return fallback
    names = list(catalog.models())
    for name in names:
        if given in (name, hub_name(name)) or plain(name) == plain(given):
            return name
    size = re.search(r"(?<![\d.])(\d+(?:\.\d+)?)b(?![a-z])", given.lower())
    if size:
        wanted = float(size[1])
        near = min(names, key=lambda n: abs(np.log(catalog.model(n).parameters / 1e9 / wanted)))
        if abs(catalog.model(near).parameters / 1e9 / wanted - 1) < 0.5:
            notes.append(note("near_model", given=given[:60], model=near))
            return near
    try:
        catalog.model(given)
        return given
    except (SimError, ValueError, KeyError):
        notes.append(note("unknown_model", given=given[:60], model=fallback))
        return fallback


# --------------------------------------------------------------------------------------------------------------- /metrics

_TTFT = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560)
_TPOT = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_E2E = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
_STEP = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_COUNTS = tuple(m * 10**e for e in range(7) for m in (1, 2, 5))
_TIMES = (1, 2, 3, 4, 5, 10, 20)


def _histogram(values: Any, edges: tuple[float, ...], weights: Any = None) -> tuple[list[tuple[str, float]], float]:
    values = np.asarray(values, dtype=float)
    keep = np.isfinite(values)
    weights = np.ones(len(values)) if weights is None else np.asarray(weights, dtype=float)
    values, weights = values[keep], weights[keep]
    order = np.argsort(values, kind="stable")
    passed = np.concatenate([[0.0], np.cumsum(weights[order])])
    at = np.searchsorted(values[order], np.asarray(edges), side="right")
    buckets = [(f"{float(e)}", float(passed[i])) for e, i in zip(edges, at, strict=True)]
    return [*buckets, ("+Inf", float(passed[-1]))], float((values * weights).sum())


class _Collector:
    """vLLM's metrics of a run as they stood at one moment; `until` in s from its start."""

    def __init__(self, run: Run, until: float, model_name: str) -> None:
        self.run, self.until, self.name = run, until, model_name

    def collect(self) -> Any:
        """One family after another, one sample an engine."""
        replicas = sorted({int(r) for r in np.unique(self.run.ticks.replica)} | set(range(self.run.scenario.data_parallel_size)))
        families: dict[str, Any] = {}
        for who in replicas:
            self._engine(who, families)
        yield from families.values()
        yield _cache_config(self.run, replicas)

    def _engine(self, who: int, families: dict[str, Any]) -> None:
        """Adds one engine's samples to the families."""
        run, t, until = self.run, self.run.ticks, self.until
        prompts, output = run.requests.prompt, run.generated

        def add(kind: Any, metric: str, words: str, *value: Any, **label: str) -> None:
            labels = {"model_name": self.name, "engine": str(who), **label}
            family = families.setdefault(metric, kind(f"vllm:{metric}", words, labels=list(labels)))
            family.add_metric(list(labels.values()), *value)

        def histogram(metric: str, words: str, values: Any, edges: tuple[float, ...], weights: Any = None) -> None:
            add(HistogramMetricFamily, metric, words, *_histogram(values, edges, weights))

        mine = (t.replica == who) & (t.start + t.duration <= until)
        last = np.flatnonzero(mine)[-1:]  # the tick that the gauges show; none before the first

        def now(values: Any) -> float:
            return float(values[last].sum())

        done, began, entered = (
            (run.replica == who) & np.isfinite(at) & (at <= until) for at in (run.finish, run.first_token, run.first_scheduled)
        )
        used = 1 - t.free_end / max(1, run.num_gpu_blocks - 1)
        add(GaugeMetricFamily, "num_requests_running", "Number of requests in model execution batches.", now(t.running - t.finished))
        add(GaugeMetricFamily, "num_requests_waiting", "Number of requests waiting to be processed.", now(t.waiting))
        add(GaugeMetricFamily, "kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", now(used))
        for reason, count in (("capacity", now(t.waiting)), ("deferred", 0.0)):
            add(GaugeMetricFamily, "num_requests_waiting_by_reason", "Number of waiting requests by reason.", count, reason=reason)
        for metric, words, total in (
            ("num_preemptions", "Cumulative number of preemption from the engine.", t.preempted[mine]),
            ("prompt_tokens", "Number of prefill tokens processed.", prompts[began]),
            ("generation_tokens", "Number of generation tokens processed.", t.sampled[mine]),
            ("prefix_cache_queries", "Prefix cache queries, in terms of number of queried tokens.", prompts[entered]),
            ("prefix_cache_hits", "Prefix cache hits, in terms of number of cached tokens.", run.cached[entered]),
        ):
            add(CounterMetricFamily, metric, words, float(total.sum()))
        full = output[done] >= run.requests.output[done]
        for reason, ended in (("length", full), ("stop", ~full)):
            add(CounterMetricFamily, "request_success", "Count of successfully processed requests.", float(ended.sum()), finished_reason=reason)
        histogram("iteration_tokens_total", "Histogram of number of tokens per engine_step.", (t.prefill_tokens + t.decode_seqs)[mine], _STEP)
        histogram("time_to_first_token_seconds", "Histogram of time to first token in seconds.",
                  (run.first_token - run.arrival)[began], _TTFT)
        histogram("inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", t.duration[mine], _TPOT, run.steady[mine])
        histogram("request_time_per_output_token_seconds", "Histogram of time_per_output_token_seconds per request.",
                  ((run.finish - run.first_token) / np.maximum(output - 1, 1))[done], _TPOT)
        for metric, values in (
            ("e2e_request_latency", run.finish - run.arrival),
            ("request_queue_time", run.first_scheduled - run.arrival),
            ("request_prefill_time", run.first_token - run.first_scheduled),
            ("request_decode_time", run.finish - run.first_token),
            ("request_inference_time", run.finish - run.first_scheduled),
        ):
            histogram(f"{metric}_seconds", f"Histogram of {metric.replace('_', ' ')} in seconds.", values[done], _E2E)
        histogram("request_prompt_tokens", "Number of prefill tokens processed.", prompts[done], _COUNTS)
        histogram("request_generation_tokens", "Number of generation tokens processed.", output[done], _COUNTS)
        histogram("request_num_preemptions", "Histogram of the number of preemptions per request.", run.preemptions[done], _TIMES)


def _cache_config(run: Run, replicas: list[int]) -> Metric:
    s = run.scenario
    info = {
        "block_size": str(s.block_size),
        "cache_dtype": s.kv_cache_dtype,
        "enable_prefix_caching": str(s.enable_prefix_caching),
        "gpu_memory_utilization": str(s.gpu_memory_utilization),
        "num_gpu_blocks": str(run.num_gpu_blocks),
    }
    family = GaugeMetricFamily(
        "vllm:cache_config_info", "Information of the LLMEngine CacheConfig", labels=["engine", *info]
    )
    for r in replicas:
        family.add_metric([str(r), *info.values()], 1.0)
    return family


def metrics_text(run: Run, until: float | None = None, model_name: str = "") -> str:
    """The run's /metrics page as vLLM 0.32 would print it `until` s after its start (None: at its end)."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(
        _Collector(run, run.duration_s if until is None else until, model_name or hub_name(run.scenario.model))
    )
    return generate_latest(registry).decode()


# -------------------------------------------------------------------------------------------------------- Grafana, alerts


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel of the dashboard, and a line of the checklist (see dashboard.toml)."""

    key: str
    title: str
    unit: str
    metrics: str
    type: str
    counts: str
    query: str
    queries: Mapping[str, str]
    before: str = ""
    alert: str = ""


@dataclass(frozen=True, slots=True)
class Alert:
    """An alert rule: Prometheus' name for it, its expression, how long it must hold, and what it says."""

    name: str
    expr: str
    hold: str
    severity: str
    summary: str


_WATCH = tomllib.loads(Path(__file__).with_name("dashboard.toml").read_text(encoding="utf-8"))
PANELS = tuple(Panel(**entry) for entry in _WATCH["panel"])
"""The dashboard, in reading order: the lesson's list first."""
ALERTS = tuple(Alert(**entry) for entry in _WATCH["alert"])
"""Rules for what `advice.py` diagnoses, worth waking somebody or not."""


def alert_rules() -> str:
    """The alerts as a Prometheus rule file."""
    import yaml

    rules = [
        {
            "alert": a.name,
            "expr": a.expr,
            "for": a.hold,
            "labels": {"severity": a.severity},
            "annotations": {"summary": a.summary},
        }
        for a in ALERTS
    ]
    text: str = yaml.safe_dump(
        {"groups": [{"name": "vllm-scheduler", "rules": rules}]}, sort_keys=False, width=200, allow_unicode=True
    )
    return text


def grafana() -> dict[str, Any]:
    """The dashboard as Grafana imports it."""
    panels = []
    for i, panel in enumerate(PANELS):
        panels.append(
            {
                "id": i + 1,
                "type": "timeseries",
                "title": panel.title,
                "datasource": {"type": "prometheus", "uid": "${datasource}"},
                "gridPos": {"h": 8, "w": 8, "x": 8 * (i % 3), "y": 8 * (i // 3)},
                "fieldConfig": {
                    "defaults": {"unit": panel.unit, "min": 0, **({"max": 1} if panel.unit == "percentunit" else {})},
                    "overrides": [],
                },
                "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
                "targets": [
                    {"refId": chr(65 + j), "expr": _filtered(query), "legendFormat": legend}
                    for j, (legend, query) in enumerate(panel.queries.items())
                ],
            }
        )
    return {
        "title": "vLLM scheduler",
        "uid": "vllm-scheduler",
        "schemaVersion": 39,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "tags": ["vllm"],
        "panels": panels,
        "templating": {
            "list": [
                {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"},
                {
                    "name": "model_name",
                    "type": "query",
                    "label": "Model",
                    "datasource": {"type": "prometheus", "uid": "${datasource}"},
                    "query": "label_values(vllm:num_requests_running, model_name)",
                    "includeAll": True,
                    "allValue": ".*",
                    "refresh": 2,
                    "current": {"text": "All", "value": "$__all"},
                },
            ]
        },
    }


def _filtered(query: str) -> str:
    return re.sub(r"(vllm:\w+)", r'\1{model_name=~"$model_name"}', query)


# ------------------------------------------------------------------------------------------------- a paste as a scenario


def scenario_of(
    parse: Mapping[str, Any] | None, settings: Mapping[str, Any], base: Scenario, image: str | None = None
) -> tuple[Scenario, list[Note]]:
    """The server that a paste tells of, under the load that its figures tell of; what is unknown is `base`'s.

    parse: of /metrics or a log (None: there is none); settings: of a command line ({}: none). Also returns what had to
    be assumed. Raises SimError.
    """
    if settings:
        scenario, notes = settings_of(settings, base=base, image=image)
    else:
        scenario, notes = base, [note("no_command")]
    if not parse:
        traffic = {"rate": f"{base.request_rate:g}", "prompt": base.prompt_tokens, "output": base.output_tokens}
        return scenario, [*notes, note("no_traffic", **traffic)]
    config: Mapping[str, Any] = parse.get("config") or {}
    one: Mapping[str, Any] = parse.get("last") or parse.get("aggregate") or next(iter((parse.get("engines") or {}).values()), {})
    engines = list((parse.get("engines") or {}).values()) or [one]
    wanted: dict[str, Any] = {}
    if isinstance(config.get("num_gpu_blocks"), int) and config["num_gpu_blocks"] > 1:
        wanted |= {"num_gpu_blocks_override": config["num_gpu_blocks"], "block_size": config.get("block_size", 16)}
    elif isinstance(config.get("kv_tokens"), int) and config["kv_tokens"] > 16:
        wanted["num_gpu_blocks_override"] = max(2, config["kv_tokens"] // scenario.block_size)
    if isinstance(config.get("max_num_seqs"), int):
        wanted["max_num_seqs"] = config["max_num_seqs"]
    elif (
        "max_num_seqs" not in settings
        and (one.get("waiting") or 0) > 0
        and (one.get("kv_usage") or 0) < 0.85
        and one.get("running")
    ):
        running = max((e.get("running") or 0) for e in engines)
        wanted["max_num_seqs"] = max(1, likely_cap(running, None) or int(running))
        notes.append(note("cap_guess", value=wanted["max_num_seqs"]))
    if "max_num_seqs" in wanted:
        wanted["max_num_batched_tokens"] = max(scenario.max_num_batched_tokens, wanted["max_num_seqs"])
    if len(engines) > 1 and "data_parallel_size" not in settings:
        wanted["data_parallel_size"] = min(64, len(engines))

    def mean(key: str, total: str) -> float | None:
        values = [e[f"{key}_mean"] for e in engines if e.get(f"{key}_mean")]
        if values:
            return float(np.mean(values))
        tokens, requests = (sum(e.get(k) or 0 for e in engines) for k in (total, "requests_total"))
        return tokens / requests if tokens and requests else None

    prompt, output = mean("prompt", "prompt_tokens_total"), mean("output", "generation_tokens_total")
    if prompt and output:
        wanted |= {
            "lengths": "lognormal",
            "prompt_tokens": max(1, round(prompt)),
            "output_tokens": max(1, round(output)),
        }
    else:
        notes.append(note("no_lengths"))
    mean_output = output or scenario.output_tokens
    rates: Mapping[str, Any] = parse.get("rates") or {}
    speed = rates.get("gen_tok_s") or one.get("gen_tok_s") or sum(e.get("gen_tok_s") or 0 for e in engines)
    rate = rates.get("qps") or (speed / mean_output if speed else None)
    served = [
        (e["running"], e["e2e_mean_s"] - (e.get("queue_mean_s") or 0.0))
        for e in engines
        if e.get("running") and e.get("e2e_mean_s")
    ]
    if not rate and served and all(seconds > 0 for _, seconds in served):
        rate = sum(running / seconds for running, seconds in served)  # Little's law of the running requests
    if rate and (one.get("waiting") or 0) > 0:
        rate *= 1.25  # a queue: more comes than is served
        notes.append(note("more_comes"))
    if rate:
        wanted |= {"arrival": "poisson", "request_rate": float(min(5000.0, max(0.01, round(rate, 2))))}
    else:
        notes.append(note("no_rate"))
    for name in list(wanted):
        setting = SETTINGS[name]
        if setting.low is not None and setting.high is not None:
            wanted[name] = setting.kind(min(max(wanted[name], setting.low), setting.high))
    return scenario.but(**wanted), notes
