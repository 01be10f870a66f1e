"""The lesson's two experiments (its section 2.3.7) come out of the simulator, and what does not is known."""

from functools import cache

import pytest

from sim.engine import simulate
from sim.presets import presets


@cache
def run(name, seed=7, **changes):
    return simulate(presets()[name].scenario.but(seed=seed, **changes))


def gauge(run):
    """Mean of vLLM's gauge num_requests_waiting, which does not know who comes in the middle of a step."""
    ticks = run.ticks
    return float((ticks.waiting * ticks.duration).sum() / ticks.duration.sum())


@pytest.mark.parametrize("seed", [7, 1])
def test_experiment_1_more_seats_empty_the_queue(seed):
    before, after = run("lesson_exp1_64", seed), run("lesson_exp1_256", seed)
    b, a = before.summary(), after.summary()
    assert gauge(before) >= 190 and gauge(after) <= 10
    assert b.gpu_compute == pytest.approx(0.55, abs=0.04)
    assert a.qps / b.qps == pytest.approx(1.7, abs=0.1)
    assert b.queue_mean == pytest.approx(0.250, rel=0.2)
    assert a.queue_mean == pytest.approx(0.040, rel=0.5)
    assert a.gpu_compute == pytest.approx(0.92, abs=0.04)
    assert not b.preemptions and not a.preemptions


@pytest.mark.parametrize("seed", [7, 1, 2, 3])
def test_experiment_2_too_many_seats_for_the_pool(seed):
    before, after = run("lesson_exp2_256", seed).summary(), run("lesson_exp2_512", seed).summary()
    assert before.preemptions == 0 and after.preemptions > 100 and after.swapped_blocks > 1000
    assert after.kv_max > 0.99
    assert after.e2e_p99 / before.e2e_p99 == pytest.approx(1.3, abs=0.1)
    assert after.qps < 1.05 * before.qps
    recompute = run("lesson_exp2_512_recompute", seed).summary()
    assert recompute.e2e_p99 / before.e2e_p99 == pytest.approx(1.3, abs=0.1) and not recompute.swapped_blocks
    fewer = run("lesson_exp2_256", seed, max_num_seqs=128).summary()
    assert fewer.e2e_p99 > before.e2e_p99 and fewer.qps < before.qps  # 256 is the sweet spot
