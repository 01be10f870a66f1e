"""How far the model is from measurements: step times of kernels, real servers, served latency.

python -m sim validate steps.csv [--median 0.06 --p90 0.16]
python -m sim validate --runs DIR...
python -m sim validate --served served_latency.csv
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from sim import memory
from sim.catalog import gpu, gpus, model, models
from sim.engine import simulate
from sim.evidence import held, record
from sim.requests import Requests
from sim.results import FINISHED, Run
from sim.scenario import Scenario, SimError
from sim.step_time import Constants, Hardware, Shared, constants
from sim.vllm.flags import human_int

Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]

SYSTEMS = {
    "a100_sxm": "A100-80GB",
    "h100_sxm": "H100-SXM",
    "h200_sxm": "H200",
    "b200_sxm": "B200",
    "b300_sxm": "B300",
    "l40s": "L40S",
    "a10g": "A10G",
    "rtx4090": "RTX-4090",
    "rtxpro6000": "RTX-PRO-6000",
    "mi300x": "MI300X",
}
"""Names that measurement files give GPUs, and ours."""
MODELS = {
    "Meta-": "", "Llama-3.3-70B": "Llama-3.1-70B", "Llama-3-": "Llama-3.1-", "DeepSeek-R1": "DeepSeek-V3", "Llama-2-70b": "Llama-2-70B",
}
"""Names of models of the same architecture as one of the catalogue."""
PARTS = ("attn_ms", "gemm_ms", "moe_ms", "comm_ms", "other_ms")
PRECISIONS = {
    "bf16": "bf16",
    "fp16": "bf16",
    "fp8": "fp8",
    "fp8_block": "fp8",
    "int4": "int4",
    "fp4": "int4",
    "nvfp4": "int4",
}


@dataclass(frozen=True, slots=True)
class Row:
    """One measured step, in the terms of StepTime.seconds()."""

    system: str
    model: str
    phase: str
    setting: tuple[str, str, int, int, int, str]  # system, model, tp, ep, attention dp, precision
    ms: float
    decode_seqs: int
    decode_context: int
    prefill_seqs: int
    prefill_tokens: int
    prefill_pairs: int
    prefill_context: int
    latent: bool
    parts: Mapping[str, float]

    @property
    def tokens(self) -> int:
        """New tokens of the step."""
        return self.decode_seqs + self.prefill_tokens

    @property
    def sampled(self) -> int:
        """Rows through the head."""
        return self.decode_seqs + self.prefill_seqs


def scenario_of(setting: tuple[str, str, int, int, int, str]) -> Scenario:
    """The server that such rows were measured on."""
    system, model, tp, ep, dp, precision = setting
    if precision not in PRECISIONS:
        raise SimError("precision", f"precision {precision!r} is none of {', '.join(PRECISIONS)}")
    return Scenario(
        model=model_name(model),
        gpu=SYSTEMS.get(system, system),
        tensor_parallel_size=tp,
        data_parallel_size=dp,
        enable_expert_parallel=ep > 1,
        weights=PRECISIONS[precision],
        host="none",
        max_model_len=2048,
    )


def read_steps(path: Path) -> list[Row]:
    """Rows of a steps.csv; those of a GPU, model or precision that is not known are left out, which standard error says.

    SimError names the line and column that cannot be read.
    """
    found, unknown, number = [], Counter[str](), 1
    with Path(path).open(encoding="utf-8-sig", newline="") as file:
        try:
            for number, line in enumerate(csv.DictReader(file), 2):  # noqa: B007
                try:
                    found.append(_row(line))
                except SimError as error:
                    unknown[str(error)] += 1
        except (KeyError, ValueError, TypeError, csv.Error) as error:
            why = f"{type(error).__name__}: {error}"
            raise SimError("steps_row", f"{path}, line {number}: {why}; expected the columns of step_times/README.md",
                           line=number, reason=why) from None
    for reason, count in unknown.most_common():
        print(f"left out: {count} rows: {reason}", file=sys.stderr)
    if not found:
        raise SimError("steps_empty", f"{path} holds no rows that can be compared")
    return found


def _whole(text: str) -> int:
    """A whole number as tables have it: pandas writes 1.0 where a column has gaps."""
    return int(float(text))


def _row(line: dict[str, str]) -> Row:
    batch, context, ms, phase = _whole(line["batch"]), _whole(line["context"]), float(line["ms"]), line["phase"]
    if not 0 < ms < math.inf:
        raise ValueError(f"ms {line['ms']}")
    chunk = _whole(line["chunk_tokens"]) if phase in ("prefill_chunk", "mixed") else 0
    setting = (line["system"], line["model"], _whole(line["tp"]), _whole(line["ep"]), _whole(line.get("attn_dp") or "1"), line["precision"])
    decode = (batch, batch * context) if phase in ("decode", "mixed") else (0, 0)
    prefill = (0, 0, 0, 0)
    if phase == "prefill":
        prefill = (batch, batch * context, batch * (context * (context + 1) // 2), batch * context)
    elif phase == "prefill_chunk":
        prefill = (1, chunk, chunk * context + chunk * (chunk + 1) // 2, context + chunk)
    elif phase == "mixed":  # chunk_tokens of prompts as long as context, whole ones where they fit
        each = min(chunk, context)
        count = max(1, chunk // each)
        prefill = (count, chunk, count * (each * (each + 1) // 2), chunk)
    elif phase != "decode":
        raise ValueError(f"phase {phase!r}")
    scenario = scenario_of(setting)
    gpu(scenario.gpu)  # raises where it is not known
    return Row(
        setting[0],
        setting[1],
        phase,
        setting,
        ms,
        *decode,
        *prefill,
        latent=model(scenario.model).is_mla,
        parts={name: float(line.get(name) or 0) for name in PARTS},
    )


@lru_cache(maxsize=512)
def _room(setting: tuple[str, str, int, int, int, str]) -> float:
    scenario = scenario_of(setting)
    shape = model(scenario.model)
    used = memory.rank_weight_bytes(shape, scenario) + memory.CONTEXT_BYTES
    return (gpu(scenario.gpu).memory_bytes - used) / (memory.block_bytes(shape, scenario) / scenario.block_size)


def fits_in_memory(row: Row) -> bool:
    """Whether the card holds weights and the row's KV (all of its memory, nothing kept for activations)."""
    return row.decode_context + row.prefill_context + row.tokens <= _room(row.setting)


TIED = 0.28
"""Share of the visits that the rows' source sends to the first experts where a token may use four of eight groups only:
about 2.3 of its eight picks lie in other groups, and ties among the rest go by index."""


@lru_cache(maxsize=100_000)
def _power_law(count: int, per_token: int, tokens: int, ranks: int, alpha: float) -> tuple[float, float]:
    """(visits, distinct experts) of the busiest rank, mean of five draws, as the rows' source loads its kernels.

    The weights of the experts are Pareto draws of exponent `alpha`, cut at 0.8 of the tokens (at 2 if the visits are
    fewer than the experts); an expert gets its rounded share of the visits, and what rounding leaves goes to the least
    loaded. A token cannot visit an expert twice: what exceeds `tokens` goes to the busiest rank, where ties end.
    """
    random = np.random.default_rng(7)
    total = tokens * per_token
    low, high = (edge ** (1 - alpha) for edge in ((1.0, tokens * 0.8) if total > count else (0.01, 2.0)))
    found = []
    for _ in range(5):
        even = (random.permutation(count) + random.random(count)) / count
        weight = ((high - low) * even + low) ** (1 / (1 - alpha))
        visits = np.round(weight / weight.sum() * total)
        left = int(total - visits.sum())
        visits[np.argsort(visits * np.sign(left), kind="stable")[: abs(left)]] += np.sign(left)
        excess = np.maximum(visits - tokens, 0).sum()
        by_rank = visits.reshape(ranks, -1)
        busiest = by_rank[by_rank.sum(axis=1).argmax()]
        found.append((np.minimum(busiest, tokens).sum() + excess, (busiest > 0).sum()))
    visited, distinct = np.mean(found, axis=0)
    return float(visited), float(distinct)


def row_hardware(row: Row, fitted: Constants | None = None, common: Shared | None = None) -> Hardware:
    """The hardware of a row; its experts are loaded as the rows' source does, by exponent 1.01 for latent attention's family."""
    scenario = scenario_of(row.setting)
    shape, ranks = model(scenario.model), memory.expert_ranks(scenario)

    def load(tokens: float) -> tuple[Array, Array]:
        alpha = 1.01 if shape.is_mla else 1.2
        visits, distinct = _power_law(shape.experts, shape.experts_per_token, int(tokens), ranks, alpha)
        if shape.is_mla and ranks > 1:
            visits += TIED * (tokens * shape.experts_per_token - visits)
        return np.array([visits]), np.array([distinct])

    return Hardware(scenario, fitted or constants(gpu(scenario.gpu)), common, load)


def row_parts(hard: Hardware, row: Row) -> dict[str, float]:
    """Seconds of each term of the row's step."""
    linear, moe, reduce_, head, fixed = hard.base(row.tokens, row.sampled)
    return {
        "linear": linear,
        "experts": moe,
        "all_reduce": reduce_,
        "head": head,
        "fixed": fixed,
        "attention_prefill": hard.attention_prefill(
            row.prefill_seqs, row.prefill_tokens, row.prefill_pairs, row.prefill_context
        ),
        "attention_decode": hard.attention_decode(row.decode_seqs, row.decode_context),
    }


def predict(rows: Iterable[Row]) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Predicted ms of each row."""
    cache: dict[object, Hardware] = {}
    out = []
    for row in rows:
        hard = cache.get(row.setting)
        if hard is None:
            hard = cache[row.setting] = row_hardware(row)
        out.append(sum(row_parts(hard, row).values()) * 1e3)
    return np.array(out)


# --- real servers
RUN_METRICS = ("ttft", "tpot", "e2e")


@dataclass(frozen=True, slots=True)
class Compared:
    """One figure of a real run beside the simulated one, in s."""

    run: str
    metric: str
    statistic: str
    real: float
    simulated: float

    @property
    def error(self) -> float:
        """simulated / real - 1."""
        return self.simulated / self.real - 1


def model_name(path: str) -> str:
    """The catalogue's name for a Hugging Face path. SimError("unknown_model") if there is none."""
    name = path.rstrip("/").rsplit("/", 1)[-1]
    for alias, known in MODELS.items():
        name = name.replace(alias, known)
    found = [known for known in models() if name.lower().startswith(known.lower())]
    if not found:
        return model(name).name  # raises, and lists those there are
    return max(found, key=len)


OTHER_CARDS = {"H100-SXM": ("pcie", "nvl"), "A100-80GB": ("40gb",)}
"""What the name of a card holds that shares its chip with one of the catalogue and has another memory."""


def gpu_name(text: str) -> str:
    """The catalogue's name for what a driver or a file calls a GPU. SimError("unknown_gpu") if there is none."""
    plain = re.sub(r"[^a-z0-9]", "", text.lower().replace("geforce", "").replace("nvidia", ""))
    for name in gpus():
        if re.sub(r"[^a-z0-9]", "", name.lower()) in plain:
            return name
    for word, name in {"h100": "H100-SXM", "a100": "A100-80GB", "rtxpro6000": "RTX-PRO-6000", "l40s": "L40S"}.items():
        if word in plain and not any(other in plain for other in OTHER_CARDS.get(name, ())):
            return name
    return gpu(text).name  # raises, and lists those there are


def read_run(directory: Path) -> tuple[Scenario, Requests, dict[str, Array], int | None]:
    """A recorded server run: (scenario, requests, measured latencies in s, blocks incl. the null block if recorded).

    Needs requests.csv and meta.json; the GPU's name may stand in meta.json, config.json or the directory's name.
    """
    directory = Path(directory)
    try:
        meta = json.loads((directory / "meta.json").read_text(encoding="utf-8-sig"))
        engine = {ALIASES.get(k := str(key).lstrip("-").replace("-", "_"), k): _number(value) for key, value in meta["engine_kwargs"].items()}
        with (directory / "requests.csv").open(encoding="utf-8-sig", newline="") as file:
            wanted = ["arrival", "prompt", "output", *(f"{name}_s" for name in RUN_METRICS)]
            lines = [{name: float(line[name] or "nan") for name in wanted} for line in csv.DictReader(file)]
        lines.sort(key=lambda line: line["arrival"])
        columns = {name: np.array([line[name] for line in lines]) for name in lines[0]}
        requests = Requests.of(columns["arrival"], columns["prompt"].astype(int), columns["output"].astype(int))
        measured = {name: columns[name + "_s"] for name in RUN_METRICS}
        cache, device = meta.get("kv_cache") or {}, (meta.get("hardware") or {}).get("device_name", "")
        if not device and (directory / "config.json").exists():
            device = json.loads((directory / "config.json").read_text(encoding="utf-8-sig"))["nodes"][0]["instances"][0]["hardware"]
        named = str(engine.get("model") or meta["model"])
        blocks = int(cache["num_gpu_blocks"]) if cache.get("num_gpu_blocks") else None
    except (OSError, KeyError, ValueError, IndexError, TypeError, AttributeError) as error:
        raise SimError("run_files", f"{directory}: {error!r}; a run is a directory with requests.csv (arrival, prompt, output, "
                       "ttft_s, tpot_s, e2e_s) and meta.json (engine_kwargs)", reason=repr(error)) from None
    shape = model(model_name(named))
    quantisation = f"{engine.get('quantization') or ''} {named}".lower()
    longest = int((columns["prompt"] + columns["output"]).max()) + 1
    scenario = Scenario(
        model=shape.name, gpu=gpu_name(device or directory.name.split("_")[0]),
        weights="fp8" if "fp8" in quantisation else "bf16",
        kv_cache_dtype="fp8" if "fp8" in str(engine.get("kv_cache_dtype") or "") else "auto",
        tensor_parallel_size=engine.get("tensor_parallel_size") or 1,
        data_parallel_size=engine.get("data_parallel_size") or 1,
        enable_expert_parallel=bool(engine.get("enable_expert_parallel")), link="pcie",
        gpu_memory_utilization=cache.get("gpu_memory_utilization") or engine.get("gpu_memory_utilization") or 0.9,
        max_num_seqs=engine.get("max_num_seqs") or 256, max_num_batched_tokens=engine.get("max_num_batched_tokens") or 2048,
        max_model_len=engine.get("max_model_len") or max(longest, min(shape.max_position, 8192)),
        block_size=cache.get("block_size") or 16, enable_prefix_caching=True, lengths="fixed", arrival="trace",
        async_scheduling=engine.get("async_scheduling") is not False, expert_skew=SERVED_SKEW)
    return scenario, requests, measured, blocks


ALIASES = {"tp": "tensor_parallel_size", "dp": "data_parallel_size", "ep": "enable_expert_parallel"}
"""Short spellings of engine arguments."""


def _number(value: Any) -> Any:
    """A number that stands as text, also with vLLM's k and M; other values as they are."""
    try:
        return human_int(value) if isinstance(value, str) else value
    except ValueError:
        try:
            return float(value)
        except ValueError:
            return value


SERVED_SKEW = 0.5
"""Zipf exponent that stands for the routing of real text."""


def replay_run(directory: Path) -> tuple[dict[str, Array], dict[str, Array]]:
    """(measured, simulated) TTFT, TPOT and E2E in s of each request of a recorded run, with the KV pool matched."""
    scenario, requests, measured, blocks = read_run(directory)
    run = simulate(scenario, requests, num_gpu_blocks=blocks)
    early = run.arrival - taken_up(run)
    latencies = run.latencies()
    for metric in ("ttft", "e2e"):
        latencies[metric] = latencies[metric] + early[run.status == FINISHED]
    return measured, latencies


def taken_up(run: Run) -> Array:
    """[requests] s from which an engine's own records count, in the simulator's time.

    vLLM stamps a request as queued when the engine core reads its inbox, which is between two steps: who comes during a
    step is stamped at its end (the recorded queue times are microseconds for it). With async scheduling the next step
    has been scheduled by then, and it joins the one after; here it joins the next one. So what is recorded for it is
    what happens here from the start of the step that it comes in.
    """
    taken: Array = run.arrival.copy()
    for replica in range(run.scenario.data_parallel_size):
        mine, here = np.flatnonzero(run.ticks.replica == replica), np.flatnonzero(run.replica == replica)
        if not len(mine):
            continue
        start, end = run.ticks.start[mine], run.ticks.start[mine] + run.ticks.duration[mine]
        step = np.searchsorted(start, taken[here], side="left") - 1
        inside = (step >= 0) & (end[step] > taken[here])
        taken[here[inside]] = (start if run.scenario.async_scheduling else end)[step[inside]]
    return taken


def curves(directory: Path) -> dict[str, dict[str, list[float]]]:
    """Quantiles 0, 2, ..., 100 % of each metric: {"ttft": {"real": [...], "simulated": [...]}, ...}, in s."""
    measured, ours = replay_run(directory)
    at = np.linspace(0, 1, 51)
    return {
        metric: {
            "real": np.round(np.quantile(measured[metric], at), 5).tolist(),
            "simulated": np.round(np.quantile(ours[metric], at), 5).tolist(),
        }
        for metric in RUN_METRICS
    }


def compare_run(directory: Path) -> list[Compared]:
    """Mean, P50 and P99 of a recorded run's TTFT, TPOT and E2E beside the simulator's."""
    measured, ours = replay_run(directory)
    out = []
    for metric in RUN_METRICS:
        both = np.isfinite(measured[metric]) & np.isfinite(ours[metric])  # a failed request has no latency, one token no TPOT
        for name, of in (("mean", np.mean), ("P50", np.median), ("P99", lambda v: np.quantile(v, 0.99))):
            real, simulated = (float(of(values[metric][both])) if both.any() else math.nan for values in (measured, ours))
            out.append(Compared(Path(directory).name, metric, name, real, simulated))
    return out


# --- served latency under fixed concurrency
@dataclass(frozen=True, slots=True)
class Served:
    """One row of served_latency.csv and what the simulator makes of it (ms; nan with the reason if it cannot)."""

    system: str
    model: str
    isl: int
    osl: int
    concurrency: int
    ttft: float
    tpot: float
    our_ttft: float
    our_tpot: float
    reason: str = ""


ROUNDS = 5
"""Requests of each client; in the first round all come at once."""


def clients(many: int, isl: int, osl: int, shortest: float) -> Requests:
    """`many` clients that each send a request when their last is answered; lengths vary from `shortest` to 1 of isl, osl."""
    random = np.random.default_rng(11)
    count = many * ROUNDS
    after = np.arange(count) - many
    return Requests.of(
        np.where(after < 0, 0.0, np.inf), np.maximum(1, (isl * random.uniform(shortest, 1.0, count)).astype(int)),
        np.maximum(1, (osl * random.uniform(shortest, 1.0, count)).astype(int)), after=np.maximum(after, -1))


def serve(line: Mapping[str, str]) -> Served:
    """Simulate one row: `concurrency` clients, each waiting for its answer.

    How the rows were made is not recorded. Inferred from them, so that the error over them is no blind test: rows
    without a version vary in length from 80 to 100 %, the others are of one length; tp_size counts all GPUs.
    """
    try:
        isl, osl, many = _whole(line["isl"]), _whole(line["osl"]), _whole(line["batch_size"])
        name = line["model_path"].rsplit("/", 1)[-1]
        real = (float(line["silicon_ttft_ms"] or "nan"), float(line["silicon_tpot_ms"] or "nan"))
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise SimError("served_row", f"a row of served latency cannot be read: {error!r}", reason=repr(error)) from None
    nan = float("nan")
    try:
        precision = PRECISIONS.get(line["precision"])
        if precision is None:
            raise SimError("precision", f"precision {line['precision']!r}")
        if not all(map(math.isfinite, real)):
            raise SimError("served_blank", "no measured TTFT or TPOT")
        if _whole(line.get("pp_size") or "1") > 1:
            raise SimError("pp", "pipeline parallelism is not modelled")
        tp, ep = _whole(line.get("tp_size") or "1"), _whole(line.get("moe_ep_size") or "1")
        if line.get("attention_dp_size"):  # tp_size counts the GPUs, which data-parallel attention divides
            dp = _whole(line["attention_dp_size"])
            tp = max(1, tp // dp)
        else:  # experts on more ranks than a replica has
            dp = max(1, _whole(line.get("moe_tp_size") or "1") * ep // tp)
        scenario = Scenario(
            model=model_name(line["model_path"]), gpu=SYSTEMS[line["system"]], weights=precision,
            tensor_parallel_size=tp, data_parallel_size=dp, enable_expert_parallel=ep > 1,
            arrival="closed", num_clients=many, duration_s=86_400.0, max_model_len=isl + osl + 256, max_num_seqs=1024,
            max_num_batched_tokens=8192, enable_prefix_caching=False, kv_cache_dtype="fp8" if precision == "int4" else "auto",
            gpu_memory_utilization=0.92, expert_skew=SERVED_SKEW)
        latencies = simulate(scenario, clients(many, isl, osl, 1.0 if line.get("backend_version") else 0.8)).latencies()
    except (SimError, KeyError, ValueError) as error:
        return Served(line.get("system", "?"), name, isl, osl, many, *real, nan, nan, str(error)[:90])
    return Served(line["system"], name, isl, osl, many, *real,
                  float(np.mean(latencies["ttft"])) * 1e3, float(np.mean(latencies["tpot"])) * 1e3)


# --- the command
def command(subparsers: Any) -> None:
    """Add `validate`."""
    parser = subparsers.add_parser("validate", help="compare with measured step times, real servers, served latency",
                                   description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("steps", nargs="?", type=Path, help="steps.csv")
    parser.add_argument("--median", type=float, help="exit 1 if the median of |predicted/measured - 1| is above")
    parser.add_argument("--p90", type=float, help="exit 1 if its 90th percentile is above")
    parser.add_argument("--runs", nargs="+", type=Path, metavar="DIR", help="directories with requests.csv and meta.json")
    parser.add_argument("--served", type=Path, metavar="CSV", help="served_latency.csv")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all of it there (sim/evidence.json)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """What `validate` does; the exit status."""
    if not (args.steps or args.runs or args.served):
        raise SimError("validate_nothing", "name a steps.csv, or --runs DIR..., or --served FILE")
    if args.json:
        held(args.json)
    results: dict[str, Any] = {}
    status = 0
    if args.steps:
        results["steps"] = steps_table(args.steps)
        status = _print_steps(results["steps"], args.median, args.p90)
    if args.runs:
        results["runs"] = [compared for directory in args.runs for compared in compare_run(directory)]
        _print_runs(results["runs"])
        results["curves"] = {directory.name: curves(directory) for directory in args.runs}
    if args.served:
        results["served"] = _served(args.served)
        _print_served(results["served"])
    record(args.json, results)
    return status


def steps_table(path: Path) -> dict[str, Any]:
    """Errors over a steps.csv: rows read, rows that fit in memory, and groups with median and p90."""
    rows = read_steps(path)
    kept = [row for row in rows if fits_in_memory(row)]
    if not kept:
        raise SimError("steps_none_fit", f"none of the {len(rows)} rows of {path} fits in the memory of its GPUs")
    predicted = predict(kept)
    measured = np.array([row.ms for row in kept])
    error = np.abs(predicted / measured - 1)
    groups: list[dict[str, Any]] = []

    def group(system: str, phase: str, mask: Any) -> None:
        if mask.any():
            groups.append({"system": system, "phase": phase, "rows": int(mask.sum()), "median": float(np.median(error[mask])),
                           "p90": float(np.quantile(error[mask], 0.9))})

    systems, phases = np.array([row.system for row in kept]), np.array([row.phase for row in kept])
    for system in sorted(set(systems)):
        for phase in sorted(set(phases)):
            group(system, phase, (systems == system) & (phases == phase))
        group(system, "all", systems == system)
    for name in sorted({row.model for row in kept}):
        group(name, "model", np.array([row.model == name for row in kept]))
    group("all", "all", np.ones(len(kept), bool))
    points = [[row.system, row.phase, row.model, round(row.ms, 3), round(float(p), 3)] for row, p in zip(kept, predicted, strict=True)]
    return {"read": len(rows), "fit": len(kept), "groups": groups, "points": points}


def _print_steps(table: dict[str, Any], median: float | None, p90: float | None) -> int:
    print(f"{table['read']} rows, of which {table['fit']} fit in memory; |predicted/measured - 1|:")
    print(f"{'system':16} {'phase':14} {'rows':>5} {'median':>8} {'p90':>8}")
    for row in table["groups"]:
        print(f"{row['system']:16} {row['phase']:14} {row['rows']:5} {row['median']:8.1%} {row['p90']:8.1%}")
    whole = table["groups"][-1]
    missed = [f"{name} {whole[name]:.1%} is above {limit:.1%}" for name, limit in (("median", median), ("p90", p90))
              if limit is not None and not whole[name] <= limit]
    for line in missed:
        print("MISSED:", line)
    return 1 if missed else 0


def _print_runs(compared: list[Compared]) -> None:
    print(f"{'run':36} {'metric':6} {'':5} {'real':>10} {'simulated':>10} {'error':>8}")
    for c in compared:
        print(f"{c.run:36} {c.metric.upper():6} {c.statistic:5} {c.real * 1e3:8.1f}ms {c.simulated * 1e3:8.1f}ms {c.error:8.1%}")


def _served(path: Path) -> list[Served]:
    with Path(path).open(encoding="utf-8-sig", newline="") as file:
        return [serve(line) for line in csv.DictReader(file)]


def _print_served(rows: list[Served]) -> None:
    can = [row for row in rows if not row.reason]
    print(f"{len(rows)} rows, of which {len(can)} can be modelled; |predicted/measured - 1|:")
    print(f"{'system':10} {'model':30} {'rows':>5} {'TPOT med':>9} {'p90':>7} {'TTFT med':>9} {'p90':>7}")
    keys = [*sorted({(row.system, row.model) for row in can}), *([("all", "all")] if can else [])]
    for key in keys:
        some = [row for row in can if key[0] == "all" or (row.system, row.model) == key]
        tpot = np.array([abs(row.our_tpot / row.tpot - 1) for row in some])
        ttft = np.array([abs(row.our_ttft / row.ttft - 1) for row in some])
        print(f"{key[0]:10} {key[1]:30} {len(some):5} {np.median(tpot):9.1%} {np.quantile(tpot, .9):7.1%} "
              f"{np.median(ttft):9.1%} {np.quantile(ttft, .9):7.1%}")
    for reason, count in Counter(row.reason for row in rows if row.reason).most_common():
        print(f"cannot: {count:4} rows: {reason}")
