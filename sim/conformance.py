"""`python -m sim conformance FILE...`: recorded runs of the real vLLM scheduler, replayed through this engine.

Every field of every step is compared, then what became of each request, then the totals. A step takes 1 s, so that times
are step numbers. Format of the files: gzip JSON with `config`, `requests`, `steps`, `per_request`, `totals`.
"""

from __future__ import annotations

import argparse
import gzip
import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sim.engine import Step, simulate
from sim.evidence import record
from sim.requests import Requests
from sim.results import FINISHED, REFUSED, Run
from sim.scenario import Scenario, SimError


class UnitClock:
    """A step time of 1 s, whatever is in the step."""

    jitter: tuple[float, ...] = ()
    block_bytes = 0

    def decode(self, num_seqs: int, context: int) -> tuple[float, float, float]:
        """(fixed s, s per token, last context this holds for)."""
        return 1.0, 0.0, float("inf")

    def seconds(self, *what: int) -> float:
        """Always 1 s."""
        return 1.0


@dataclass
class Replay:
    """A recorded run through the engine: what was compared, and the first difference ("" = none)."""

    name: str
    steps: int = 0
    values: int = 0
    difference: str = ""
    refused: list[str] = field(default_factory=list)  # with the refusal on: reasons, one a request


def scenario_of(config: dict[str, Any]) -> Scenario:
    """The Scenario of a record's config."""
    return Scenario(
        duration_s=86_400.0,
        max_num_seqs=config["max_num_seqs"],
        max_num_active_seqs=config["max_num_active_seqs"] or 0,
        max_num_batched_tokens=config["max_num_batched_tokens"],
        num_gpu_blocks_override=config["num_gpu_blocks"],
        block_size=config["block_size"],
        max_model_len=config["max_model_len"],
        enable_chunked_prefill=config["enable_chunked_prefill"],
        long_prefill_token_threshold=config["long_prefill_token_threshold"],
        long_prefill_token_threshold_adaptive=config["long_prefill_token_threshold_adaptive"],
        enable_prefix_caching=config["enable_prefix_caching"],
        scheduling_policy=config["policy"],
        watermark=config["watermark"],
        scheduler_reserve_full_isl=config["scheduler_reserve_full_isl"],
        async_scheduling=config["async_scheduling"],
    )


def requests_of(record: dict[str, Any]) -> Requests:
    """The requests of a record, in order of arrival."""
    rows = sorted(record["requests"], key=lambda row: row["arrival_step"])
    number = {row["id"]: i for i, row in enumerate(rows)}

    def segment(name: str) -> Any:
        return ("o", number[name[2:]]) if name.startswith("o:") and name[2:] in number else name

    return Requests.of(
        np.array([row["arrival_step"] for row in rows], np.float64),
        np.array([row["prompt_len"] for row in rows], np.int64),
        np.array([row["output_len"] for row in rows], np.int64),
        priority=np.array([row.get("priority", 0) for row in rows], np.int64),
        prefix=tuple(
            tuple((segment(name), length) for name, length in row.get("prefix") or [["p:" + row["id"], row["prompt_len"]]])
            for row in rows
        ),
        ids=tuple(row["id"] for row in rows),
    )


def replay(path: str | Path) -> Replay:
    """Run one recorded file through the engine and compare everything. Raises OSError, ValueError on a bad file."""
    with gzip.open(path) as file:
        record = json.load(file)
    result = Replay(record["name"])
    scenario, requests = scenario_of(record["config"]), requests_of(record)
    try:
        _compare(record, scenario, requests, result)
        if record["startup_error"]:
            _compare_refusal(record, scenario, requests, result)
    except _Different as difference:
        result.difference = str(difference)
    return result


class _Different(Exception):
    pass


def _compare(record: dict[str, Any], scenario: Scenario, requests: Requests, result: Replay) -> None:
    steps, blocks = record["steps"], record["config"]["num_gpu_blocks"]
    ids = requests.ids or ()
    rejected: dict[int, list[str]] = {}
    for r in np.flatnonzero(requests.prompt >= scenario.max_model_len).tolist():
        rejected.setdefault(int(requests.arrival[r]), []).append(ids[r])

    def same(where: str, ours: Any, theirs: Any) -> None:
        result.values += 1
        if ours != theirs:
            raise _Different(f"{where}: {ours!r}, recorded {theirs!r}")

    def observe(step: Step) -> None:
        number = round(step.start)
        if result.steps == len(steps):
            raise _Different(f"step {number}: one more than recorded")
        theirs = steps[result.steps]
        result.steps += 1
        running, waiting = [ids[r] for r in step.running], [ids[r] for r in step.waiting]
        ours: dict[str, Any] = {
            "step": number,
            "sched": [(ids[r], n) for r, n in step.sched],
            "preempted": [ids[r] for r in step.preempted],
            "admitted": [(ids[r], n) for r, n in step.admitted],
            "finished": [ids[r] for r in step.finished],
            "rejected": rejected.pop(number, []),
            "free": step.free,
            "usage": round(1.0 - step.free / (blocks - 1), 6),
            "nrun": len(running),
            "nwait": len(waiting),
            "crc": zlib.crc32((",".join(running) + "|" + ",".join(waiting)).encode()),
            "free_end": step.free_end,
        }
        if "running" in theirs:
            ours |= {"running": running, "waiting": waiting}
        if "keys" in theirs:
            ours["keys"] = step.keys()
        for name, value in ours.items():
            other = theirs.get(name, [])
            same(f"step {number} {name}", value, list(other.items()) if isinstance(other, dict) else other)
        if unknown := theirs.keys() - ours.keys():
            raise _Different(f"step {number}: not compared: {', '.join(sorted(unknown))}")

    run = simulate(scenario, requests, step_time=UnitClock(), num_gpu_blocks=blocks, refuse=False, observer=observe)
    same("steps", result.steps, len(steps))
    same("stalled", bool(run.stopped), bool(record.get("stalled")))
    _compare_requests(record, run, ids, same)
    # The fast path (nobody watching) must not differ either.
    quick = simulate(scenario, requests, step_time=UnitClock(), num_gpu_blocks=blocks, refuse=False)
    for name in ("start", "running", "waiting", "decode_seqs", "prefill_tokens", "free_blocks", "free_end", "preempted"):
        same(f"unobserved {name}", *_first_difference(getattr(quick.ticks, name), getattr(run.ticks, name)))
    same("unobserved finish", *_first_difference(np.nan_to_num(quick.finish), np.nan_to_num(run.finish)))


def _first_difference(ours: np.ndarray[Any, Any], theirs: np.ndarray[Any, Any]) -> tuple[Any, Any]:
    """(None, None) if equal, else what is there where they first differ."""
    if len(ours) != len(theirs):
        return f"{len(ours)} entries", f"{len(theirs)} entries"
    where = np.flatnonzero(ours != theirs)
    return (None, None) if not len(where) else (f"{ours[where[0]]} at {where[0]}", f"{theirs[where[0]]}")


def _compare_requests(record: dict[str, Any], run: Run, ids: tuple[str, ...], same: Any) -> None:
    def step(time: float, behind: int = 0) -> int | None:
        return None if np.isnan(time) else round(time) - behind

    for r, name in enumerate(ids):
        theirs = record["per_request"][name]
        refused = run.status[r] == REFUSED
        ours = {
            "arrival": round(run.arrival[r]),
            "first_sched": step(run.first_scheduled[r]),
            "first_token": step(run.first_token[r], 1),  # a token of step k is there at its end, k + 1
            "finish": step(run.finish[r], 1),
            "reason": "rejected" if refused else "length" if run.status[r] == FINISHED else None,
            "out": int(run.generated[r]) if run.status[r] == FINISHED else 0,  # the record counts on finishing
            "preemptions": int(run.preemptions[r]),
            "cached": None if np.isnan(run.first_scheduled[r]) else int(run.cached[r]),
        }
        for field_name, value in theirs.items():
            same(f"request {name} {field_name}", ours[field_name], value)
    t = run.ticks
    totals = {
        "finished": int((run.status == FINISHED).sum()),
        "rejected": int((run.status == REFUSED).sum()),
        "unfinished": int((run.status > REFUSED).sum()),
        "preemptions": int(run.preemptions.sum()),
        "scheduled_tokens": int(t.decode_seqs.sum() + t.prefill_tokens.sum()),
        "cached_tokens": run.cached_tokens,
    }
    for field_name, value in record["totals"].items():
        same(f"total {field_name}", totals[field_name], value)


def _compare_refusal(record: dict[str, Any], scenario: Scenario, requests: Requests, result: Replay) -> None:
    """The bare scheduler stalls on this file, and vLLM would not start: the engine refuses what cannot fit, and goes on."""
    run = simulate(scenario, requests, step_time=UnitClock(), num_gpu_blocks=record["config"]["num_gpu_blocks"])
    reasons = [str(reason) for reason in run.refusals.values()]
    theirs = record["startup_error"].split(" See https://")[0]
    result.values += 2
    if not reasons or any(reason != theirs for reason in reasons):
        raise _Different(f"refused with {reasons[:1]!r}, recorded {theirs!r}")
    if not run.summary().drained:
        raise _Different("does not drain though what cannot fit was refused")
    result.refused = reasons


def conformance(paths: Sequence[str], json_file: Path | None = None) -> int:
    """Compare files, print a line for each and the count; 0 if all agree, else 1. `json_file` gets the same and the date."""
    passed, compared = 0, []
    for path in paths:
        try:
            result = replay(path)
        except (OSError, EOFError, zlib.error, ValueError, LookupError, TypeError, AttributeError, SimError) as error:
            result = Replay(path, difference=f"cannot be read: {type(error).__name__}: {error}")
        compared.append(result)
        if result.difference:
            print(f"FAIL  {result.name}: {result.difference}")
            continue
        passed += 1
        refused = f", {len(result.refused)} refused where vLLM would not start" if result.refused else ""
        print(f"ok    {result.name}: {result.steps:,} steps, {result.values:,} values{refused}")
    print(f"{passed} passed, {len(paths) - passed} failed")
    record(json_file, {"conformance": compared})
    return 0 if passed == len(paths) else 1


def command(subparsers: Any) -> None:
    """Adds `conformance` to the command line."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "conformance", help="replay recorded vLLM scheduler runs through the engine and compare every step"
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help="recorded runs (.json.gz)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all of it there (sim/evidence.json)")
    parser.set_defaults(run=lambda arguments: conformance(arguments.files, arguments.json))
