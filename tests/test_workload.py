"""Traffic is what the scenario says, the same for A and B, and the same on any machine."""

import time

import numpy as np
import pytest

from sim.engine import simulate
from sim.requests import Requests
from sim.scenario import Scenario, SimError
from sim.workload import draw, shapes

LONG = Scenario(duration_s=1000.0, request_rate=50.0)


def begun(requests):
    return requests.arrival[np.isfinite(requests.arrival)]


@pytest.mark.parametrize("arrival, cv", [("poisson", 1.0), ("constant", 0.0), ("bursty", 4.0)])
def test_arrivals_come_at_the_rate_and_as_unevenly_as_asked(arrival, cv):
    times = draw(LONG.but(arrival=arrival)).arrival
    gaps = np.diff(times)
    assert len(times) == pytest.approx(50_000, rel=0.06 if cv > 1 else 0.02)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.08, abs=0.01)
    assert times[-1] < 1000.0 and (gaps >= 0).all()


def test_a_spike_multiplies_the_middle_fifth_and_a_ramp_climbs():
    per_s = np.histogram(draw(LONG.but(arrival="spike", spike_factor=5.0)).arrival, 5, (0, 1000))[0] / 200
    assert per_s == pytest.approx([50, 50, 250, 50, 50], rel=0.05)
    per_s = np.histogram(draw(LONG.but(arrival="ramp", spike_factor=3.0)).arrival, 4, (0, 1000))[0] / 250
    assert per_s == pytest.approx([62.5, 87.5, 112.5, 137.5], rel=0.05)


@pytest.mark.parametrize("arrival", ["poisson", "constant", "bursty", "spike", "ramp", "closed", "trace"])
def test_the_same_scenario_draws_the_same_requests_and_num_requests_bounds_them(arrival):
    one, two = (draw(Scenario(arrival=arrival, num_requests=50, max_num_seqs=seats)) for seats in (8, 64))
    assert len(one) == 50
    for name in ("arrival", "prompt", "output", "priority", "after", "think"):
        assert np.array_equal(getattr(one, name), getattr(two, name)), name


def test_one_knob_leaves_the_other_draws_alone():
    a, faster = draw(Scenario()), draw(Scenario(request_rate=60.0))
    n = len(a)
    assert np.array_equal(faster.prompt[:n], a.prompt) and np.array_equal(faster.output[:n], a.output)
    assert faster.arrival[:n] * 2 == pytest.approx(a.arrival, abs=2e-6)
    longer = draw(Scenario(prompt_tokens=1024))
    assert np.array_equal(longer.arrival, a.arrival) and np.array_equal(longer.output, a.output)
    assert longer.prompt / a.prompt == pytest.approx(2.0, rel=0.35)
    assert not np.array_equal(draw(Scenario(seed=8)).arrival, a.arrival)


def test_a_link_means_the_same_run_on_any_machine():
    requests = draw(Scenario())
    assert requests.arrival[:4].tolist() == [0.053293, 0.055112, 0.084942, 0.152649]
    assert requests.prompt[:4].tolist() == [1163, 737, 4611, 345]
    assert requests.output[:4].tolist() == [206, 436, 139, 369]
    assert np.array_equal(np.rint(requests.arrival * 1e6) / 1e6, requests.arrival)


@pytest.mark.parametrize("mean, cv", [(512, 1.0), (30, 0.3), (2000, 2.0)])
def test_lognormal_lengths_have_the_mean_and_spread_asked_for(mean, cv):
    prompt = draw(LONG.but(prompt_tokens=mean, prompt_cv=cv)).prompt
    assert prompt.mean() == pytest.approx(mean, rel=0.04)
    assert prompt.std() / prompt.mean() == pytest.approx(cv, rel=0.15)


def test_fixed_and_mixed_lengths():
    fixed = draw(Scenario(lengths="fixed", prompt_tokens=100, output_tokens=10))
    assert set(fixed.prompt.tolist()) == {100} and set(fixed.output.tolist()) == {10}
    mixed = draw(LONG.but(lengths="mixture", long_share=0.1, long_prompt_tokens=30_000, prompt_cv=0.1))
    assert (mixed.prompt == 30_000).mean() == pytest.approx(0.1, rel=0.05)


@pytest.mark.parametrize("name", ["chat", "code", "rag", "agents", "reasoning"])
def test_measured_shapes_come_out_as_measured(name):
    shape = shapes()[name]
    requests = draw(LONG.but(lengths=name))
    for what in ("prompt", "output"):
        lengths = getattr(requests, what)
        assert lengths.mean() == pytest.approx(shape[f"{what}_mean"], rel=0.06)
        for q in (0.25, 0.5, 0.75, 0.9):
            low, high = np.interp([q - 0.01, q + 0.01], shape["quantiles"], shape[what])
            assert low - 1 <= np.quantile(lengths, q) <= high + 1
    assert shape["source"] and shape["licence"]


def test_a_system_prompt_comes_on_top_and_is_shared():
    plain, shared = draw(Scenario()), draw(Scenario(system_prompt_tokens=500, num_system_prompts=3))
    assert np.array_equal(shared.prompt, plain.prompt + 500)
    heads = {segments[0] for segments in shared.prefix}
    assert len(heads) == 3 and {length for _, length in heads} == {500}


@pytest.mark.parametrize("arrival", ["poisson", "closed"])
def test_a_turn_of_a_chat_quotes_all_turns_before_it_with_their_answers(arrival):
    requests = draw(Scenario(arrival=arrival, chat_turns=4, num_clients=5, num_requests=200, think_time_s=1.0,
                             system_prompt_tokens=50))
    quoted = 0
    for i, segments in enumerate(requests.prefix):
        assert sum(length for _, length in segments) == requests.prompt[i]
        before = requests.after[i]
        if len(segments) > 2:
            quoted += 1
            assert segments[: len(requests.prefix[before])] == requests.prefix[before]
            assert segments[-2] == (("o", before), requests.output[before])
            assert np.isinf(requests.arrival[i]) and requests.think[i] >= 0.0
    assert quoted >= 140


def test_chats_do_not_change_how_many_requests_are_offered():
    assert len(draw(Scenario(chat_turns=6, duration_s=300.0))) == pytest.approx(9000, rel=0.1)


def test_closed_loop_clients_are_chains():
    requests = draw(Scenario(arrival="closed", num_clients=10, num_requests=95, think_time_s=2.0))
    assert len(begun(requests)) == 10
    assert requests.after[10:].tolist() == list(range(85))
    assert requests.think[10:].mean() == pytest.approx(2.0, rel=0.4)
    enough = draw(Scenario(arrival="closed", num_clients=2, duration_s=10.0, lengths="fixed", output_tokens=100))
    assert len(enough) >= 2 * 10.0 / (100 * 0.0005)
    most = draw(Scenario(arrival="closed", num_clients=5000, duration_s=86400.0))
    assert len(most) == 200_000


def test_urgent_requests_have_the_share_asked_for():
    priority = draw(LONG.but(urgent_share=0.2)).priority
    assert (priority == 0).mean() == pytest.approx(0.2, rel=0.05) and set(priority.tolist()) == {0, 1}


def test_too_many_requests_are_refused_with_what_to_do():
    with pytest.raises(SimError, match="lower request_rate") as refusal:
        draw(Scenario(request_rate=5000.0, duration_s=3600.0))
    assert refusal.value.code == "too_many_requests"
    assert len(draw(Scenario(request_rate=5000.0, duration_s=3600.0, num_requests=100))) == 100


def test_an_hour_of_recorded_traffic():
    hour = draw(Scenario(arrival="trace", trace="azure2023_conv", duration_s=3600.0))
    assert len(hour) == 19_366
    assert hour.prompt.mean() == pytest.approx(1154.7, abs=0.1) and hour.output.mean() == pytest.approx(211.1, abs=0.1)
    twice = draw(Scenario(arrival="trace", trace="azure2023_conv", trace_start_s=600.0, duration_s=300.0, rate_scale=2.0))
    inside = hour.arrival[(hour.arrival >= 600) & (hour.arrival < 900)]
    assert twice.arrival == pytest.approx((inside - 600) / 2, abs=2e-6)
    with pytest.raises(SimError, match="upload"):
        draw(Scenario(arrival="trace", trace="upload"))
    with pytest.raises(SimError, match="azure2023_conv"):
        draw(Scenario(arrival="trace", trace="nonsense"))


@pytest.mark.parametrize("change", [
    {"arrival": np.array([0.0, np.nan])}, {"arrival": np.array([1.0, 0.5])}, {"arrival": np.array([-1.0, 0.5])},
    {"prompt": np.array([0, 5])}, {"output": np.array([3, 0])}, {"think": np.array([0.0, np.inf])},
    {"arrival": np.array([0.0, np.inf])}, {"after": np.array([-1, 1])}, {"prompt": np.array([5])},
])
def test_what_is_not_traffic_is_refused(change):
    columns = dict(
        arrival=np.array([0.0, 0.5]), prompt=np.array([5, 5]), output=np.array([3, 3]), priority=np.zeros(2, np.int64),
        after=np.array([-1, -1]), think=np.zeros(2),
    )
    assert len(Requests(**columns)) == 2
    with pytest.raises(SimError) as refusal:
        Requests(**(columns | change))
    assert refusal.value.code == "bad_requests"


def test_drawing_is_a_small_part_of_a_live_run():
    drawing, running = (min(_timed(what, Scenario(seed=seed)) for seed in range(100, 110)) for what in (draw, simulate))
    assert drawing < 0.2 * running


def _timed(what, scenario):
    begin = time.process_time()
    what(scenario)
    return time.process_time() - begin
