"""Advice: what the figures say, and whether following it does what it promised."""

import random
from collections import Counter

import pytest

from sim.advice import EngineFigures, Figures, advise, changes
from sim.engine import simulate
from sim.scenario import Scenario, SimError


def code(**figures):
    return advise(Figures(**figures))[0].code


@pytest.mark.parametrize(
    ("figures", "expected"),
    [
        # the lesson's three lines
        (dict(running=60, waiting=0, kv_usage=0.99), "KV_FULL"),
        (dict(running=64, waiting=200, kv_usage=0.3, cap=64), "BUDGET_SMALL"),
        (dict(running=200, waiting=0, kv_usage=0.98, preemptions_per_s=2.0), "PAST_SWEET_SPOT"),
        # what they leave out
        (dict(running=36, waiting=80, kv_usage=0.99, cap=256), "KV_FULL_WITH_QUEUE"),
        (dict(running=12, waiting=80, kv_usage=0.2, cap=256), "PREFILL_BOUND"),
        (dict(running=1, waiting=5, kv_usage=0.03), "NOT_BUDGET_LORA_OR_OTHER"),
        (dict(running=1, waiting=14, kv_usage=0.03, waiting_deferred=14), "NOT_BUDGET_DEFERRED"),
        (
            dict(running=1, waiting=14, kv_usage=0.03, waiting_deferred=14, lora_waiting=2, lora_slots=1),
            "NOT_BUDGET_LORA",
        ),
        (dict(running=0, waiting=3, kv_usage=0.0), "NEVER_FITS"),
        (dict(running=100, waiting=0, kv_usage=0.2, running_flat=True), "CLIENT_LIMITED"),
        (dict(running=0, waiting=0, kv_usage=0.0), "IDLE"),
        (dict(running=30, waiting=0, kv_usage=0.5), "HEALTHY"),
        (dict(error="oom_sampler_warmup", error_params={"dummy_requests": 1024}), "STARTUP_OOM"),
        # the counter is history, its rate is not
        (dict(running=30, waiting=0, kv_usage=0.5, preemptions=5000), "HEALTHY"),
        (
            dict(running=30, waiting=0, kv_usage=0.99, preemptions=5000, preemptions_delta=0, preemptions_per_s=0.0),
            "KV_FULL",
        ),
        # unknown is not 0
        (dict(running=30, waiting=50, kv_usage=None), "UNKNOWN"),
        (dict(), "UNKNOWN"),
    ],
)
def test_figures_have_the_diagnosis_that_the_field_gives_them(figures, expected):
    assert code(**figures) == expected


def test_a_queue_on_some_engines_only_is_imbalance_and_not_a_budget():
    engines = tuple(EngineFigures(str(i), r, w, kv) for i, (r, w, kv) in enumerate([(47, 96, 0.99), (58, 0, 0.4)]))
    assert code(engines=engines, running=105, waiting=96, kv_usage=0.99) == "DP_IMBALANCE"
    assert code(engines=engines, running=105, waiting=96, kv_usage=0.99, one_model=False) != "DP_IMBALANCE"


def test_a_moments_wait_is_no_overload_and_an_idle_gpu_is_not_called_saturated():
    rng, overloaded = random.Random(7), 0
    for _ in range(150):
        try:
            run = simulate(draw(rng))
        except SimError:
            continue
        for advice in (a for a in advise(Figures.of(run)) if a.code == "OVERLOADED"):
            overloaded += 1
            assert run.summary().queue_mean > 0.1
            assert run.summary().gpu_compute >= 0.5 or "more work arrives" not in advice.why
    assert overloaded > 5


def test_it_never_says_raise_when_running_is_below_the_cap():
    for running in range(1, 250, 7):
        for kv in (0.1, 0.5, 0.8):
            found = advise(Figures(running=running, waiting=90, kv_usage=kv, cap=256))
            assert all("max_num_seqs" not in a.change for a in found)


def test_a_raise_never_goes_beyond_what_the_pool_holds():
    advice = advise(Figures(running=64, waiting=200, kv_usage=0.6, cap=64))[0]
    assert 64 < advice.change["max_num_seqs"] <= 64 * 0.9 / 0.6


def test_every_advice_can_be_said_whatever_is_unknown():
    rng = random.Random(3)
    for _ in range(2000):
        figures = {
            k: rng.choice([None, 0, 1, 3, 64, 100, 0.5, 0.99])
            for k in (
                "running",
                "waiting",
                "swapped",
                "cap",
                "preemptions",
                "preemptions_delta",
                "preemptions_per_s",
                "gen_tok_s",
                "waiting_deferred",
            )
        }
        figures["kv_usage"] = rng.choice([None, 0.0, 0.3, 0.92, 1.0])
        for advice in advise(Figures(**figures)):
            assert str(advice) and advice.as_dict()
            assert "{" not in str(advice)


def draw(rng):
    return Scenario(
        arrival=rng.choice(["poisson", "poisson", "bursty", "spike", "constant"]),
        request_rate=rng.choice([5.0, 10.0, 20.0, 40.0, 80.0, 150.0]),
        duration_s=rng.choice([5.0, 8.0, 10.0]),
        lengths=rng.choice(["lognormal", "lognormal", "fixed", "mixture"]),
        prompt_tokens=rng.choice([64, 256, 512, 1500, 3000]),
        output_tokens=rng.choice([32, 128, 256, 500]),
        long_prompt_tokens=rng.choice([8000, 16_000]),
        long_share=rng.choice([0.02, 0.05, 0.1]),
        seed=rng.randrange(10**6),
        max_num_seqs=rng.choice([8, 16, 32, 64, 128, 256, 512]),
        max_num_batched_tokens=rng.choice([512, 1024, 2048, 4096, 8192]),
        num_gpu_blocks_override=rng.choice([0, 0, 1300, 1500, 3000, 6000]),
        max_model_len=rng.choice([20_000, 20_000, 20_000, 4096]),
        gpu_memory_utilization=rng.choice([0.3, 0.5, 0.8, 0.92]),
        data_parallel_size=rng.choice([1, 1, 1, 2]),
        router=rng.choice(["round_robin", "vllm"]),
        host=rng.choice(["v1", "v1", "v0"]),
    )


def test_advice_that_is_followed_does_not_lead_in_a_circle():
    rng = random.Random(5)
    for _ in range(40):
        scenario, been = draw(rng), []
        while len(been) < 6 and scenario not in been:
            been.append(scenario)
            try:
                run = simulate(scenario)
            except SimError:
                break
            if not (change := changes(advise(Figures.of(run))[0], scenario)):
                break
            scenario = scenario.but(**change)
        else:
            assert scenario not in been, [s.max_num_seqs for s in been]


def test_in_200_unhealthy_runs_the_action_improves_what_it_promised_in_nine_of_ten():
    rng = random.Random(20)
    tried = kept = 0
    tally, broken = Counter(), []
    while tried < 200:
        try:
            scenario = draw(rng)
            run = simulate(scenario)
        except SimError:
            continue
        advice = advise(Figures.of(run))[0]
        change = changes(advice, scenario)
        if advice.healthy or not change:
            continue
        tried += 1
        name = advice.promise.lstrip("+")
        before = getattr(run.summary(), name)
        try:
            after = getattr(simulate(scenario.but(**change)).summary(), name)
        except SimError as error:
            after = error
        good = not isinstance(after, SimError) and (
            after > before if advice.promise.startswith("+") else after < before
        )
        kept += good
        tally[advice.code, "kept" if good else "broken"] += 1
        if not good:
            broken.append(f"{advice.code}: {name} {before} -> {after} after {change}")
    print(f"advice kept its promise in {kept} of {tried} unhealthy runs:", dict(tally))
    for line in broken:
        print("  broken:", line)
    assert kept >= 0.9 * tried
