"""What the simulator knows of GPUs and models: figures with their sources (gpus.toml, models.toml), and a reader for any
Hugging Face config.json. All shapes are those of one model; how they divide over ranks is in `memory` and `step_time`.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

from sim.scenario import Scenario, SimError

HERE = Path(__file__).parent
SPEC_MARK = "~"  # a Scenario.model that starts with it is a shape, not a name; the character needs no escape in a URL


@dataclass(frozen=True, slots=True)
class Gpu:
    """One card. Throughputs are the maker's dense peaks; what is attainable is in calibration.toml."""

    name: str
    label: str
    tflops_bf16: float
    tflops_fp8: float  # 0: no such tensor cores; 8-bit weights then compute in bf16
    tflops_fp4: float  # 0: likewise; 4-bit weights are unpacked to bf16
    memory_bytes: int  # as the driver reports it
    bandwidth: float  # bytes/s
    nvlink: float  # bytes/s, one direction; 0: has none
    pcie: float  # bytes/s, one direction
    network: float  # bytes/s of its share of the server's network cards, one direction
    price: float  # USD an hour, a default to edit
    arch: str
    like: str  # GPU whose constants stand in, "" = its own
    source: str


def _shape(key: str, default: Any = None) -> Any:
    return field(default=default, metadata=dict(key=key))


@dataclass(frozen=True, slots=True)
class Model:
    """The shape of a decoder, as config.json gives it (lengths are counts of values, per layer where it applies)."""

    name: str
    layers: int = _shape("L", 0)
    hidden: int = _shape("d", 0)
    heads: int = _shape("h", 0)
    kv_heads: int = _shape("k", 0)
    head_dim: int = _shape("e", 0)  # of a query's part without rotation, in MLA
    intermediate: int = _shape("f", 0)
    vocab: int = _shape("v", 0)
    max_position: int = _shape("p", 131072)
    tied: bool = _shape("t", False)  # embedding and head share their weights
    gated: bool = _shape("g", True)  # gate and up projections (three matrices), or one (two)
    experts: int = _shape("x", 0)  # 0: dense
    experts_per_token: int = _shape("a", 0)
    moe_intermediate: int = _shape("m", 0)
    shared_intermediate: int = _shape("s", 0)
    dense_layers: int = _shape("y", 0)  # first layers without experts
    q_lora_rank: int = _shape("q", 0)
    kv_lora_rank: int = _shape("c", 0)  # > 0: MLA, one latent row for all heads
    qk_rope_head_dim: int = _shape("r", 0)
    v_head_dim: int = _shape("u", 0)  # 0: head_dim
    sliding_window: int = _shape("w", 0)
    sliding_layers: int = _shape("z", 0)
    kv_rows_per_token: float = _shape("b", 1.0)  # < 1: keys and values are pooled over time (compressed attention)
    native: str = _shape("n", "")
    source: str = ""
    assumed: tuple[str, ...] = ()

    @property
    def is_mla(self) -> bool:
        """Whether each rank holds one latent row for all heads (so that TP does not divide the KV cache)."""
        return self.kv_lora_rank > 0

    @property
    def moe_layers(self) -> int:
        """Layers with experts."""
        return self.layers - self.dense_layers if self.experts else 0

    @property
    def expert_values(self) -> int:
        """Weights of one expert in one layer."""
        return (3 if self.gated else 2) * self.hidden * self.moe_intermediate

    def attention_matrices(self, tp: int = 1) -> list[tuple[int, int]]:
        """(outputs, inputs) of the projections around attention of one layer on one of `tp` ranks."""
        heads = self.heads / tp
        if not self.is_mla:
            width = int((heads + 2 * max(1.0, self.kv_heads / tp)) * self.head_dim)
            return [(width, self.hidden), (self.hidden, int(heads * self.head_dim))]
        value_dim, query_dim = self.v_head_dim or self.head_dim, self.head_dim + self.qk_rope_head_dim
        latent = self.q_lora_rank + self.kv_lora_rank + self.qk_rope_head_dim
        found = [(latent, self.hidden), (int(heads * query_dim), self.q_lora_rank or self.hidden)]
        if self.kv_heads > 1:  # keys and values of each head are unpacked from the latent row
            found.append((int(heads * (self.head_dim + value_dim)), self.kv_lora_rank))
            return [*found, (self.hidden, int(heads * value_dim))]
        # one shared row: values come out as long as the row and leave through a grouped two-step projection
        return [
            *found,
            (self.q_lora_rank, int(heads * (self.kv_lora_rank + self.qk_rope_head_dim))),
            (self.hidden, self.q_lora_rank * 8 // tp),
        ]

    def mlp_matrices(self, intermediate: int, tp: int = 1) -> list[tuple[int, int]]:
        """(outputs, inputs) of one feed-forward of that width on one of `tp` ranks."""
        width = intermediate // tp
        return [((2 if self.gated else 1) * width, self.hidden), (self.hidden, width)]

    def weight_bytes(self, weights: str) -> tuple[float, float]:
        """Bytes per value of (linear layers, experts) when loaded as `weights`; what is published smaller stays so."""
        as_published = {"": (2.0, 2.0), "fp8": (1.0, 1.0), "mxfp4": (2.0, FOUR_BIT), "int4": (2.0, FOUR_BIT)}[
            self.native
        ]
        if self.kv_rows_per_token < 1 and self.native == "mxfp4":
            as_published = (1.0, FOUR_BIT)
        asked = {"bf16": 2.0, "fp8": 1.0, "int4": FOUR_BIT}[weights]
        return min(asked, as_published[0]), min(asked, as_published[1])

    def values(self) -> tuple[int, int, int, int]:
        """Count of weights: (attention and dense layers, all experts, embedding, head)."""
        dense = self.layers * sum(n * k for n, k in self.attention_matrices())
        dense += (self.layers - self.moe_layers) * sum(n * k for n, k in self.mlp_matrices(self.intermediate))
        dense += self.moe_layers * (
            sum(n * k for n, k in self.mlp_matrices(self.shared_intermediate)) + self.hidden * self.experts
        )
        embedding = self.vocab * self.hidden
        return dense, self.moe_layers * self.experts * self.expert_values, embedding, 0 if self.tied else embedding

    @property
    def parameters(self) -> int:
        """All weights."""
        return sum(self.values())

    def kv_values_per_token(self, tp: int = 1) -> float:
        """KV values one token leaves on one rank, all layers. Heads stop dividing at one a rank; MLA does not divide."""
        if self.is_mla:
            return self.layers * (self.kv_lora_rank + self.qk_rope_head_dim) * self.kv_rows_per_token
        return self.layers * 2 * max(1, self.kv_heads // tp) * self.head_dim * self.kv_rows_per_token


FOUR_BIT = 0.53125
"""Bytes per 4-bit value with one 8- or 16-bit scale per 32 to 64 values."""


@lru_cache(maxsize=1)
def gpus() -> dict[str, Gpu]:
    """Every GPU of gpus.toml by name."""
    with (HERE / "gpus.toml").open("rb") as file:
        rows = tomllib.load(file)
    return {
        name: Gpu(
            name=name,
            label=row["label"],
            tflops_bf16=row["tflops"]["bf16"],
            tflops_fp8=row["tflops"]["fp8"],
            tflops_fp4=row["tflops"]["fp4"],
            memory_bytes=int(row["memory_gib"] * 2**30),
            bandwidth=row["bandwidth_gb_s"] * 1e9,
            nvlink=row["nvlink_gb_s"] * 1e9,
            pcie=row["pcie_gb_s"] * 1e9,
            network=row.get("network_gb_s", 50.0) * 1e9,
            price=row["price"],
            arch=row["arch"],
            like=row.get("like", ""),
            source=row["source"],
        )
        for name, row in rows.items()
    }


@lru_cache(maxsize=1)
def models() -> dict[str, Model]:
    """Every model of models.toml by name."""
    with (HERE / "models.toml").open("rb") as file:
        rows = tomllib.load(file)
    return {name: Model(name=name, **{**row, "assumed": tuple(row.get("assumed", ()))}) for name, row in rows.items()}


def gpu(name: str) -> Gpu:
    """The GPU of that name; SimError("unknown_gpu") lists those there are."""
    found = gpus().get(name)
    if found is None:
        raise SimError(
            "unknown_gpu",
            f"gpu {name!r} is not in the catalogue; there are {', '.join(gpus())}",
            field="gpu",
            value=name,
            known=", ".join(gpus()),
        )
    return found


@lru_cache(maxsize=256)
def model(name_or_spec: str) -> Model:
    """The model of that name, or the one a spec of `model_from_config` describes.

    SimError("unknown_model") lists those there are; SimError("bad_model_spec") names what a spec lacks.
    """
    if name_or_spec.startswith(SPEC_MARK):
        return _from_spec(name_or_spec)
    found = models().get(name_or_spec)
    if found is None:
        raise SimError(
            "unknown_model",
            f"model {name_or_spec!r} is not in the catalogue; there are {', '.join(models())}; or give its config.json",
            field="model",
            value=name_or_spec,
            known=", ".join(models()),
        )
    return found


# --- specs: a model's shape as a short string that needs no escaping in a URL
_READERS: dict[str, Callable[[str], Any]] = {
    "int": int, "float": float, "str": str, "bool": lambda text: bool(int(text))
}
_KEYS = {f.metadata["key"]: f for f in fields(Model) if "key" in f.metadata}
_NEEDED = ("layers", "hidden", "heads", "kv_heads", "head_dim", "intermediate", "vocab")


def spec(shape: Model) -> str:
    """The shape as `~name~L32~d4096...`: what `Scenario.model` and links carry; `model()` reads it back."""
    parts = [re.sub(r"[^A-Za-z0-9.-]", "-", shape.name) or "model"]
    for key, known in _KEYS.items():
        value = getattr(shape, known.name)
        if value != known.default:
            parts.append(
                key
                + (
                    str(int(value))
                    if isinstance(value, bool)
                    else f"{value:g}"
                    if isinstance(value, float)
                    else str(value)
                )
            )
    return SPEC_MARK + SPEC_MARK.join(parts)


def _from_spec(text: str) -> Model:
    name, *parts = text[len(SPEC_MARK) :].split(SPEC_MARK)
    values: dict[str, Any] = {}
    for part in parts:
        known = _KEYS.get(part[:1])
        if known is None:
            raise SimError(
                "bad_model_spec", f"the model's spec has a part {part!r} that means nothing", field="model", value=part
            )
        kind = str(known.type)
        try:
            values[known.name] = _READERS[kind](part[1:])
        except ValueError:
            raise SimError(
                "bad_model_spec",
                f"the model's spec gives {known.name} as {part[1:]!r}, which is no {kind}",
                field="model",
                value=part,
            ) from None
    shape = Model(name=name or "model", source="given by the visitor", **values)
    _check(shape, "the model's spec")
    return shape


def _check(shape: Model, where: str) -> None:
    for name in _NEEDED:
        if getattr(shape, name) < 1:
            raise SimError(
                "model_field",
                f"{where} gives no usable {name}: {getattr(shape, name)}; it must be at least 1",
                field="model",
                name=name,
                where=where,
            )
    limits = {"layers": 1000, "hidden": 10**6, "heads": 10**5, "vocab": 10**8, "experts": 10**5, "intermediate": 10**7}
    for name, high in limits.items():
        if getattr(shape, name) > high:
            raise SimError(
                "model_field",
                f"{where} gives {name} as {getattr(shape, name)}, above {high}: is it the right file?",
                field="model",
                name=name,
                where=where,
            )
    if shape.heads % shape.kv_heads:
        raise SimError(
            "model_field",
            f"{where} gives {shape.heads} attention heads and {shape.kv_heads} KV heads: "
            "num_attention_heads must be a multiple of num_key_value_heads",
            field="model",
            name="kv_heads",
            where=where,
        )
    if shape.experts and not 1 <= shape.experts_per_token <= shape.experts:
        raise SimError(
            "model_field",
            f"{where} has {shape.experts} experts but num_experts_per_tok is "
            f"{shape.experts_per_token}: it must lie between 1 and {shape.experts}",
            field="model",
            name="experts_per_token",
            where=where,
        )
    if shape.experts and shape.moe_intermediate < 1:
        raise SimError(
            "model_field",
            f"{where} has experts but no moe_intermediate_size",
            field="model",
            name="moe_intermediate",
            where=where,
        )
    if shape.native not in ("", "fp8", "mxfp4", "int4"):
        raise SimError(
            "model_field",
            f"{where} names an unknown precision {shape.native!r}",
            field="model",
            name="native",
            where=where,
        )
    if not 0 < shape.kv_rows_per_token <= 1:
        raise SimError(
            "model_field",
            f"{where}: kv_rows_per_token must lie above 0 and at most at 1",
            field="model",
            name="kv_rows_per_token",
            where=where,
        )


def model_from_config(text: str, name: str = "") -> str:
    """The spec of the model that a Hugging Face config.json describes; `model(spec)` gives its shape.

    Reads the Llama, Qwen, Mixtral, DeepSeek, gpt-oss and GPT/OPT ways of naming things, and the text part of
    multimodal files. SimError names the field that is missing or wrong ("config_json", "config_field", "model_field").
    """
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SimError(
            "config_json", f"config.json is not valid JSON: {error}", field="model", reason=str(error)
        ) from None
    if not isinstance(config, dict):
        raise SimError(
            "config_json",
            "config.json must be an object with fields such as hidden_size",
            field="model",
            reason="no object",
        )
    whole = config
    for inner in ("text_config", "llm_config", "language_config"):
        if isinstance(config.get(inner), dict):
            config = {**config, **config[inner]}
            break

    def number(*names: str, default: int | None = None) -> int:
        for key in names:
            value = config.get(key)
            if value is None:
                continue
            if (
                isinstance(value, bool)
                or not isinstance(value, (int, float))
                or not 0 <= value < 1e12
                or value != int(value)
            ):
                raise SimError(
                    "config_field",
                    f"config.json: {key} must be a whole number, not {value!r}",
                    field="model",
                    name=key,
                    value=str(value),
                )
            return int(value)
        if default is None:
            others = f" (or {', '.join(names[1:])})" if len(names) > 1 else ""
            raise SimError(
                "config_field",
                f"config.json has no {names[0]}{others}, and without it the model's size is unknown: "
                "add it, or use the config.json of the base model",
                field="model",
                name=names[0],
                value="",
            )
        return default

    hidden = number("hidden_size", "n_embd", "d_model")
    layers = number("num_hidden_layers", "n_layer", "num_layers", "n_layers")
    heads = number("num_attention_heads", "n_head", "n_heads")
    if min(hidden, layers, heads) < 1:
        raise SimError(
            "config_field",
            "config.json: hidden_size, num_hidden_layers and num_attention_heads must be at least 1",
            field="model",
            name="hidden_size",
            value=str(hidden),
        )
    rope = number("qk_rope_head_dim", default=0)
    latent = number("kv_lora_rank", default=0)
    head_dim = number("qk_nope_head_dim", default=0) if latent else 0
    head_dim = head_dim or number("head_dim", default=hidden // heads)
    experts = number("n_routed_experts", "num_local_experts", "num_experts", "moe_num_experts", default=0)
    experts = experts if experts > 1 else 0
    expert_width = number("moe_intermediate_size", "intermediate_size", "ffn_dim") if experts else 0
    gated = str(config.get("hidden_act", config.get("activation_function", "silu"))) not in (
        "relu",
        "gelu",
        "gelu_new",
        "gelu_fast",
    )
    dense_width = number(
        "intermediate_size",
        "ffn_dim",
        "n_inner",
        "moe_intermediate_size",
        default=4 * hidden if "n_embd" in config else None,
    )
    kinds = config.get("layer_types")
    window = number("sliding_window", default=0)
    sliding = sum(kind == "sliding_attention" for kind in kinds) if isinstance(kinds, list) else 0
    if window and not isinstance(kinds, list) and config.get("use_sliding_window", True):
        sliding = layers
    rows = 1.0
    ratios = config.get("compress_ratios")
    if isinstance(ratios, list) and ratios and not latent:  # compressed attention over one shared KV row
        latent, head_dim = head_dim - rope, head_dim - rope
        rows = max(0.001, sum(1 / r for r in ratios[:layers] if isinstance(r, (int, float)) and r > 0) / layers)
        sliding = 0
    shared = number("shared_expert_intermediate_size", default=0) or (
        number("n_shared_experts", default=0) * expert_width if experts else 0
    )
    quant = whole.get("quantization_config") or config.get("quantization_config") or {}
    method = str(quant.get("quant_method", "")).lower() if isinstance(quant, dict) else ""
    native = {"fp8": "fp8", "mxfp4": "mxfp4", "awq": "int4", "gptq": "int4", "compressed-tensors": "int4"}.get(
        method, ""
    )
    if str(config.get("expert_dtype", "")).lower() == "fp4":
        native = "mxfp4"
    shape = Model(
        name=name
        or str(config.get("_name_or_path") or config.get("model_type") or "model").rstrip("/").split("/")[-1][:60],
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=number("num_key_value_heads", "multi_query_group_num", default=heads),
        head_dim=head_dim,
        intermediate=dense_width,
        vocab=number("vocab_size"),
        max_position=number("max_position_embeddings", "n_positions", default=131072),
        tied=bool(config.get("tie_word_embeddings", False)),
        gated=gated,
        experts=experts,
        experts_per_token=number("num_experts_per_tok", "experts_per_token", "moe_topk", "moe_k") if experts else 0,
        moe_intermediate=expert_width,
        shared_intermediate=shared,
        dense_layers=number("first_k_dense_replace", default=0) if experts else 0,
        q_lora_rank=number("q_lora_rank", default=0),
        kv_lora_rank=latent,
        qk_rope_head_dim=rope if latent else 0,
        v_head_dim=number("v_head_dim", default=0) if latent else 0,
        sliding_window=window if sliding else 0,
        sliding_layers=sliding,
        kv_rows_per_token=rows,
        native=native,
    )
    _check(shape, "config.json")
    return spec(shape)


@lru_cache(maxsize=1)
def calibration() -> Mapping[str, Mapping[str, Any]]:
    """calibration.toml: constants by GPU, `shared`, the `errors` of the fit by GPU, and `held_out`: by model, the errors on
    the rows of a model that the fit had not seen."""
    with (HERE / "calibration.toml").open("rb") as file:
        return tomllib.load(file)


def step_time_error(gpu_name: str) -> tuple[float, float]:
    """(median, 90th percentile) of |predicted/measured - 1| of step times on that GPU, or on the one it is like.

    nan where nothing was measured on either: its constants are then fitted to one real run, or borrowed.
    """
    card, errors = gpu(gpu_name), calibration().get("errors", {})
    row = errors.get(card.name) or errors.get(card.like) or {}
    return row.get("median", float("nan")), row.get("p90", float("nan"))


def num_gpus(scenario: Scenario) -> int:
    """Cards the deployment occupies."""
    return scenario.tensor_parallel_size * scenario.data_parallel_size


def cost_per_million(scenario: Scenario, tokens_per_s: float, price: float | None = None) -> float:
    """USD per million tokens at that throughput (of all replicas); `price` per GPU and hour, default the catalogue's.

    inf when nothing is produced.
    """
    hourly = num_gpus(scenario) * (gpu(scenario.gpu).price if price is None else price)
    return hourly / 3600 / tokens_per_s * 1e6 if tokens_per_s > 0 else float("inf")
