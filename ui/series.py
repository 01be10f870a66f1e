"""From a Run to the lines of a picture: (x, y) arrays, time in s. Every function takes a Run first.

What takes a millisecond is remembered: the baseline A stays while B changes. Shared: never write to it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from sim.results import Run

WINDOWS = 40
STEP_PARTS = {
    "linear": (("linear", "head"), "#5E83C2"),
    "experts": (("experts",), "#9A76C4"),
    "attention": (("attention_prefill", "attention_decode"), "kv"),
    "all_reduce": (("all_reduce",), "#D27B2C"),
    "fixed": (("fixed", "host"), "idle"),
}
"""What a step's time is made of in a picture: terms of `sim.step_time`, colour. Named `settings.term.<part>`."""


def step_parts(step_time: Any, ticks: Any) -> dict[str, Any]:
    """Seconds of each of STEP_PARTS per tick."""
    terms = step_time.terms(ticks)
    return {part: sum(terms[name] for name in names) for part, (names, _) in STEP_PARTS.items()}


def waiting(run: Run) -> tuple[Any, Any]:
    """Requests in the queue, after each step's schedule()."""
    return run.ticks.start, run.ticks.waiting


def running(run: Run) -> tuple[Any, Any]:
    """Seats held, after each step's schedule()."""
    return run.ticks.start, run.ticks.running


def kv(run: Run) -> tuple[Any, Any]:
    """Share of the KV pool in use (0..1), after each step's schedule()."""
    return run.ticks.start, 1.0 - run.ticks.free_blocks / max(run.num_gpu_blocks - 1, 1)


def preemptions(run: Run) -> tuple[Any, Any]:
    """Preemptions so far."""
    return run.ticks.start, np.cumsum(run.ticks.preempted)


def first_preemption(run: Run) -> float:
    """When the first preemption happened; nan if none did."""
    hit = np.flatnonzero(run.ticks.preempted)
    return float(run.ticks.start[hit[0]]) if len(hit) else float("nan")


def windows(run: Run, count: int = WINDOWS) -> Any:
    """count + 1 edges of equal windows over the whole run."""
    return np.linspace(0.0, max(run.duration_s, 1e-9), count + 1)


@lru_cache(maxsize=4)
def utilisation(run: Run, kind: str = "compute", count: int = WINDOWS) -> tuple[Any, Any]:
    """GPU utilisation (0..1) a window: "compute" (FLOP time at attainable peak), "bandwidth" or "busy" (kernels run)."""
    edges, ticks, model = windows(run, count), run.ticks, run.step_time
    if kind == "busy":
        worth = ticks.duration
    elif kind == "compute":
        worth = np.asarray(model.compute_seconds(ticks))
    else:
        worth = np.asarray(model.bytes(ticks)) / model.peak_bandwidth
    # A step's worth is spread over its duration: the integral up to each edge, then differences.
    ends = ticks.start + ticks.duration
    width = np.diff(edges) * max(run.scenario.data_parallel_size, 1)
    if run.scenario.data_parallel_size > 1:
        y = np.histogram(ticks.start + ticks.duration / 2, edges, weights=worth)[0] / width
    else:
        total = np.cumsum(worth)
        corners = np.stack([ticks.start, ends], axis=1).ravel()
        done = np.stack([total - worth, total], axis=1).ravel()
        y = np.diff(np.interp(edges, corners, done)) / width
    return (edges[:-1] + edges[1:]) / 2, np.minimum(y, 1.0)


@lru_cache(maxsize=4)
def latency(run: Run, what: str = "ttft", share: float = 0.99, count: int = WINDOWS) -> tuple[Any, Any]:
    """A percentile of "ttft", "queue", "tpot" or "e2e" in s, over the requests that reached that moment in a window."""
    edges = windows(run, count)
    at = {"ttft": run.first_token, "queue": run.first_scheduled}.get(what, run.finish)
    start = run.first_token if what == "tpot" else run.arrival
    took = at - start
    if what == "tpot":
        took = took / np.maximum(run.generated - 1, 1)
    known = np.isfinite(took)
    at, took = at[known], took[known]
    order = np.lexsort((took, np.searchsorted(edges, at)))
    at, took = at[order], took[order]
    where = np.clip(np.searchsorted(edges, at, side="right") - 1, 0, count - 1)
    first, last = np.searchsorted(where, np.arange(count)), np.searchsorted(where, np.arange(count), side="right")
    size = last - first
    y = np.full(count, np.nan)
    full = size > 0
    y[full] = took[first[full] + np.ceil(share * size[full]).astype(np.int64) - 1]
    return (edges[:-1] + edges[1:]) / 2, y


def ttft_split(run: Run, share: float = 0.99) -> tuple[float, float]:
    """TTFT of the requests around its percentile, split: (queue, prefill) in s, means of the 2% of requests around it."""
    took = run.first_token - run.arrival
    known = np.flatnonzero(np.isfinite(took))
    if not len(known):
        return float("nan"), float("nan")
    order = known[np.argsort(took[known], kind="stable")]
    middle, reach = int(share * (len(order) - 1)), max(len(order) // 100, 0)
    near = order[max(middle - reach, 0) : middle + reach + 1]
    queue = float((run.first_scheduled[near] - run.arrival[near]).mean())
    return queue, float(took[near].mean()) - queue
