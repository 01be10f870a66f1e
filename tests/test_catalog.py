"""The catalogue: figures with sources, and any config.json a visitor brings."""

import json

import pytest

from sim import catalog, memory
from sim.scenario import Scenario, SimError

LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
}


def test_sizes_are_those_the_makers_state():
    for name, billions in {
        "Llama-3.1-8B": 8.03,
        "Llama-3.1-70B": 70.6,
        "Qwen3-32B": 32.8,
        "Qwen3-30B-A3B": 30.5,
        "Qwen3-235B-A22B": 235,
        "Mixtral-8x7B": 46.7,
        "gpt-oss-120b": 117,
        "DeepSeek-V3": 671,
        "DeepSeek-V4-Flash": 284,
        "DeepSeek-V4-Pro": 1600,
    }.items():
        assert catalog.model(name).parameters / 1e9 == pytest.approx(billions, rel=0.02), name


def test_every_figure_has_a_source_and_what_is_assumed_is_marked():
    assert all(card.source and card.price > 0 for card in catalog.gpus().values())
    assert all(shape.source for shape in catalog.models().values())
    assert catalog.model("DeepSeek-V4-Pro").assumed and not catalog.model("Llama-3.1-8B").assumed
    assert {
        "A100-80GB",
        "H100-SXM",
        "H200",
        "B200",
        "B300",
        "L40S",
        "A10G",
        "RTX-4090",
        "RTX-PRO-6000",
        "MI300X",
    } <= set(catalog.gpus())


def test_a_spec_is_short_needs_no_escaping_and_gives_the_same_shape():
    for shape in catalog.models().values():
        text = catalog.spec(shape)
        assert len(text) < 160 and all(c.isalnum() or c in "~.-" for c in text)
        again = catalog.model(text)
        assert again.parameters == shape.parameters and again.kv_values_per_token(2) == shape.kv_values_per_token(2)


def test_an_uploaded_config_runs_like_the_catalogue_s_model():
    text = catalog.model_from_config(json.dumps(LLAMA))
    ours, theirs = memory.plan(Scenario(model=text)), memory.plan(Scenario(model="Llama-3.1-8B"))
    assert ours.num_gpu_blocks == theirs.num_gpu_blocks


@pytest.mark.parametrize(
    "field", ["hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "intermediate_size"]
)
def test_a_config_without_a_field_names_it(field):
    with pytest.raises(SimError, match=field):
        catalog.model_from_config(json.dumps({k: v for k, v in LLAMA.items() if k != field}))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        '"a"',
        "null",
        json.dumps({**LLAMA, "hidden_size": "big"}),
        json.dumps({**LLAMA, "hidden_size": -1}),
        json.dumps({**LLAMA, "num_key_value_heads": 7}),
        json.dumps({**LLAMA, "vocab_size": 0}),
        json.dumps({**LLAMA, "num_attention_heads": 0}),
    ],
)
def test_nonsense_is_refused_with_a_sentence(text):
    with pytest.raises(SimError):
        catalog.model_from_config(text)


def test_moe_and_mla_configs_are_read():
    deepseek = {
        "hidden_size": 7168,
        "num_hidden_layers": 61,
        "num_attention_heads": 128,
        "num_key_value_heads": 128,
        "intermediate_size": 18432,
        "vocab_size": 129280,
        "n_routed_experts": 256,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 2048,
        "n_shared_experts": 1,
        "first_k_dense_replace": 3,
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
        "quantization_config": {"quant_method": "fp8"},
    }
    shape = catalog.model(catalog.model_from_config(json.dumps(deepseek)))
    assert shape.is_mla and shape.native == "fp8" and shape.parameters == catalog.model("DeepSeek-V3").parameters


def test_unknown_names_list_what_there_is():
    with pytest.raises(SimError, match=r"Llama-3\.1-8B"):
        catalog.model("Lama")
    with pytest.raises(SimError, match="H100-SXM"):
        catalog.gpu("H1000")


def test_cost_follows_the_price_and_the_number_of_gpus():
    one = catalog.cost_per_million(Scenario(), 1000.0, price=3.6)
    assert one == pytest.approx(1.0)
    assert catalog.cost_per_million(
        Scenario(tensor_parallel_size=2, data_parallel_size=2), 1000.0, price=3.6
    ) == pytest.approx(4.0)
