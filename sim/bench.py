"""How fast the engine is, beside the naive scheduler, in one process: `python -m sim bench`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from importlib import import_module
from statistics import median
from time import process_time
from typing import Any

from sim import memory, sweep, workload
from sim.engine import simulate
from sim.scenario import Scenario, SimError
from sim.step_time import StepTime

_BASE = Scenario(enable_prefix_caching=False)  # 60 s x 30 req/s, 512 in, 256 out, 256 seats, budget 8192
WORKLOADS: dict[str, Scenario] = {
    "1 live re-run, 30 req/s": _BASE,
    "2 60 req/s on 64 seats": _BASE.but(request_rate=60.0, max_num_seqs=64),
    "3 starved pool": _BASE.but(request_rate=40.0, num_gpu_blocks_override=2200, max_model_len=16_384),
    "4 1 req/s": _BASE.but(request_rate=1.0),
    "5 20,000 requests": _BASE.but(request_rate=40.0, duration_s=520.0, num_requests=20_000),
    "5a 2,000 requests": _BASE.but(request_rate=40.0, duration_s=60.0, num_requests=2_000),
    "6 prefix caching": _BASE.but(
        enable_prefix_caching=True, prompt_tokens=256, system_prompt_tokens=256, num_system_prompts=8
    ),
}
"""What is timed: the traffic is drawn before the clock starts, for both."""


def measure(rounds: int, naive: bool, report: Callable[[str], None]) -> list[dict[str, Any]]:
    """One row a workload: ticks, requests, preemptions, ms and us/tick (medians of CPU time), ratio to the naive one.

    Both run in turn, so that a machine whose speed drifts slows both. The naive one is read from tests/, and its
    20,000 requests run once: they take a minute.
    """
    rows = []
    for name, scenario in WORKLOADS.items():
        requests, blocks = workload.draw(scenario), memory.plan(scenario).num_gpu_blocks
        step_time = StepTime(scenario)
        ours: list[float] = []
        theirs: list[float] = []
        run = simulate(scenario, requests, step_time=step_time, num_gpu_blocks=blocks)
        for i in range(rounds):
            begun = process_time()
            run = simulate(scenario, requests, step_time=step_time, num_gpu_blocks=blocks)
            ours.append(process_time() - begun)
            if naive and (i == 0 or (len(requests) < 10_000 and i < 3)):
                reference_scheduler = import_module("tests.reference_scheduler")
                begun = process_time()
                reference_scheduler.simulate(scenario, requests, step_time=step_time, num_gpu_blocks=blocks)
                theirs.append(process_time() - begun)
        ticks = len(run.ticks.start)
        row: dict[str, Any] = {
            "workload": name,
            "requests": len(requests),
            "ticks": ticks,
            "preemptions": int(run.preemptions.sum()),
            "ms": median(ours) * 1e3,
            "us_per_tick": median(ours) / ticks * 1e6,
            "naive_ms": median(theirs) * 1e3 if theirs else None,
            "ratio": median(theirs) / median(ours) if theirs else None,
        }
        rows.append(row)
        report(_line(row))
    return rows


def _line(row: dict[str, Any]) -> str:
    naive = f"{row['naive_ms']:>10.0f} {row['ratio']:>7.1f}" if row["ratio"] else f"{'-':>10} {'-':>7}"
    return (
        f"{row['workload']:<26} {row['requests']:>8} {row['ticks']:>7} {row['preemptions']:>6} {row['ms']:>8.1f}"
        f" {row['us_per_tick']:>8.2f} {naive}"
    )


def measure_sweep() -> dict[str, Any]:
    """64 runs of workload 1 over both budgets, CPU time in s."""
    grid = [
        _BASE.but(max_num_seqs=seqs, max_num_batched_tokens=tokens)
        for seqs in (16, 32, 64, 96, 128, 192, 256, 512)
        for tokens in (512, 1024, 2048, 3072, 4096, 6144, 8192, 16_384)
    ]
    begun = process_time()
    done = list(sweep.sweep(grid))
    return {"runs": len(done), "failed": sum(isinstance(x, SimError) for _, x in done), "cpu_s": process_time() - begun}


def command(subparsers: Any) -> None:
    """Adds `bench` to the shell."""
    parser = subparsers.add_parser("bench", help="time the engine beside the naive scheduler")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--rounds", type=int, default=9, help="runs of each workload, of which the median counts")
    parser.add_argument("--no-naive", dest="naive", action="store_false", help="leave the naive scheduler out")
    parser.add_argument("--sweep", action="store_true", help="time a sweep of 64 runs instead")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    if args.sweep:
        result = measure_sweep()
        print(json.dumps(result) if args.json else "{runs} runs, {failed} failed: {cpu_s:.2f} s CPU".format(**result))
        return 0
    if args.json:
        print(json.dumps(measure(args.rounds, args.naive, lambda line: None)))
        return 0
    print(
        f"{'workload':<26} {'requests':>8} {'ticks':>7} {'preem.':>6} {'ms':>8} {'us/tick':>8} {'naive ms':>10} {'ratio':>7}"
    )
    rows = {
        row["workload"][:2].strip(): row
        for row in measure(args.rounds, args.naive, lambda line: print(line, flush=True))
    }
    print(f"us/tick, 20,000 requests against 2,000: {rows['5']['us_per_tick'] / rows['5a']['us_per_tick']:.2f}")
    print(f"prefix caching against none: {rows['6']['ms'] / rows['1']['ms']:.2f}")
    sys.stdout.flush()
    return 0
