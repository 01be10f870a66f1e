"""Where the memory of one rank goes, and how many KV blocks that leaves: what vLLM works out when it starts.

pool = gpu_memory_utilization x total - weights - peak activation - CUDA graphs - what lives outside the allocator.
The smallest rank decides for all; each DP engine has a pool of its own.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache

from sim.catalog import Model, gpu, model
from sim.scenario import Scenario, SimError

GIB = 2**30
MIB = 2**20

# Outside weights and KV, fitted to the recorded RTX 4090 run (2,588 blocks) and to vLLM's start-up logs; see validation.
CONTEXT_BYTES = 300 * MIB  # CUDA context and libraries
COMM_BYTES = 450 * MIB  # NCCL and custom all-reduce buffers, with more than one rank
GRAPH_BYTES = 6 * MIB  # per captured batch size; captured are 1, 2, 4, then every 8th (16th above 256) to 512


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Memory of the fullest rank, bytes, and the KV pool it leaves (blocks include the null block)."""

    total: int
    requested: int  # gpu_memory_utilization x total
    weights: int
    activation: int
    graphs: int
    other: int  # context, libraries, communication buffers
    kv: int  # what the blocks occupy
    num_gpu_blocks: int
    block_bytes: int  # one block on one rank
    kv_tokens: int  # vLLM's "GPU KV cache size"
    max_concurrency: float  # requests of max_model_len that fit
    log_line: str
    notes: tuple[str, ...]


def block_bytes(shape: Model, scenario: Scenario) -> int:
    """Bytes of one KV block on one rank, all layers."""
    width = 1 if scenario.kv_cache_dtype == "fp8" else 2
    return math.ceil(shape.kv_values_per_token(scenario.tensor_parallel_size) * width * scenario.block_size)


def tensor_parallel_sizes(shape: Model) -> list[int]:
    """The sizes that divide a model: its heads, its feed-forward, and its KV heads (or they it: several ranks may hold one)."""
    return [
        n for n in range(1, 65)
        if shape.heads % n == 0 and shape.intermediate % n == 0 and (shape.is_mla or _kv_heads_divide(shape, n))
    ]


def _kv_heads_divide(shape: Model, tp: int) -> bool:
    return shape.kv_heads % tp == 0 if shape.kv_heads >= tp else tp % shape.kv_heads == 0


def check_parallel(shape: Model, scenario: Scenario) -> None:
    """SimError if the ranks cannot divide the model, with vLLM's own words and the sizes that would work."""
    tp, ep = scenario.tensor_parallel_size, scenario.enable_expert_parallel
    for code, what, heads, divides in (
        ("tp_heads", "attention", shape.heads, shape.heads % tp == 0),
        ("tp_kv_heads", "KV", shape.kv_heads, shape.is_mla or _kv_heads_divide(shape, tp)),
    ):
        if not divides:
            works = ", ".join(map(str, tensor_parallel_sizes(shape)))
            raise SimError(
                code, f"Total number of {what} heads ({heads}) must be divisible by tensor parallel size ({tp}). Sizes that work: {works}",
                field="tensor_parallel_size", heads=heads, value=tp, works=works)
    if shape.intermediate % tp:
        raise SimError(
            "tp_width",
            f"{shape.intermediate} is not divisible by {tp}: the feed-forward's width must be divisible by tensor_parallel_size",
            field="tensor_parallel_size",
            width=shape.intermediate,
            value=tp,
        )
    if shape.experts and not ep and shape.moe_intermediate % all_ranks(scenario):
        raise SimError(
            "expert_width",
            f"{shape.moe_intermediate} is not divisible by {all_ranks(scenario)}: without enable_expert_parallel the experts' width "
            "must be divisible by tensor_parallel_size x data_parallel_size",
            field="tensor_parallel_size" if shape.moe_intermediate % tp else "data_parallel_size",
            width=shape.moe_intermediate,
            value=all_ranks(scenario),
        )
    if ep and not shape.experts:
        raise SimError(
            "ep_dense",
            "Number of experts in the model must be greater than 0 when expert parallelism is enabled.",
            field="enable_expert_parallel",
            repair={"enable_expert_parallel": False},
        )
    if ep:
        ranks = expert_ranks(scenario)
        slots = shape.experts + scenario.num_redundant_experts
        if slots % ranks:
            raise SimError(
                "ep_experts",
                f"{shape.experts} experts and {scenario.num_redundant_experts} redundant ones do not divide over "
                f"{ranks} ranks: num_redundant_experts {-shape.experts % ranks} would work",
                field="num_redundant_experts",
                experts=shape.experts,
                ranks=ranks,
                works=-shape.experts % ranks,
            )


def expert_ranks(scenario: Scenario) -> int:
    """Ranks the experts spread over whole (expert parallelism), 1 without: then all ranks hold a slice of each."""
    return all_ranks(scenario) if scenario.enable_expert_parallel else 1


def all_ranks(scenario: Scenario) -> int:
    """GPUs of the server. Experts, whole or sliced, spread over all of them; everything else over those of one replica.

    (vLLM: by default, expert layers form a tensor parallel group of size DP x TP.)
    """
    return scenario.tensor_parallel_size * scenario.data_parallel_size


def rank_weight_bytes(shape: Model, scenario: Scenario) -> int:
    """Weights on the fullest rank."""
    tp = scenario.tensor_parallel_size
    linear, expert = shape.weight_bytes(scenario.weights)
    per_layer = sum(n * k for n, k in shape.attention_matrices(tp))
    dense = sum(n * k for n, k in shape.mlp_matrices(shape.intermediate, tp))
    total = shape.layers * per_layer * linear + (shape.layers - shape.moe_layers) * dense * linear
    if shape.experts:
        shared = sum(n * k for n, k in shape.mlp_matrices(shape.shared_intermediate, tp))
        ranks = expert_ranks(scenario)
        slots = (shape.experts + scenario.num_redundant_experts) / ranks if ranks > 1 else shape.experts / all_ranks(scenario)
        total += shape.moe_layers * (
            shared * linear + shape.hidden * shape.experts * 2 + slots * shape.expert_values * expert
        )
    total += (1 if shape.tied else 2) * shape.vocab / tp * shape.hidden * 2
    return int(total)


def activation_bytes(shape: Model, scenario: Scenario) -> int:
    """Peak activation of a step of max_num_batched_tokens (as vLLM's profiling run measures), one rank.

    The widest moment of a layer (gate, up and their product; or the experts' buffers), the residual stream around it,
    and the sampler's copies of max_num_seqs rows of logits, which are not alive at the same time.
    """
    tp, tokens = scenario.tensor_parallel_size, scenario.max_num_batched_tokens
    width = shape.intermediate / tp * (3 if shape.gated else 2)
    if shape.experts:
        split = 1 if scenario.enable_expert_parallel else all_ranks(scenario)
        per_visit = 3 * shape.moe_intermediate / split + shape.hidden
        share = 1 / tp if scenario.enable_expert_parallel else scenario.data_parallel_size
        width = max(width if shape.dense_layers else 0.0, shape.experts_per_token * per_visit * max(share, 0.25))
    attention = sum(n for n, _ in shape.attention_matrices(tp))
    layer = tokens * (width + attention + 6 * shape.hidden) * 2
    rows = min(scenario.max_num_seqs, tokens)
    logits = rows * shape.vocab * (2 + 4 + 4)  # 16-bit logits, fp32 copy, probabilities
    return int(max(layer, tokens * 2 * shape.hidden * 2 + logits))


def graph_bytes(shape: Model, scenario: Scenario) -> int:
    """Memory of captured CUDA graphs (vLLM captures up to twice max_num_seqs, at most 512 tokens)."""
    largest = min(2 * scenario.max_num_seqs, 512, scenario.max_num_batched_tokens)
    sizes = min(3, largest) + min(largest, 256) // 8 + max(0, largest - 256) // 16
    return int(sizes * GRAPH_BYTES * shape.layers / 32)


def _spent(scenario: Scenario) -> tuple[int, int, int, int]:
    """Bytes that weights, activations, CUDA graphs and the rest take on the fullest rank."""
    shape = model(scenario.model)
    several = scenario.tensor_parallel_size > 1 or (shape.experts and scenario.data_parallel_size > 1)
    other = CONTEXT_BYTES + (COMM_BYTES if several else 0)
    return rank_weight_bytes(shape, scenario), activation_bytes(shape, scenario), graph_bytes(shape, scenario), other


@lru_cache(maxsize=512)
def plan(scenario: Scenario) -> MemoryPlan:
    """The memory of the fullest rank and the KV pool.

    SimError, in vLLM's words and with what would fit, when the engine would not start: the ranks do not divide the
    model ("tp_heads", "tp_kv_heads", "tp_width", "expert_width", "ep_experts") or the model has no experts to spread ("ep_dense"),
    the weights do not fit ("weights_too_large"), nothing is left for KV ("no_kv_memory"), or one request of max_model_len does not fit ("model_len_too_large").
    """
    shape, card = model(scenario.model), gpu(scenario.gpu)
    check_parallel(shape, scenario)
    weights, activation, graphs, other = _spent(scenario)
    requested = int(card.memory_bytes * scenario.gpu_memory_utilization)
    available = requested - weights - activation - graphs - other
    one = block_bytes(shape, scenario)
    blocks, notes = max(0, available // one), []
    override = scenario.num_gpu_blocks_override
    if weights + other > card.memory_bytes or (weights > requested and not override):
        fit = _smallest_tp(scenario)
        raise SimError(
            "weights_too_large",
            f"CUDA out of memory: {scenario.model[:40]} needs {weights / GIB:.1f} GiB of weights on each GPU, and gpu_memory_utilization "
            f"{scenario.gpu_memory_utilization:g} of a {card.label} is {requested / GIB:.1f} GiB. {_advice(fit)}",
            field="tensor_parallel_size",
            weights_gib=weights / GIB,
            requested_gib=requested / GIB,
            gpu=card.label,
            tp=fit or 0,
        )
    if override:
        notes.append(f"Overriding num_gpu_blocks={blocks} with num_gpu_blocks_override={override}")
        blocks = override
    elif blocks < 2:
        fit = _smallest_tp(scenario)
        raise SimError(
            "no_kv_memory",
            "No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine: "
            f"weights {weights / GIB:.1f} GiB, activations {activation / GIB:.1f} GiB and the rest {(graphs + other) / GIB:.1f} GiB "
            f"leave nothing of {requested / GIB:.1f} GiB. {_advice(fit)}",
            field="gpu_memory_utilization",
            weights_gib=weights / GIB,
            requested_gib=requested / GIB,
            activation_gib=activation / GIB,
            tp=fit or 0,
        )
    per_request = -(-scenario.max_model_len // scenario.block_size)
    usable = blocks - 1  # the null block holds nothing
    if per_request > usable:
        longest = usable * scenario.block_size
        raise SimError(
            "model_len_too_large",
            f"To serve at least one request with the model's max seq len ({scenario.max_model_len}), "
            f"({per_request * one / GIB:.2f} GiB KV cache is needed, which is larger than the available KV cache memory "
            f"({blocks * one / GIB:.2f} GiB). Based on the available memory, the estimated maximum model length is {longest}. "
            "Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine.",
            field="max_model_len",
            value=scenario.max_model_len,
            longest=longest,
            needed_gib=per_request * one / GIB,
            available_gib=blocks * one / GIB,
        )
    concurrency = blocks / per_request
    tokens = int(concurrency * scenario.max_model_len)
    if shape.sliding_layers and shape.sliding_window:
        notes.append("layers with a sliding window are counted as if they kept everything")
    if shape.assumed:
        notes.append("assumed, not published: " + ", ".join(shape.assumed))
    return MemoryPlan(
        total=card.memory_bytes,
        requested=requested,
        weights=weights,
        activation=activation,
        graphs=graphs,
        other=other,
        kv=blocks * one,
        num_gpu_blocks=blocks,
        block_bytes=one,
        kv_tokens=tokens,
        max_concurrency=concurrency,
        log_line=f"GPU KV cache size: {tokens:,} tokens, Maximum concurrency for {scenario.max_model_len:,} tokens per request: "
        f"{concurrency:.2f}x",
        notes=tuple(notes),
    )


def _smallest_tp(scenario: Scenario) -> int | None:
    """The smallest tensor_parallel_size that starts, if a larger one does."""
    shape, card = model(scenario.model), gpu(scenario.gpu)
    for tp in (2, 4, 8, 16, 32):
        if tp > scenario.tensor_parallel_size:
            wider = scenario.but(tensor_parallel_size=tp)
            with suppress(SimError):
                check_parallel(shape, wider)
                left = card.memory_bytes * scenario.gpu_memory_utilization - sum(_spent(wider))
                if left // block_bytes(shape, wider) > -(-scenario.max_model_len // scenario.block_size):
                    return tp
    return None


def _advice(fit: int | None) -> str:
    if fit:
        return f"tensor_parallel_size {fit} would fit; so may smaller weights (fp8, int4) or a GPU with more memory"
    return "Take smaller weights (fp8, int4), a GPU with more memory, a higher gpu_memory_utilization or a smaller max_model_len"
