"""Run: what happened, per tick and per request. Summary: the figures a page shows.

Definitions are vLLM's own: TTFT from arrival, queue time to the first schedule, TPOT = (last - first token) / (output - 1)
and 0 for one token, ITL one sample for every later token, gauges at the end of a step (after frees).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from sim.requests import Requests
from sim.scenario import Scenario, SimError

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

FINISHED, REFUSED, UNFINISHED, NEVER_ISSUED = range(4)
"""What became of a request (`Run.status`)."""


@dataclass(frozen=True, eq=False)
class Ticks:
    """One entry a tick (engine step); several replicas together are sorted by start. Lengths in tokens, times in s.

    `running`, `waiting` and `free_blocks` are taken after schedule(), `free_end` after the frees of finished requests.
    """

    start: Floats
    duration: Floats
    running: Ints  # seats held
    waiting: Ints
    decode_seqs: Ints
    decode_context: Ints  # sum of their computed lengths, this tick's token included
    prefill_seqs: Ints
    prefill_tokens: Ints
    prefill_pairs: Ints  # sum over chunks of n new tokens after c computed ones: n*c + n*(n+1)/2
    prefill_context: Ints  # sum over chunks of c + n
    sampled: Ints  # rows through the head: decodes and prefills that ended
    free_blocks: Ints
    free_end: Ints
    preempted: Ints
    admitted: Ints
    finished: Ints
    swapped_blocks: Ints  # out and in
    swap_s: Floats
    replica: Ints

    def __len__(self) -> int:
        return len(self.start)

    @classmethod
    def joined(cls, parts: list[Ticks]) -> Ticks:
        """Several replicas' ticks as one, sorted by start (equal starts: by replica)."""
        if len(parts) == 1:
            return parts[0]
        columns = {f.name: np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(cls)}
        order = np.argsort(columns["start"], kind="stable")
        return cls(**{name: column[order] for name, column in columns.items()})


@dataclass(frozen=True)
class Summary:
    """The figures of a run. Times in s, shares 0..1; nan where nothing was measured.

    Latencies are over finished requests (ITL: over every token), waiting and running are means over wall time.
    """

    qps: float
    output_tok_s: float
    total_tok_s: float
    goodput_qps: float
    ttft_p50: float
    ttft_p90: float
    ttft_p99: float
    ttft_mean: float
    queue_p50: float
    queue_p90: float
    queue_p99: float
    queue_mean: float
    itl_p50: float
    itl_p90: float
    itl_p99: float
    itl_mean: float
    tpot_p50: float
    tpot_p90: float
    tpot_p99: float
    tpot_mean: float
    e2e_p50: float
    e2e_p90: float
    e2e_p99: float
    e2e_mean: float
    gpu_compute: float
    gpu_bandwidth: float
    gpu_busy: float
    waiting_mean: float
    waiting_max: int
    running_mean: float
    running_max: int
    kv_mean: float
    kv_max: float
    preemptions: int
    preempted_requests: int
    preemptions_per_s: float
    recomputed_tokens: int
    swapped_blocks: int
    prefix_hit_rate: float
    finished: int
    refused: int
    unfinished: int
    duration_s: float
    drained: bool
    littles_law: float
    num_gpu_blocks: int
    ticks: int

    def as_dict(self) -> dict[str, Any]:
        """Every figure and its value, in order."""
        return asdict(self)


@dataclass(frozen=True, eq=False)
class Run:
    """A run: per tick (`ticks`) and per request (arrays in the order of `requests`; times in s, nan = it did not happen)."""

    scenario: Scenario
    requests: Requests
    ticks: Ticks
    step_time: Any
    num_gpu_blocks: int  # of one replica, null block included
    arrival: Floats
    first_scheduled: Floats
    first_token: Floats
    finish: Floats
    preemptions: Ints
    cached: Ints  # prompt tokens found in the prefix cache at first admission
    cached_tokens: int  # found in the prefix cache in all admissions, those after a preemption too
    recomputed: Ints  # tokens computed more than once
    generated: Ints
    status: npt.NDArray[np.int8]
    replica: Ints
    gaps: Floats  # s between two tokens where a preemption or a stalled step lay between them
    gap_weights: Ints  # how often each of `gaps` occurred
    steady: Ints  # per tick: tokens whose distance to the one before is just this tick's duration
    queued_s: float  # sum over all requests of the time spent waiting, after preemptions too
    refusals: dict[int, SimError] = field(default_factory=dict)
    stopped: str = ""  # why the run ended before all was done; "" = it drained

    @cached_property
    def duration_s(self) -> float:
        """Wall time from 0 to the end of the last tick."""
        return float((self.ticks.start + self.ticks.duration).max()) if len(self.ticks) else 0.0

    def latencies(self) -> dict[str, Floats]:
        """Per finished request, in order: ttft, queue, tpot, e2e, each in s."""
        ok = self.status == FINISHED
        arrival, first, finish = self.arrival[ok], self.first_token[ok], self.finish[ok]
        later = np.maximum(self.generated[ok] - 1, 1)
        return {
            "ttft": first - arrival,
            "queue": self.first_scheduled[ok] - arrival,
            "tpot": (finish - first) / later,
            "e2e": finish - arrival,
        }

    def itl(self) -> tuple[Floats, Ints]:
        """Inter-token latencies in s, each with the number of tokens that had it."""
        values = np.concatenate([self.ticks.duration, self.gaps])
        weights = np.concatenate([self.steady, self.gap_weights])
        return values[weights > 0], weights[weights > 0]

    def summary(self) -> Summary:
        """The figures of the whole run, nothing cut off at its beginning or end."""
        return self._summary

    @cached_property
    def _summary(self) -> Summary:
        t, s = self.ticks, self.scenario
        wall = self.duration_s
        replicas = max(int(s.data_parallel_size), 1)
        per_s = 1.0 / wall if wall > 0 else 0.0
        ok = self.status == FINISHED
        lat = self.latencies()
        good = (lat["ttft"] <= s.slo_ttft_s) & (lat["tpot"] <= s.slo_tpot_s)
        output = int(self.generated.sum())
        compute, bandwidth, busy = self._utilisation(wall * replicas)
        usable = max(self.num_gpu_blocks - 1, 1)
        used = 1.0 - t.free_blocks / usable
        issued = self.status != NEVER_ISSUED
        served = issued & (self.status != REFUSED)
        waiting_mean = self.queued_s * per_s
        looked_up = int(self.requests.prompt[np.isfinite(self.first_scheduled)].sum())
        figures: dict[str, Any] = {}
        for name in ("ttft", "queue", "tpot", "e2e"):
            figures |= _percentiles(name, lat[name], None)
        figures |= _percentiles("itl", *self.itl())
        preemptions = int(self.preemptions.sum())
        return Summary(
            qps=float(ok.sum()) * per_s,
            output_tok_s=output * per_s,
            total_tok_s=(output + int(self.requests.prompt[np.isfinite(self.first_token)].sum())) * per_s,
            goodput_qps=float(good.sum()) * per_s,
            gpu_compute=compute,
            gpu_bandwidth=bandwidth,
            gpu_busy=busy,
            waiting_mean=waiting_mean,
            waiting_max=int(t.waiting.max(initial=0)),
            running_mean=float((t.running * t.duration).sum()) * per_s,
            running_max=int(t.running.max(initial=0)),
            kv_mean=float((used * t.duration).sum()) * per_s / replicas,
            kv_max=float(used.max(initial=0.0)),
            preemptions=preemptions,
            preempted_requests=int((self.preemptions > 0).sum()),
            preemptions_per_s=preemptions * per_s,
            recomputed_tokens=int(self.recomputed.sum()),
            swapped_blocks=int(t.swapped_blocks.sum()),
            prefix_hit_rate=float(self.cached.sum()) / looked_up if looked_up else 0.0,
            finished=int(ok.sum()),
            refused=int((self.status == REFUSED).sum()),
            unfinished=int((self.status == UNFINISHED).sum()),
            duration_s=wall,
            drained=not self.stopped and not bool((self.status == UNFINISHED).any()),
            littles_law=self._littles_law(wall, int(served.sum())),
            num_gpu_blocks=self.num_gpu_blocks,
            ticks=len(t),
            **figures,
        )

    def _littles_law(self, wall: float, served: int) -> float:
        """Mean queue length counted tick by tick / (arrival rate x mean time in the queue): 1 if the books agree.

        The left side integrates the gauge `waiting`, which is constant between ticks, and adds what it cannot see: a
        request that arrives between two ticks waits for the next.
        """
        if served == 0 or wall <= 0 or self.queued_s <= 0:
            return 1.0
        t = self.ticks
        came = (self.status != NEVER_ISSUED) & (self.status != REFUSED)
        by_gauge = unseen = 0.0
        for replica in range(self.scenario.data_parallel_size):
            mine = t.replica == replica
            start = t.start[mine]
            if not len(start):
                continue
            # A gauge holds until the next tick, which is not always when its own ends: static batching gathers.
            until = np.append(start[1:], start[-1] + t.duration[mine][-1])
            # Not `@`: BLAS adds in an order of the machine, and its threads wait busily.
            by_gauge += float((t.waiting[mine] * (until - start)).sum())
            # Requests that came since wait until the next tick, though the gauge does not know them yet.
            times = self.arrival[came & (self.replica == replica)]
            seen = np.append(start[0], until)[np.searchsorted(start, times)]
            unseen += float(np.maximum(seen - times, 0.0).sum())
        return (by_gauge + unseen) / self.queued_s

    def _utilisation(self, seconds: float) -> tuple[float, float, float]:
        """The three meanings of GPU utilisation: compute, bandwidth, busy (0..1)."""
        t, model = self.ticks, self.step_time
        if not len(t) or seconds <= 0:
            return 0.0, 0.0, 0.0
        busy = float(t.duration.sum()) / seconds
        try:
            compute = float(np.sum(model.compute_seconds(t))) / seconds
            bandwidth = float(np.sum(model.bytes(t))) / (model.peak_bandwidth * seconds)
        except AttributeError:  # a bare clock has no hardware
            return float("nan"), float("nan"), busy
        return compute, bandwidth, busy


def _percentiles(name: str, values: Floats, weights: Ints | None) -> dict[str, float]:
    """P50, P90, P99 and mean. A percentile is a value that occurred: the smallest with at least that share at or below."""
    shares = np.array([0.5, 0.9, 0.99])
    if len(values) == 0:
        p50 = p90 = p99 = mean = float("nan")
    elif weights is None:
        at = np.ceil(shares * len(values)).astype(np.int64) - 1
        p50, p90, p99 = np.partition(values, at)[at]
        mean = values.mean()
    else:
        order = np.argsort(values)
        passed = np.cumsum(weights[order])
        p50, p90, p99 = values[order[np.searchsorted(passed, shares * passed[-1])]]
        mean = (values * weights).sum() / passed[-1]
    return {f"{name}_p50": float(p50), f"{name}_p90": float(p90), f"{name}_p99": float(p99), f"{name}_mean": float(mean)}
