"""Latency against load: one server and one kind of request, offered from a trickle to more than can be completed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from sim.engine import simulate
from sim.results import Run
from sim.scenario import SETTINGS, Scenario
from sim.workload import draw, mean_factor

LOADS = (0.1, 0.2, 0.35, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2)
"""Shares of the capacity at which a curve is measured."""
KNEE = 3.0
"""A curve has its knee where P99 passes this multiple of P99 at the lightest load."""
_DURATION_S = 60.0
_REQUESTS = 5000  # of one point at most: fast servers come to it before the duration ends


@dataclass(frozen=True, slots=True)
class Point:
    """One load: requests completed a second while it lasted, and the P99 end-to-end latency of all of them, s."""

    qps: float
    e2e_p99: float


def curve(scenario: Scenario, most_ticks: float = inf) -> list[Point]:
    """The scenario at each of LOADS, lightest first, as shares of what continuous batching can complete.

    most_ticks: as `simulate` takes it, of each run. Raises SimError where the scenario cannot run.
    """
    most = capacity(scenario.but(batching="continuous"), most_ticks)
    runs = [simulate(offered(scenario, share * most), most_ticks=most_ticks) for share in LOADS]
    return [Point(min(_completed(run), _arrived(run)), run.summary().e2e_p99) for run in runs]


def capacity(scenario: Scenario, most_ticks: float = inf) -> float:
    """What the server completes of these requests while more of them wait than it has seats, req/s.

    Raises SimError where the scenario cannot run.
    """
    return _completed(simulate(flood(scenario), most_ticks=most_ticks))


def _completed(run: Run) -> float:
    """Completions a second, of the middle three fifths: before, the batch is not yet full; after them it runs empty."""
    done = np.sort(run.finish[np.isfinite(run.finish)])
    if not len(done):
        return 0.0
    begin, end = len(done) // 5, 4 * len(done) // 5
    span = float(done[end] - done[begin])
    return (end - begin) / span if span else len(done) / float(done[-1])  # very few, or a batch that left together


def _arrived(run: Run) -> float:
    """Arrivals a second: more cannot be completed, whatever the lumps in which batches that leave together finish."""
    times = run.arrival[np.isfinite(run.arrival)]
    return len(times) / max(float(times.max(initial=0.0)), 1e-6)


def flood(scenario: Scenario) -> Scenario:
    """A run with more requests than seats to its end: recorded traffic all at once, other from users who do not pause."""
    if scenario.arrival == "trace":
        return scenario.but(rate_scale=_bounded("rate_scale", float("inf")))
    seats = scenario.max_num_seqs * scenario.data_parallel_size
    return scenario.but(
        arrival="closed", num_clients=int(_bounded("num_clients", 2 * seats)), think_time_s=0.0,
        num_requests=min(40 * seats, 4 * _REQUESTS), duration_s=3600.0,
    )


def offered(scenario: Scenario, rate: float) -> Scenario:
    """The same requests arriving at `rate` req/s on average, whatever the server makes of it.

    Recorded traffic is replayed faster or slower; users who wait for their answers become a stream (Poisson), since
    they slow down with the server; a spike or ramp keeps its shape.
    """
    if scenario.arrival == "trace":
        times = draw(scenario).arrival
        recorded = len(times) / max(float(times[-1]) * scenario.rate_scale, 1e-6)
        return scenario.but(rate_scale=_bounded("rate_scale", rate / recorded))
    return scenario.but(
        arrival="poisson" if scenario.arrival == "closed" else scenario.arrival, num_requests=_REQUESTS,
        request_rate=_bounded("request_rate", round(rate / mean_factor(scenario), 2)), duration_s=_DURATION_S,
    )


def knee(curve: Sequence[Point]) -> Point:
    """The last load, lightest first, before P99 end-to-end passes KNEE times its value at the lightest."""
    last = curve[0]
    for point in curve:
        if point.e2e_p99 > KNEE * curve[0].e2e_p99:
            break
        last = point
    return last


def _bounded(field: str, value: float) -> float:
    setting = SETTINGS[field]
    assert setting.low is not None and setting.high is not None
    return min(max(value, setting.low), setting.high)
