"""What a run's figures mean."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sim.conformance import UnitClock
from sim.engine import simulate
from sim.requests import Requests
from sim.results import FINISHED, NEVER_ISSUED, REFUSED
from sim.scenario import Scenario


def requests(arrival, prompt, output, **more):
    return Requests.of(np.array(arrival, float), np.array(prompt), np.array(output), **more)


def run(s, r, blocks=1000, **more):
    return simulate(s, r, step_time=UnitClock(), num_gpu_blocks=blocks, **more)


PLAIN = Scenario(enable_prefix_caching=False, max_num_seqs=2, max_num_batched_tokens=64, max_model_len=1000)


def test_latencies_of_two_requests_by_hand():
    # One step a second; both prompts fit the first step, answers of 3 and 5 tokens.
    got = run(PLAIN, requests([0.0, 0.0], [10, 10], [3, 5]))
    assert got.first_token.tolist() == [1.0, 1.0]
    assert got.finish.tolist() == [3.0, 5.0]
    s = got.summary()
    assert (s.ttft_p50, s.ttft_p99, s.e2e_p50, s.e2e_p99) == (1.0, 1.0, 3.0, 5.0)
    assert (s.itl_p50, s.tpot_p99, s.queue_mean) == (1.0, 1.0, 0.0)
    assert (s.finished, s.duration_s, s.ticks) == (2, 5.0, 5)
    assert s.qps == pytest.approx(0.4)
    assert s.output_tok_s == pytest.approx(8 / 5)
    assert s.drained and s.gpu_busy == 1.0


def test_one_token_has_tpot_0_and_no_itl():
    s = run(PLAIN, requests([0.0], [10], [1])).summary()
    assert s.tpot_p50 == 0.0
    assert math.isnan(s.itl_p50)


def test_queue_time_counts_to_the_first_schedule_and_littles_law_holds():
    got = run(PLAIN, requests([0.0, 0.0, 0.5], [10, 10, 10], [4, 4, 2]))
    assert got.first_scheduled[2] == 4.0
    assert got.summary().queue_p99 == 3.5
    assert got.summary().littles_law == pytest.approx(1.0)


@pytest.mark.parametrize("mode", [
    {}, {"batching": "static", "static_timeout_s": 5.0}, {"batching": "prefill_first"}, {"data_parallel_size": 3},
    {"arrival": "closed", "num_clients": 90}, {"num_gpu_blocks_override": 2100}, {"num_gpu_blocks_override": 2100, "preemption_mode": "swap"},
    {"batching": "static", "data_parallel_size": 2, "arrival": "closed", "num_clients": 5},
], ids=str)
def test_the_books_agree_in_every_mode(mode):
    got = simulate(Scenario(max_num_seqs=64, request_rate=20.0, duration_s=20.0, **mode)).summary()
    assert got.waiting_mean > 0 and got.littles_law == pytest.approx(1.0)


def test_a_preempted_request_shows_one_long_gap_and_recomputes():
    # Six usable blocks of 16: two requests of 40 + 30 tokens outgrow them.
    got = run(PLAIN.but(max_num_batched_tokens=128), requests([0.0, 0.0], [40, 40], [30, 30]), blocks=8)
    s = got.summary()
    assert s.preemptions == 1 and s.preempted_requests == 1
    assert s.recomputed_tokens > 0
    assert s.itl_p50 == 1.0 and got.gaps.max() > 1.0
    _, weights = got.itl()
    assert weights.sum() == 2 * 29


def test_swapping_moves_blocks_instead_of_recomputing():
    clock = UnitClock()
    clock.block_bytes = 2**20
    s = PLAIN.but(max_num_batched_tokens=128, preemption_mode="swap", swap_space_gib=1.0)
    r = requests([0.0, 0.0], [40, 40], [30, 30])
    got = simulate(s, r, step_time=clock, num_gpu_blocks=8)
    assert got.summary().preemptions == 1
    assert got.summary().recomputed_tokens == 0
    assert got.summary().swapped_blocks > 0
    assert got.ticks.swap_s.sum() == pytest.approx(got.summary().swapped_blocks * 2**20 / 25e9)
    full = simulate(s.but(swap_space_gib=0.0), r, step_time=clock, num_gpu_blocks=8)
    assert full.summary().swapped_blocks == 0 and full.summary().recomputed_tokens > 0


def test_what_cannot_fit_is_refused_at_once_and_the_rest_runs():
    got = run(PLAIN, requests([0.0, 0.0, 0.0], [2000, 90, 10], [5, 50, 5]), blocks=8)
    assert got.status.tolist() == [REFUSED, REFUSED, FINISHED]
    assert got.refusals[0].code == "prompt_too_long"
    assert got.refusals[1].code == "larger_than_pool"
    assert got.summary().drained and got.summary().refused == 2


def test_a_stall_ends_the_run_and_says_so():
    got = run(PLAIN, requests([0.0, 0.0], [90, 10], [50, 5]), blocks=8, refuse=False)
    assert got.stopped
    assert not got.summary().drained


def test_closed_loop_releases_the_next_when_one_is_done_and_stops_at_the_end():
    s = PLAIN.but(duration_s=10.0)
    r = requests([0.0, np.inf, np.inf], [10, 10, 10], [3, 3, 9], after=np.array([-1, 0, 1]), think=np.array([0, 2.0, 9.0]))
    got = run(s, r)
    assert got.arrival[1] == 5.0
    assert got.status.tolist() == [FINISHED, FINISHED, NEVER_ISSUED]


def test_static_batching_gives_all_answers_when_the_longest_is_done():
    got = run(PLAIN.but(batching="static", static_timeout_s=1.0), requests([0.0, 0.0, 0.0], [10, 10, 10], [3, 9, 2]))
    assert got.finish.tolist() == [9.0, 9.0, 11.0]


def test_prefill_first_stalls_those_that_decode():
    got = run(PLAIN.but(batching="prefill_first"), requests([0.0, 1.5], [10, 10], [5, 5]))
    assert got.first_token[1] == 3.0
    assert got.gaps.tolist().count(2.0) == 1


def test_nothing_to_do_is_a_run_too():
    s = run(PLAIN, requests([], np.zeros(0, int), np.zeros(0, int))).summary()
    assert s.ticks == 0 and s.finished == 0 and s.drained
