"""/metrics text -> figures: vLLM of every generation, behind Ray, NIM, federation and routers; SGLang and TGI.

`prometheus_client` reads the samples; a tolerant cleaner before it takes away what terminals, proxies and wikis add.
Unknown stays unknown: NaN, a ratio 0/0 and a hit rate of -1 become None, never 0.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from sim.sentences import Note

from .clean import Reading, clock, note

_NAME = r"[a-zA-Z_](?:[a-zA-Z0-9_:]*[a-zA-Z0-9_])?"
_NUMBER = r"[+-]?(?:\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+|[Ii]nf|NaN|nan)"
_SAMPLE = re.compile(rf"({_NAME})(?:(\{{[^\n]*\}})\s*|\s+)({_NUMBER})(?:\s+(-?\d[\d.eE+]*))?\s*(?:#.*)?$")
_FAMILY = re.compile(r"(?:ray_)?(?:vllm[:_]|sglang[:_]|tgi_|trtllm_|nv_llm_|nv_trt_llm_|sgl_router_|smg_)")
_SPELLED = re.compile(
    rf"({_NAME})[\"'\s]*(\{{[^\n]*\}})?[\"'\s]*(?:\((?:gauge|counter)\)\s*)?(?:=>|[:=|,])\s*[\"']?({_NUMBER})[\"']?\s*(?:@\[([\d.]+)\])?[,|\s]*$"
)
"""A sample as tables, promtool and JSON write it."""
_SERIES = re.compile(rf"{_NAME}(?:\{{[^\n]*\}})?")
_NAMELESS = re.compile(r'\{__name__="([\w:]+)",?\s*')
_LATER = re.compile(r"(?=.*(?:later|after|sleep|wait|后|隔)).*?(?<![\w.:])(\d+(?:\.\d+)?)\s*(min|m\b|分|s|秒|;|$)", re.I)

# Name after the prefix -> our key. Several names for one thing: the first that is present counts.
_GAUGES = {
    "num_requests_running": "running", "num_running_reqs": "running", "batch_current_size": "running",
    "num_requests_waiting": "waiting", "num_queue_reqs": "waiting", "queue_size": "waiting",
    "num_requests_swapped": "swapped", "kv_cache_usage_perc": "kv_usage", "gpu_cache_usage_perc": "kv_usage",
    "token_usage": "kv_usage", "cpu_cache_usage_perc": "cpu_kv_usage", "gpu_prefix_cache_hit_rate": "prefix_hit_rate",
    "cache_hit_rate": "prefix_hit_rate", "gen_throughput": "gen_tok_s",
    "avg_generation_throughput_toks_per_s": "gen_tok_s", "avg_prompt_throughput_toks_per_s": "prompt_tok_s",
    "num_request_max": "max_num_seqs", "max_running_requests": "max_num_seqs", "max_running_reqs": "max_num_seqs",
    "num_used_tokens": "used_tokens", "max_total_num_tokens": "kv_tokens",
    "num_requests_deferred": "waiting_deferred", "num_grammar_queue_reqs": "waiting_grammar",
    "num_retracted_reqs": "retracted", "current_qps": "qps", "num_prefill_requests": "prefilling",
    "num_decoding_requests": "decoding", "avg_ttft": "ttft_mean_s", "avg_itl": "itl_mean_s",
    "avg_latency": "e2e_mean_s",
}
_COUNTERS = {
    "num_preemptions_total": "preemptions_total", "num_preemptions": "preemptions_total",
    "num_retractions_total": "preemptions_total", "num_retracted_requests_total": "preemptions_total",
    "prompt_tokens_total": "prompt_tokens_total", "prompt_tokens": "prompt_tokens_total",
    "generation_tokens_total": "generation_tokens_total", "generation_tokens": "generation_tokens_total",
    "request_success_total": "requests_total", "request_success": "requests_total",
    "num_requests_total": "requests_total", "prefix_cache_queries_total": "_queries",
    "prefix_cache_queries": "_queries", "prefix_cache_hits_total": "_hits", "prefix_cache_hits": "_hits",
    "gpu_prefix_cache_queries_total": "_gpu_queries", "gpu_prefix_cache_queries": "_gpu_queries",
    "gpu_prefix_cache_hits_total": "_gpu_hits", "gpu_prefix_cache_hits": "_gpu_hits",
    "external_prefix_cache_queries_total": "_ext_queries", "external_prefix_cache_hits_total": "_ext_hits",
    "mm_cache_queries_total": "_mm_queries", "mm_cache_hits_total": "_mm_hits",
    "admission_rejections_total": "rejections_total", "request_failure_total": "failures_total",
    "corrupted_requests_total": "corrupted_total",
}
_HISTOGRAMS = {
    "time_to_first_token_seconds": "ttft", "inter_token_latency_seconds": "itl",
    "time_per_output_token_seconds": "tpot", "request_time_per_output_token_seconds": "tpot",
    "e2e_request_latency_seconds": "e2e", "request_queue_time_seconds": "queue",
    "request_prefill_time_seconds": "prefill", "request_decode_time_seconds": "decode",
    "request_prompt_tokens": "prompt", "request_generation_tokens": "output", "iteration_tokens_total": "step_tokens",
    "queue_time_seconds": "queue", "request_mean_time_per_token_duration": "tpot", "request_queue_duration": "queue",
    "request_duration": "e2e", "request_inference_duration": "inference",
}
_KNOWN = _GAUGES.keys() | _COUNTERS.keys()
_TOKEN_HISTOGRAMS = {"prompt", "output", "step_tokens"}
_NIM = {
    "num_requests_running", "num_requests_waiting", "gpu_cache_usage_perc", "num_request_max", "prompt_tokens_total",
    "generation_tokens_total", "request_success_total", "request_failure_total", "kv_cache_usage_perc",
    "num_preemptions_total",
}
_OTHERS = {
    "sglang-router": ("sgl_router", "smg_"), "sglang": ("sglang:", "sglang_"), "tgi": ("tgi_",),
    "trtllm": ("trtllm_", "nv_llm_", "nv_trt_llm_"), "vllm-router": ("vllm_router",),
}
_SUMMED = {"running", "waiting", "swapped", *(v for v in _COUNTERS.values() if v.endswith("_total"))}
_V0 = {
    "num_requests_swapped", "cpu_cache_usage_perc", "gpu_prefix_cache_hit_rate", "cpu_prefix_cache_hit_rate",
    "avg_generation_throughput_toks_per_s", "gpu_cache_usage_perc",
}
_V1 = {
    "kv_cache_usage_perc", "prefix_cache_queries_total", "prefix_cache_queries", "gpu_prefix_cache_queries_total",
    "gpu_prefix_cache_queries", "num_requests_waiting_by_reason", "inter_token_latency_seconds_count", "engine_sleep_state",
}
_WHERE = (
    "model_name", "model", "modelName", "instance", "pod", "server", "worker", "ReplicaId", "replica", "deployment",
    "namespace", "cluster", "job", "dp_rank", "moe_ep_rank", "WorkerId", "NodeAddress",
)
_IGNORED_KINDS = ("python_", "process_", "http_", "go_", "promhttp_", "scrape_", "up")

MAX_SAMPLES = 12_000
"""Of one scrape; forty engines with all their histograms stay below it."""


@dataclass(slots=True)
class Sample:
    """One Prometheus sample; `time` is s since the epoch, None if the page did not say."""

    name: str
    labels: dict[str, str]
    value: float
    time: float | None = None


@dataclass(slots=True)
class Page:
    """One scrape: its samples and when it was taken (s, on some clock), None if unknown."""

    samples: list[Sample] = field(default_factory=list)
    time: float | None = None


def looks_like_metrics(text: str) -> bool:
    """Whether any line of the text is a sample of an inference server."""
    return bool(pages(text[:400_000], first_only=True))


# ------------------------------------------------------------------------------------------------ text -> samples


def _candidate(line: str) -> str | None:
    """The sample in a line that may carry a prompt, a grep prefix or an exemplar; None if there is none."""
    bare = line.strip().strip("|`\"',").strip()
    if not bare or bare.startswith("#") or len(bare) > 20_000:
        return None
    found = _FAMILY.search(bare)
    if found and not (found.start() and (bare[found.start() - 1].isalnum() or bare[found.start() - 1] in '"_')):
        bare = bare[found.start() :]
    elif not re.match(rf"{_NAME}[{{\s]", bare):
        return None
    cut = re.search(r"\s#\s?\{", bare)  # an OpenMetrics exemplar
    if cut:
        bare = bare[: cut.start()]
    match = _SAMPLE.match(bare)
    if not match:
        match = _SPELLED.match(bare)
        if not match or _bare(match[1]) not in _KNOWN:
            return None
    name, labels, value, stamp = match.groups()
    if labels and '"' not in labels:
        labels = re.sub("[“”']", '"', labels)
    return f"{name}{labels or ''} {value}" + (f" {stamp}" if stamp else "")


def _read(lines: list[str]) -> list[Sample]:
    """Samples of clean lines, through prometheus_client; a line that it refuses is left out."""

    def convert(text: str) -> list[Sample]:
        got = []
        for family in text_string_to_metric_families(text):
            for s in family.samples:
                if s.labels.get("tp_rank", "0") not in ("0", "") or s.labels.get("pp_rank", "0") not in ("0", ""):
                    continue  # SGLang: every rank of one engine says the same
                stamp = float(s.timestamp) if s.timestamp is not None else None
                if stamp is not None and stamp > 1e11:  # OpenMetrics writes s, the text format ms (already divided)
                    stamp /= 1000.0
                elif stamp is not None and stamp < 1e7:
                    stamp *= 1000.0
                got.append(Sample(s.name, dict(s.labels), float(s.value), stamp))
        return got

    try:
        return convert("\n".join(lines) + "\n")
    except (ValueError, KeyError, IndexError):
        samples = []
        for line in lines:
            try:
                samples.extend(convert(line + "\n"))
            except (ValueError, KeyError, IndexError):
                continue
        return samples


def _join_wrapped(lines: Iterable[str]) -> list[str]:
    """Put together what a narrow terminal broke: a sample without its value takes the lines that follow."""
    out: list[str] = []
    open_line = 0
    for line in lines:
        bare = line.strip()
        if open_line and bare and not bare.startswith("#") and not _FAMILY.match(bare):
            out[-1] += line.strip("\n") if line[:1] == " " else bare
            open_line = 0 if re.search(rf"\}}\s*{_NUMBER}\s*$", out[-1]) else open_line - 1
            continue
        out.append(line)
        broken = _FAMILY.search(bare[:200]) and "{" in bare and not re.search(r"\}\s+\S", bare)
        open_line = 4 if broken and not bare.startswith("#") else 0
    return out


def pages(text: str, first_only: bool = False) -> list[Page]:
    """The scrapes in a text, in order. A series that is seen again begins the next scrape."""
    raw: list[tuple[list[str], float | None]] = []
    seen: set[str] = set()
    clean: list[str] = []
    stamp: float | None = None

    def close() -> None:
        nonlocal clean, seen
        if clean:
            raw.append((clean, stamp))
            if len(raw) > 16:  # the first and the last ones tell the rates
                del raw[1]
        clean, seen = [], set()

    next_stamp: float | None = None
    text = _NAMELESS.sub(r"\1{", text)
    text = re.sub(r" (?=(?:vllm|sglang):\w+\{)", "\n", text)  # where the ends of lines were lost
    for line in _join_wrapped(text.split("\n")):
        sample = _candidate(line)
        if sample is None:
            if not line.lstrip().startswith(("# HELP", "# TYPE", "# UNIT")) and len(line) < 200:
                later = _LATER.search(line)
                if later:
                    stamp = stamp or 0.0
                    next_stamp = stamp + float(later[1]) * (60 if later[2].lower() in ("min", "m", "分") else 1)
                else:
                    next_stamp = next_stamp if clock(line) is None else clock(line)
            continue
        series = sample[: sample.rindex("}") + 1] if "}" in sample else sample.split(" ", 1)[0]
        if series in seen:
            close()
            stamp = None
        if not clean:
            stamp, next_stamp = next_stamp, None
        seen.add(series)
        if _wanted(series) and len(clean) < MAX_SAMPLES:
            clean.append(sample)
            if first_only:
                break
    close()
    found = [Page(_read(lines), at) for lines, at in raw]
    return [p for p in found if p.samples]


def _wanted(series: str) -> bool:
    name = series.split("{", 1)[0]
    known = re.sub(r"_(?:bucket|sum|count)$", "", _bare(name)) in _HISTOGRAMS
    if name.endswith("_bucket") or not _FAMILY.match(name):
        return known or name in _NIM
    return not name.endswith("_created")


def _line(labels: Mapping[str, Any], value: Any, stamp: float | None = None) -> str:
    """A sample as /metrics writes it. labels: with the name as "__name__"; stamp: in s."""
    inside = ",".join(f"{k}={json.dumps(str(v), ensure_ascii=False)}" for k, v in labels.items() if k != "__name__")
    return f"{labels.get('__name__', '')}{{{inside}}} {value}" + (f" {int(stamp * 1000)}" if stamp is not None else "")


def from_json(data: Any) -> str:
    """JSON that holds samples as /metrics text: answers of Prometheus, VictoriaMetrics or Grafana, or names and values."""
    named = {k: v for k, v in data.items() if _FAMILY.match(k)} if isinstance(data, dict) else {}
    if named:
        return "\n".join(f"{name} {value}" for name, value in named.items())
    try:
        points = list(_points(data))
    except (KeyError, TypeError, ValueError, AttributeError):
        return ""
    times = sorted({at for at, _, _ in points})
    wanted = {*times[:1], *times[-15:]}
    return "\n".join(_line(labels, value, at) for at, labels, value in sorted(points, key=lambda p: p[0]) if at in wanted)


def _points(node: Any) -> Iterator[tuple[float, dict[str, Any], Any]]:
    """Time (s), labels and value of all samples, wherever in the JSON they are."""
    if isinstance(node, list):
        for part in node:
            yield from _points(part)
    elif not isinstance(node, dict):
        return
    elif isinstance(node.get("metric"), dict):
        if "timestamps" in node:  # VictoriaMetrics' export, in ms
            pairs = [(at / 1000, value) for at, value in zip(node["timestamps"], node["values"], strict=True)]
        else:
            pairs = node["values"] if "values" in node else [node["value"]]
        for at, value in pairs:
            yield float(at), node["metric"], value
    elif "schema" in node and "data" in node:  # a frame of Grafana, times in ms
        times, *columns = node["data"]["values"]
        for field_, column in zip(node["schema"]["fields"][1:], columns, strict=True):
            labels = {"__name__": field_["name"], **(field_.get("labels") or {})}
            for at, value in zip(times, column, strict=True):
                if value is not None:
                    yield at / 1000, labels, value
    else:
        for part in node.values():
            yield from _points(part)


_LEGENDS = (
    ("running", "num_requests_running"), ("waiting|pending|queued", "num_requests_waiting"), ("swapped", "num_requests_swapped"),
    ("cpu.*cache", "cpu_cache_usage_perc"), ("hit", "gpu_prefix_cache_hit_rate"), ("cache.*usage|kv.*usage", "kv_cache_usage_perc"),
    ("generation.*(?:/s|per s)", "avg_generation_throughput_toks_per_s"),
    ("prompt.*(?:/s|per s)", "avg_prompt_throughput_toks_per_s"),
)
"""What panels call a series, and its name; the first that fits."""


def _series(head: str, i: int) -> str:
    """The series that a column holds, by its head; "" if none."""
    head = head.strip()
    if _FAMILY.match(head) and _SERIES.fullmatch(head):
        return head
    return next((f"vllm:{name}" for words, name in _LEGENDS if i and re.search(words, head, re.I)), "")


def from_csv(text: str) -> str:
    """A table as /metrics text: a column a series and a row a time (Grafana), or a row a sample (name, value, labels)."""
    lines = re.sub(r"^sep=.*\n", "", text.strip()).split("\n")
    try:
        rows = csv.reader(lines, delimiter=max(",;\t", key=lambda d: len(next(csv.reader(lines[:1], delimiter=d)))))
        header = next(rows)
        small = [cell.strip().lower() for cell in header]
        name = next((small.index(n) for n in ("__name__", "name", "metric") if n in small), -1)
        value = small.index("value") if "value" in small else -1
        time = next((i for i, cell in enumerate(small) if re.match("time|date|ts$", cell)), -1)
        series = {i: s for i, cell in enumerate(header) if (s := _series(cell, i))}
        out = []
        if name >= 0 and value >= 0:
            labels = {i: cell for i, cell in enumerate(header) if i not in (name, value, time)}
            for row in rows:
                if len(row) == len(header):
                    said = {"__name__": row[name]} | {cell: row[i] for i, cell in labels.items()}
                    out.append(_line(said, _share(row[value]), clock(row[time]) if time >= 0 else None))
        elif series and (time == 0 or any(_FAMILY.match(cell) for cell in header[1:])):
            for row in rows:
                out += row[:1]
                out += [f"{s} {_share(row[i])}" for i, s in series.items() if i < len(row) and row[i].strip()]
    except (csv.Error, StopIteration, IndexError):
        return ""
    return "\n".join(out)


def _share(cell: str) -> str:
    """"42%" -> "0.42", "1,024" -> "1024"."""
    cell = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", cell.strip())
    return re.sub(r"^(\d+\.?\d*) ?%$", lambda m: str(float(m[1]) / 100), cell)


# ---------------------------------------------------------------------------------------------- samples -> figures


def _bare(name: str) -> str:
    return _FAMILY.sub("", name, count=1) if _FAMILY.match(name) else name


def _number(value: float) -> float | int | None:
    if math.isnan(value) or math.isinf(value):
        return None
    return int(value) if value == int(value) else value


def family(samples: Iterable[Sample]) -> str:
    """Whose page this is: vllm-v0, vllm-v1, vllm-router, sglang, sglang-router, tgi, nim, trtllm."""
    names = {s.name for s in samples}
    bare = {_bare(n) for n in names}
    for whose, starts in _OTHERS.items():
        if any(n.startswith(starts) for n in names):
            return whose
    if not bare.isdisjoint(("current_qps", "healthy_pods_total")):
        return "vllm-router"
    if not any("vllm" in n for n in names):
        return "nim"
    if bare & _V1 or any("engine" in s.labels for s in samples):
        return "vllm-v1"
    return "vllm-v0" if bare & _V0 else "vllm-v1"


def _engine_keys(samples: list[Sample]) -> dict[int, str]:
    """For each sample (by position) the name of its engine: "0", or "pod/0" where several servers share a page."""
    gauges = [s for s in samples if _bare(s.name) in _GAUGES or _bare(s.name) in _COUNTERS]
    places: list[str] = []
    for label in _WHERE:
        values = {s.labels[label] for s in gauges if label in s.labels}
        if len(values) > 1 and (not places or label not in ("instance", "namespace", "job", "NodeAddress", "WorkerId")):
            places.append(label)
    if len(places) > 1 and places[0] in ("model_name", "model"):  # no place, if another label tells them apart
        finer = {tuple(s.labels.get(p, "") for p in places[1:]) for s in gauges}
        both = {tuple(s.labels.get(p, "") for p in places) for s in gauges}
        if len(finer) == len(both):
            places = places[1:]
    keys, named = {}, any("engine" in s.labels for s in gauges)
    for i, s in enumerate(samples):
        engine = s.labels.get("engine", s.labels.get("engine_index", s.labels.get("dp_rank", "0")))
        where = [s.labels[p] for p in places[:2] if p in s.labels and p != "dp_rank"]
        keys[i] = "/".join([*where, engine] if named or not where else where)
    return keys


def _quantile(buckets: Mapping[float, float], q: float) -> list[float | None] | None:
    edges = sorted(buckets)
    total = buckets[edges[-1]] if edges else 0.0
    if not total or math.isnan(total):
        return None
    low = 0.0
    for edge in edges:
        if buckets[edge] >= q * total:
            return [low, None if math.isinf(edge) else edge]
        low = edge
    return None


def _engine_figures(samples: list[Sample], unknown: list[Note], who: str) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    chosen: dict[str, tuple[int, str]] = {}
    histograms: dict[str, dict[str, Any]] = {}
    order = {name: i for i, name in enumerate([*_GAUGES, *_COUNTERS])}
    for s in samples:
        name = _bare(s.name)
        stem, part = name, ""
        for suffix in ("_bucket", "_sum", "_count"):
            if name.endswith(suffix):
                stem, part = name.removesuffix(suffix), suffix
        if part and stem in _HISTOGRAMS:
            h = histograms.setdefault(stem, {"buckets": {}, "sum": None, "count": None})
            if part == "_bucket":
                try:
                    edge = float(s.labels.get("le", "nan").replace("+Inf", "inf"))
                except ValueError:
                    continue
                if not math.isnan(edge):
                    h["buckets"][edge] = h["buckets"].get(edge, 0.0) + s.value
            else:
                h[part[1:]] = (h[part[1:]] or 0.0) + s.value
            continue
        if name == "num_requests_waiting_by_reason":
            figures[f"waiting_{s.labels.get('reason', 'other')}"] = _number(s.value)
            continue
        key = _GAUGES.get(name) or _COUNTERS.get(name)
        if key is None:
            continue
        rank = (order[name], name)
        value = _number(s.value)
        if value is None:
            unknown.append(note("is_unknown", name=s.name, engine=who, value=s.value))
        if key == "prefix_hit_rate" and value is not None and value < 0:
            value = None
            unknown.append(note("no_prefix_caching", name=s.name, value=s.value))
        if key == "kv_usage" and value is not None and value > 1:
            unknown.append(note("percent", name=s.name, value=s.value))
            value /= 100
        if key not in chosen or rank < chosen[key]:
            chosen[key] = rank
            figures[key] = value
        elif rank == chosen[key]:  # the same series under other labels (pid, finished_reason): counts add, shares don't
            old = figures[key]
            if value is not None and old is not None:
                figures[key] = old + value if key in _SUMMED or key.startswith("_") else max(old, value)
            elif value is not None:
                figures[key] = value
    reasons = [v for k, v in figures.items() if k.startswith("waiting_") and v is not None]
    if reasons and "waiting" not in figures:
        figures["waiting"] = sum(reasons)
    for label, key in (("", "prefix"), ("gpu_", "prefix"), ("ext_", "external_prefix"), ("mm_", "mm")):
        queries, hits = figures.pop(f"_{label}queries", None), figures.pop(f"_{label}hits", None)
        if queries is None and hits is None:
            continue
        key += "_hit_rate"
        if figures.get(key) is None:
            figures[key] = round(hits / queries, 4) if queries and hits is not None else None
            if not queries:
                unknown.append(note("no_query", name=key, engine=who))
    for stem, h in histograms.items():
        key = _HISTOGRAMS[stem]
        unit = "" if key in _TOKEN_HISTOGRAMS else "_s"
        count = h["count"] if h["count"] is not None else (h["buckets"].get(math.inf) if h["buckets"] else None)
        if count is not None:
            figures[f"{key}_count"] = _number(count)
        if h["sum"] is not None and count is not None:
            good = count > 0 and not math.isnan(h["sum"])
            figures[f"{key}_mean{unit}"] = round(h["sum"] / count, 4) if good else None
            if not good:
                unknown.append(note("no_observation", name=key, engine=who))
        if h["buckets"]:
            figures[f"{key}_p50_bucket"] = _quantile(h["buckets"], 0.5)
            figures[f"{key}_p99_bucket"] = _quantile(h["buckets"], 0.99)
    return figures


def _config(samples: list[Sample]) -> dict[str, Any]:
    config: dict[str, Any] = {}
    for s in samples:
        if _bare(s.name) not in ("cache_config_info", "cache_config"):
            continue
        for name in ("num_gpu_blocks", "num_cpu_blocks", "block_size", "gpu_memory_utilization"):
            with suppress(KeyError, ValueError):
                config[name] = (float if name == "gpu_memory_utilization" else int)(s.labels[name])
        if s.labels.get("enable_prefix_caching") in ("True", "False"):
            config["enable_prefix_caching"] = s.labels["enable_prefix_caching"] == "True"
        if s.labels.get("cache_dtype", "None") != "None":
            config["kv_cache_dtype"] = s.labels["cache_dtype"]
    if "num_gpu_blocks" in config and "block_size" in config:
        config["kv_tokens"] = config["num_gpu_blocks"] * config["block_size"]
    return config


def _lora(samples: list[Sample]) -> dict[str, Any] | None:
    newest = max((s for s in samples if _bare(s.name) == "lora_requests_info"), key=lambda s: s.value, default=None)
    if newest is None:
        return None
    names = {
        k: [a for a in newest.labels.get(f"{k}_lora_adapters", "").split(",") if a.strip()]
        for k in ("running", "waiting")
    }
    try:
        slots: int | None = int(newest.labels.get("max_lora", ""))
    except ValueError:
        slots = None
    return {"max_lora": slots, **names} if slots or names["running"] or names["waiting"] else None


def aggregate(engines: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Sums of counts over the engines, and the mean and largest KV usage; a sum with an unknown part is unknown."""
    result: dict[str, Any] = {}
    for key in ("running", "waiting", "waiting_capacity", "waiting_deferred", "preemptions_total", "gen_tok_s", "prompt_tok_s"):
        values = [e[key] for e in engines.values() if key in e]
        if values:
            result[key] = None if any(v is None for v in values) else sum(values)
    kv = [e["kv_usage"] for e in engines.values() if e.get("kv_usage") is not None]
    if kv:
        result["kv_max"] = max(kv)
        result["kv_mean"] = round(sum(kv) / len(kv), 4)
    return result


def read(text: str) -> Reading:
    """Everything a pasted /metrics text says. `parse` is None if it holds no sample of an inference server."""
    found = pages(text)
    if not found:
        return Reading(None)
    reading = Reading({})
    parse: dict[str, Any] = {"engine_family": family([s for p in found for s in p.samples])}
    names = {_bare(s.name) for p in found for s in p.samples}
    parsed = []
    for page in found:
        keys = _engine_keys(page.samples)
        engines: dict[str, list[Sample]] = {}
        for i, s in enumerate(page.samples):
            if _bare(s.name) not in ("lora_requests_info", "cache_config_info"):
                engines.setdefault(keys[i], []).append(s)
        unknown: list[Note] = []
        table = {who: _engine_figures(mine, unknown, who) for who, mine in sorted(engines.items())}
        table = {who: figures for who, figures in table.items() if figures}
        served = {
            who: next((s.labels[k] for s in engines[who] for k in ("model_name", "model") if s.labels.get(k)), "")
            for who in table
        }
        if len(set(served.values())) > 1:
            for who, figures in table.items():
                figures["model"] = served[who]
        parsed.append(table)
        reading.unknown = unknown
    last = parsed[-1]
    if not last:
        reading.warnings.append(note("no_gauges"))
    parse["engines"] = last
    if len(last) > 1:
        parse["aggregate"] = aggregate(last)
    config = _config(found[-1].samples)
    slots = [e.pop("max_num_seqs") for e in last.values() if e.get("max_num_seqs") is not None]
    if slots:
        config["max_num_seqs"] = int(max(slots))
    for e in last.values():
        if e.get("kv_tokens") is not None:
            config.setdefault("kv_tokens", e.pop("kv_tokens"))
    if config:
        parse["config"] = config
    lora = _lora(found[-1].samples)
    if lora:
        parse["lora"] = lora
    if len(found) > 1:
        _rates(parse, parsed, found, reading)
    models = sorted({s.labels[k] for s in found[-1].samples for k in ("model_name", "model") if s.labels.get(k)})
    if models:
        parse["models"] = models
    if "kv_cache_usage_perc" in names and "gpu_cache_usage_perc" in names:
        reading.warnings.append(note("both_kv_names"))
    for key in ("running", "waiting", "kv_usage"):
        if all(e.get(key) is None for e in last.values()):
            reading.unknown.append(note(f"no_{key}"))
    if len(found) == 1 and any(e.get("preemptions_total") for e in last.values()):
        reading.unknown.append(note("one_scrape"))
    reading.parse = parse
    starts = [line for line in text.split("\n", 20_000)[:20_000] if line.startswith(_IGNORED_KINDS)]
    counts = Counter(next(kind for kind in _IGNORED_KINDS if line.startswith(kind)) for line in starts)
    reading.ignored = [note("other_series", name=kind, count=count) for kind, count in counts.items()]
    return reading


def _rates(parse: dict[str, Any], parsed: list[dict[str, dict[str, Any]]], found: list[Page], reading: Reading) -> None:
    parse["scrapes"] = len(found)
    if len(parsed[-1]) == 1:
        parse["last"] = dict(next(iter(parsed[-1].values())))
    else:
        parse["last"] = aggregate(parsed[-1])
    flat = [tuple(e.get("running") for e in t.values()) for t in parsed]
    parse["running_flat"] = len(set(flat)) == 1

    def when(page: Page) -> float | None:
        stamps = [s.time for s in page.samples if s.time is not None]
        return max(stamps) if stamps else page.time

    first_time, last_time = when(found[0]), when(found[-1])
    rates: dict[str, float | None] = {}
    seconds = None
    if first_time is not None and last_time is not None:
        seconds = last_time - first_time
        if seconds < 0 and seconds > -86400:
            seconds += 86400  # past midnight
    for key, rate in (
        ("preemptions_total", "preemptions_per_s"),
        ("generation_tokens_total", "gen_tok_s"),
        ("prompt_tokens_total", "prompt_tok_s"),
        ("requests_total", "qps"),
    ):
        both = [(parsed[0][who].get(key), parsed[-1][who].get(key)) for who in parsed[-1] if who in parsed[0]]
        pairs: list[tuple[float, float]] = [(a, b) for a, b in both if a is not None and b is not None]
        if not pairs:
            continue
        if any(b < a for a, b in pairs):
            rates[rate] = None
            reading.warnings.append(note("restarted", name=key))
            continue
        delta = sum(b - a for a, b in pairs)
        if key == "preemptions_total":
            parse["preemptions_delta"] = delta
        rates[rate] = round(delta / seconds, 4) if seconds else (0.0 if delta == 0 else None)
    if not seconds:
        reading.unknown.append(note("no_interval"))
    else:
        parse["interval_s"] = seconds
    parse["rates"] = rates
