"""How many KV blocks a deployment gets, and what a deployment that cannot start is told."""

import pytest

from sim import memory
from sim.catalog import model
from sim.scenario import Scenario, SimError


def test_kv_heads_stop_dividing_at_one_a_rank():
    cases = [Scenario(tensor_parallel_size=tp) for tp in (1, 2, 4, 8, 16)]
    assert [20 * 2**30 // memory.block_bytes(model(s.model), s) for s in cases] == [10_240, 20_480, 40_960, 81_920, 81_920]


def test_mla_does_not_divide():
    shape = model("DeepSeek-V3")
    assert shape.kv_values_per_token(1) == shape.kv_values_per_token(8)


def test_the_recorded_rtx_4090_run_had_as_many_blocks():
    plan = memory.plan(
        Scenario(gpu="RTX-4090", gpu_memory_utilization=0.9, max_num_batched_tokens=2048, max_num_seqs=256)
    )
    assert plan.num_gpu_blocks == pytest.approx(2588, rel=0.1)


def test_parts_add_up():
    plan = memory.plan(Scenario())
    left = plan.requested - plan.weights - plan.activation - plan.graphs - plan.other - plan.kv
    assert 0 <= left < plan.block_bytes


def test_a_larger_token_budget_shrinks_the_pool():
    base = Scenario(
        model="Llama-3.1-70B",
        gpu="A100-80GB",
        tensor_parallel_size=2,
        max_model_len=10_000,
        gpu_memory_utilization=0.95,
    )
    pools = [memory.plan(base.but(max_num_batched_tokens=budget)).num_gpu_blocks for budget in (2048, 8192, 16384)]
    assert pools[0] > pools[1] > pools[2]


def test_the_log_line_is_vllm_s():
    plan = memory.plan(Scenario(num_gpu_blocks_override=500, max_model_len=2000))
    assert plan.log_line == "GPU KV cache size: 8,000 tokens, Maximum concurrency for 2,000 tokens per request: 4.00x"
    assert plan.num_gpu_blocks == 500 and "Overriding num_gpu_blocks" in plan.notes[0]


def test_a_model_larger_than_the_card_is_told_the_tp_that_fits():
    with pytest.raises(SimError) as caught:
        memory.plan(Scenario(model="Llama-3.1-70B"))
    assert caught.value.code == "weights_too_large" and "tensor_parallel_size 4" in str(caught.value)
    assert memory.plan(Scenario(model="Llama-3.1-70B", tensor_parallel_size=4)).num_gpu_blocks > 0


def test_a_context_longer_than_the_pool_is_told_the_length_that_fits():
    with pytest.raises(SimError, match="To serve at least one request") as caught:
        memory.plan(Scenario(gpu="RTX-4090", max_model_len=131_072, max_num_batched_tokens=2048))
    longest = caught.value.params["longest"]
    assert (
        memory.plan(Scenario(gpu="RTX-4090", max_model_len=longest, max_num_batched_tokens=2048)).max_concurrency >= 1
    )


def test_tp_that_does_not_divide_the_heads_is_told_those_that_do():
    with pytest.raises(SimError, match="must be divisible by tensor parallel size") as caught:
        memory.plan(Scenario(tensor_parallel_size=3))
    assert "1, 2, 4, 8" in caught.value.params["works"]


def test_dp_has_a_pool_an_engine_and_ep_spreads_the_experts():
    alone = memory.plan(Scenario(model="Qwen3-30B-A3B", gpu="H200"))
    spread = memory.plan(Scenario(model="Qwen3-30B-A3B", gpu="H200", data_parallel_size=4, enable_expert_parallel=True))
    assert spread.weights < alone.weights / 2 and spread.num_gpu_blocks > alone.num_gpu_blocks


def test_smaller_weights_and_kv_leave_more_blocks():
    pools = [memory.plan(Scenario(**kw)).num_gpu_blocks for kw in ({}, {"weights": "fp8"}, {"weights": "int4"})]
    assert pools == sorted(pools) and pools[0] < pools[2]
    assert memory.plan(Scenario(kv_cache_dtype="fp8")).num_gpu_blocks == pytest.approx(2 * pools[0], abs=2)


def test_a_model_without_experts_cannot_spread_them_as_in_vllm():
    with pytest.raises(SimError, match="Number of experts in the model must be greater than 0") as refused:
        memory.plan(Scenario(enable_expert_parallel=True))
    memory.plan(Scenario(enable_expert_parallel=True).but(**refused.value.params["repair"]))


@pytest.mark.parametrize(("name", "tp"), [("MiniMax-M2.5", 12), ("Llama-3.2-3B", 5), ("Qwen3-32B", 3)])
def test_of_a_size_that_does_not_divide_a_model_it_names_sizes_that_do(name, tp):
    shape = model(name)
    with pytest.raises(SimError, match="Sizes that work") as refused:
        memory.check_parallel(shape, Scenario(model=name, tensor_parallel_size=tp))
    for works in map(int, refused.value.params["works"].split(", ")):
        spread = {"enable_expert_parallel": True, "num_redundant_experts": -shape.experts % works} if shape.experts else {}
        memory.check_parallel(shape, Scenario(model=name, tensor_parallel_size=works, **spread))
