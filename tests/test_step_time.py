"""What a step costs: the sums, the shapes that teaching rests on, and the price of asking."""

from dataclasses import replace
from time import perf_counter
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from sim import experts
from sim.catalog import model
from sim.engine import simulate
from sim.scenario import Scenario, SimError
from sim.step_time import TERMS, StepTime

DENSE = StepTime(Scenario())
SLIDING = StepTime(Scenario(model="gpt-oss-120b", gpu="H200"))
SYNC = StepTime(Scenario(async_scheduling=False))


def decode(clock: StepTime, seqs: int, context: int) -> float:
    return clock.seconds(seqs, seqs * context, 0, 0, 0, 0, seqs)


@given(st.sampled_from([DENSE, SLIDING, SYNC]), st.integers(1, 512), st.integers(1, 20_000))
@settings(max_examples=200)
def test_a_decode_step_is_the_line_to_the_bit(clock, seqs, each):
    fixed, slope, limit = clock.decode(seqs, seqs * each)
    assert seqs * each <= limit
    assert clock.seconds(seqs, seqs * each, 0, 0, 0, 0, seqs) == fixed + slope * (seqs * each)


@given(st.sampled_from([DENSE, SLIDING]), st.integers(1, 256), st.integers(1, 8000), st.integers(1, 2000))
@settings(max_examples=100)
def test_more_work_never_takes_less_time(clock, seqs, each, more):
    assert decode(clock, seqs, each + more) >= decode(clock, seqs, each)
    assert clock.seconds(seqs, seqs * each, 1, more, more * (more + 1) // 2, more, seqs) > 0


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"async_scheduling": False},
        {"model": "gpt-oss-120b"},
        {"host": "none"},
        {"model": "Qwen3-30B-A3B", "tensor_parallel_size": 2},
        {"model": "Qwen3-30B-A3B", "data_parallel_size": 2, "enable_expert_parallel": True},
        {"model": "Qwen3-30B-A3B", "data_parallel_size": 4, "prompt_cv": 3.0},
        {"data_parallel_size": 2},
    ],
)
def test_terms_add_up_to_the_durations(changes):
    run = simulate(Scenario(duration_s=3.0, request_rate=8.0, prompt_tokens=900).but(**changes))
    terms = run.step_time.terms(run.ticks)
    assert tuple(terms) == TERMS
    whole = sum(terms.values())
    jitter = np.array(run.step_time.jitter or (1.0,))
    starts = np.unique(run.ticks.start)
    for replica in set(run.ticks.replica.tolist()):
        mine = run.ticks.replica == replica
        step = np.searchsorted(starts, run.ticks.start[mine]) if run.step_time.in_step else np.arange(mine.sum())
        expected = whole[mine] * jitter[step % len(jitter)] + run.ticks.swap_s[mine]
        assert np.allclose(run.ticks.duration[mine], expected, rtol=1e-9)
    assert all((values >= 0).all() for values in terms.values())


@given(
    st.fixed_dictionaries(
        {
            "model": st.sampled_from(["Llama-3.1-8B", "gpt-oss-120b", "Qwen3-30B-A3B", "Mixtral-8x7B", "DeepSeek-V3"]),
            "gpu": st.sampled_from(["H100-SXM", "H200", "B200", "A100-80GB", "MI300X"]),
            "weights": st.sampled_from(["bf16", "fp8", "int4"]),
            "parallel": st.sampled_from([(1, 1), (8, 1), (1, 8), (2, 4)]),
            "expert_skew": st.sampled_from([0.0, 0.5, 1.2]),
            "prompt_tokens": st.sampled_from([16, 1000, 6000]),
            "output_tokens": st.sampled_from([4, 200]),
            "max_num_batched_tokens": st.sampled_from([512, 8192, 65_536]),
            "async_scheduling": st.booleans(),
        }
    )
)
@settings(max_examples=60, deadline=None)
def test_utilisations_are_shares(drawn):
    tp, dp = drawn.pop("parallel")
    scenario = Scenario(tensor_parallel_size=tp, data_parallel_size=dp, enable_expert_parallel=dp > 1, request_rate=40.0,
                        duration_s=1.0, max_model_len=8192, max_num_seqs=512, num_gpu_blocks_override=20_000).but(**drawn)
    if scenario.enable_expert_parallel and not model(scenario.model).moe_layers:
        scenario = scenario.but(enable_expert_parallel=False)
    try:
        run = simulate(scenario)
    except SimError:  # more weights than the cards hold
        reject()
    clock, summary = run.step_time, run.summary()
    whole = sum(clock.terms(run.ticks).values())  # before jitter
    assert (clock.compute_seconds(run.ticks) <= whole).all()
    assert (clock.bytes(run.ticks) / clock.peak_bandwidth <= whole).all()
    assert 0 < summary.gpu_compute <= summary.gpu_busy <= 1
    assert 0 < summary.gpu_bandwidth <= summary.gpu_busy


def test_tp_is_not_free():
    def clock(tp):
        return StepTime(Scenario(model="Llama-3.1-70B", gpu="H200", weights="fp8", tensor_parallel_size=tp))

    times = [decode(clock(tp), 16, 1000) for tp in (1, 2, 4, 8)]
    assert times == sorted(times, reverse=True)
    assert times[0] / times[3] < 6  # eight cards are not eight times as fast


def test_pcie_costs_more_than_nvlink():
    base = Scenario(model="Llama-3.1-70B", tensor_parallel_size=4)
    chunk = (0, 0, 1, 4096, 4096 * 4097 // 2, 4096, 1)
    assert StepTime(base.but(link="pcie")).seconds(*chunk) > 1.3 * StepTime(base).seconds(*chunk)


def test_batches_amortise_expert_weights():
    shape = model("Qwen3-30B-A3B")
    per_token = [experts.distinct_experts(shape, 0.5, n) / n for n in (1, 8, 64, 512)]
    assert per_token == sorted(per_token, reverse=True)
    assert experts.distinct_experts(shape, 0.0, 1) == pytest.approx(8)
    assert experts.distinct_experts(shape, 0.0, 4096) == pytest.approx(128)


@pytest.mark.parametrize("name", ["DeepSeek-V3", "Qwen3-30B-A3B", "Qwen3-235B-A22B", "Llama-3.1-8B"])
@pytest.mark.parametrize("card", ["B200", "H100-SXM"])
def test_a_step_without_the_hosts_time_is_never_longer(name, card):
    scenario = Scenario(model=name, gpu=card, weights="fp8", tensor_parallel_size=8, max_model_len=4096)
    without, with_it = (StepTime(scenario.but(host=host)).seconds(32, 32_000, 1, 512, 512 * 513 // 2, 512, 33) for host in ("none", "v1"))
    assert without <= with_it


def test_skew_makes_a_hot_rank_and_redundant_experts_cool_it():
    shape = model("DeepSeek-V3")
    loads = [experts.rank_imbalance(shape, skew, 8) for skew in (0.0, 0.5, 1.0)]
    assert loads[0] == pytest.approx(1.0) and loads == sorted(loads)
    assert experts.rank_imbalance(shape, 1.0, 8, 32) < loads[2]
    assert experts.expert_load(shape, 1.3).sum() == pytest.approx(8)
    assert experts.rank_load(shape, 1.3, 8, 32).sum() == pytest.approx(8)
    base = Scenario(model="DeepSeek-V3", gpu="H200", data_parallel_size=8, enable_expert_parallel=True)
    even, skewed = (decode(StepTime(base.but(expert_skew=s)), 256, 500) for s in (0.0, 1.0))
    assert skewed > 1.1 * even
    assert decode(StepTime(base.but(expert_skew=1.0, num_redundant_experts=32)), 256, 500) < skewed


def test_imbalance_noise_is_seeded():
    base = Scenario(model="Qwen3-30B-A3B", data_parallel_size=2, enable_expert_parallel=True)
    assert StepTime(base).jitter == StepTime(base).jitter != StepTime(base.but(seed=8)).jitter
    assert DENSE.jitter == ()


def test_host_time_hides_behind_the_gpu_only_with_async_scheduling():
    none, v0 = (StepTime(Scenario(host=h)) for h in ("none", "v0"))
    assert decode(none, 64, 500) < decode(DENSE, 64, 500) < decode(SYNC, 64, 500) < decode(v0, 64, 500)


def test_cards_without_constants_of_their_own_borrow_them():
    for name in ("B300", "L40S", "A10G", "MI300X"):
        assert 0.001 < decode(StepTime(Scenario(gpu=name)), 1, 100) < 0.1


def test_asking_costs_about_a_microsecond():
    def cost(clock, *arguments):
        clock.seconds(*arguments)
        return min(_timed(clock, arguments) for _ in range(20))

    chunk = (32, 32 * 1000, 1, 2048, 2048 * 2049 // 2, 2048, 33)
    few, many = (cost(DENSE, n, n * 1000, 0, 0, 0, 0, n) for n in (1, 512))
    assert many < 5 * few  # it does not depend on how many run
    plain = cost(SimpleNamespace(seconds=lambda *arguments: sum(arguments)), *chunk)  # about 0.15 µs on the machine where asking costs 0.2 to 0.6
    assert min(few, many) < 10 * plain and cost(DENSE, *chunk) < 20 * plain


def _timed(clock, arguments):
    begun = perf_counter()
    for _ in range(200):
        clock.seconds(*arguments)
    return (perf_counter() - begun) / 200


def test_a_constant_moves_its_term_only():
    hard = DENSE.hardware
    slower = type(hard)(Scenario(), fitted=replace(hard.fitted, kv_bandwidth=hard.fitted.kv_bandwidth / 2))
    assert slower.base(64, 64) == hard.base(64, 64)
    assert slower.attention_decode(64, 64_000) > hard.attention_decode(64, 64_000)
