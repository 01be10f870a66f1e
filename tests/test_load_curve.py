"""Latency against load: what is offered, what a server can complete, where the curve bends."""

from __future__ import annotations

import pytest

from sim.engine import simulate
from sim.load_curve import KNEE, LOADS, capacity, curve, flood, knee, offered
from sim.scenario import Scenario
from sim.workload import draw

SMALL = Scenario(prompt_tokens=256, output_tokens=64, prompt_cv=0.5, output_cv=0.5, max_num_seqs=16, max_num_batched_tokens=1024)
KINDS = {
    "stream": SMALL, "bursty": SMALL.but(arrival="bursty", burst_cv=2.0), "spike": SMALL.but(arrival="spike"),
    "ramp": SMALL.but(arrival="ramp"), "users": SMALL.but(arrival="closed", num_clients=3, think_time_s=9.0, num_requests=20),
    "chats": SMALL.but(chat_turns=3), "recorded": SMALL.but(arrival="trace", duration_s=300.0, rate_scale=3.0),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_share_of_the_capacity_is_offered_whatever_the_traffic(kind: str) -> None:
    scenario = KINDS[kind]
    most = capacity(scenario)
    requests = draw(at := offered(scenario, most / 2))
    last = at.duration_s / at.rate_scale if kind == "recorded" else at.duration_s
    assert len(requests) / last == pytest.approx(most / 2, rel=0.2)
    assert simulate(at).summary().waiting_mean < simulate(offered(scenario, 2 * most)).summary().waiting_mean


def test_a_flooded_server_always_has_somebody_waiting_and_completes_what_it_can() -> None:
    run = simulate(flood(SMALL))
    middle = run.ticks.waiting[len(run.ticks) // 10 : -len(run.ticks) // 5]
    assert middle.min() > 0
    most = capacity(SMALL)
    assert simulate(offered(SMALL, 0.8 * most)).summary().waiting_mean < 5
    assert simulate(offered(SMALL, 2 * most)).summary().qps == pytest.approx(most, rel=0.1)


def test_the_knee_is_the_last_load_before_p99_takes_off() -> None:
    found = curve(SMALL)
    at = found.index(knee(found))
    assert 0 < at < len(found) - 1
    assert found[at].e2e_p99 <= KNEE * found[0].e2e_p99 < found[at + 1].e2e_p99
    assert found[at].qps < 1.1 * capacity(SMALL)


@pytest.mark.parametrize("scenario", [
    SMALL.but(arrival="closed", num_clients=1, num_requests=1), SMALL.but(arrival="trace", trace="azure2023_code", duration_s=10.0),
    SMALL.but(model="Llama-3.1-70B", gpu="A10G", tensor_parallel_size=8, output_tokens=8000, max_model_len=16_384),
])
@pytest.mark.parametrize("batching", ["static", "continuous"])
def test_no_more_is_completed_than_is_offered_however_few_or_lumpy_the_requests_are(scenario: Scenario, batching: str) -> None:
    points = curve(scenario.but(batching=batching), 20_000)
    most = capacity(scenario.but(batching="continuous"), 20_000)
    assert len(points) == len(LOADS) and all(0 <= point.qps <= 1.35 * share * most for share, point in zip(LOADS, points, strict=True))
