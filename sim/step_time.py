"""How long one engine step takes on that hardware, and why: a sum of named terms.

    linear             projections and feed-forwards: a smooth maximum of FLOPs / peak and bytes / bandwidth, per matrix
    attention_prefill  FLOPs of the new tokens' scores
    attention_decode   KV bytes read, a cost per sequence and a floor per layer
    experts            grouped GEMM: weights of the distinct experts touched, FLOPs, on the most loaded rank
    all_reduce         two a layer with tensor parallelism; gathering tokens for the experts of all replicas, and scattering
    head               logits and sampling
    fixed              norms, rotary embedding, activation: per layer, and bytes that grow with the tokens
    host               CPU work that the GPU waits for (all of it, or what async scheduling cannot hide)

Data-parallel replicas of a model with experts share them, sliced or whole: vLLM spreads them over all TP x DP ranks. Such
replicas begin and end each step together (`StepTime.together`); who is done sooner waits at the gathering of tokens, which
counts as all_reduce. Not modelled: pipeline parallelism.

Attainable shares of the peaks are in calibration.toml, fitted by tools/fit_step_time.py. A decode-only step is a line in
the summed context, so the engine pays one dictionary look-up and a multiplication per tick.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from sim import experts, memory
from sim.catalog import Gpu, Model, calibration, gpu, model
from sim.scenario import Scenario

if TYPE_CHECKING:
    from sim.engine import Batch
    from sim.results import Ticks

Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
Ints = np.ndarray[tuple[int, ...], np.dtype[np.int64]]
Line = tuple[float, float, float]
TERMS = ("linear", "attention_prefill", "attention_decode", "experts", "all_reduce", "head", "fixed", "host")
INF = math.inf
THROTTLE_FROM = 1024
"""Tokens from which a step lasts long enough for power to limit the clock."""
MESSAGE = 64e6
"""Bytes of the message whose rate `link` states."""
NODE = 8
"""GPUs in one server; larger groups talk over the network."""
EXPERT_MOVES, EXPERT_WIDTH_MOVES = 3, 6
"""Values moved for a token's visit to an expert, per hidden value (read, its result written and added up) and per value of
the expert's width (gate and up written and read, their product written and read)."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Constants:
    """What is fitted for one GPU. Shares are of the catalogue's peak; times in microseconds, per layer or kernel."""

    flops: float = 0.78  # large matrices, 16 bit
    flops_fp8: float = 0.6  # large matrices, 8 bit
    bandwidth: float = 0.88  # weights
    kernel_us: float = 3.0  # one matrix multiplication
    kv_bandwidth: float = 0.92
    attention_us: float = 13.0
    attention_flops: float = 0.6
    expert_flops: float = 0.45  # 16 bit
    expert_us: float = 25.0  # routing, sorting, adding up
    expert_floor_us: float = 100.0  # 8-bit experts of the measured rows take at least that; servers show no such floor
    all_reduce_us: float = 5.0
    link: float = 0.75


@dataclass(frozen=True, slots=True)
class Shared:
    """What is fitted once for all GPUs, and host times of real servers."""

    sharpness: float = 4.0  # of the smooth maximum of FLOPs and bytes
    throttle: float = 0.01  # share of the FLOP rate lost at each doubling of tokens beyond THROTTLE_FROM
    quantise_us: float = 1.0  # one activation turned to 8 bit
    quantise_moves: float = 1.0  # times that it is read and written for it
    expert_sharpness: float = 2.0  # likewise, of the experts'
    expert_narrow: float = 0.4  # share of the large matrices' rate that experts of 8 and 4 bits attain
    mla_floor: float = 4.0  # latent attention's many small kernels, in attention_us of a decode
    mla_prefill_us: float = 100.0  # per layer: what a prefill adds to them
    attention_moves: float = 1.5  # times that queries, keys, values and results of a prefill are written or read
    attention_sharpness: float = 2.0  # of the smooth maximum of a prefill's floor and its work
    attention_seq_us: float = 0.12  # per layer and decoding sequence, with eight KV heads on the rank
    mla_seq_us: float = 0.3  # per layer and decoding sequence, with all heads on the rank
    mla_prefill: float = 0.6  # latent attention's share of attention_flops in a prefill
    prefill_attention_us: float = 13.0  # per layer: what a prefill's attention adds to attention_us
    layer_us: float = 6.0  # norms, residual, rotary embedding
    dense_us: float = 3.0  # activation of a dense layer
    hidden_moves: float = 10.0  # values moved per token and hidden value outside matrices, per layer
    width_moves: float = 3.75  # likewise per value of the dense feed-forward's width
    message_power: float = 0.93  # time of a message grows with its size to this power
    gather_tp: float = 0.4  # share of a gathered message that each further TP rank of a replica costs again
    network: float = 0.7  # attainable share of the network between servers
    network_us: float = 80.0  # latency that the network between servers adds
    gather_rank_us: float = 1.2  # latency of gathering, per rank, beyond an all-reduce's
    ring_power: float = 0.75  # all-reduce bytes grow with ((tp - 1) / tp) to this power
    host_us: float = 2500.0  # a step, V1
    host_seq_us: float = 12.0  # per sequence in it
    expert_gap_us: float = 0.0  # per layer with experts: what a real server adds to the kernels
    sampler_us: float = 300.0
    v0_host_us: float = 8000.0
    v0_host_seq_us: float = 60.0


def _filled(kind: type[T], row: Mapping[str, Any]) -> T:
    known = {f.name for f in fields(kind)}  # type: ignore[arg-type]
    return kind(**{key: value for key, value in row.items() if key in known})


def constants(card: Gpu) -> Constants:
    """The fitted constants of a GPU, or of the one it is said to be like."""
    table = calibration()
    return _filled(Constants, table.get(card.name) or table.get(card.like) or {})


@lru_cache(maxsize=1)
def shared() -> Shared:
    """What all GPUs share."""
    return _filled(Shared, calibration().get("shared", {}))


def smooth_max(a: float, b: float, sharpness: float) -> float:
    """(a^s + b^s)^(1/s): at least the larger, at most 2^(1/s) times it."""
    high, low = (a, b) if a > b else (b, a)
    return high * (1.0 + (low / high) ** sharpness) ** (1.0 / sharpness) if high > 0 else 0.0


class Hardware:
    """The terms of one model on one kind of rank; remembers what it worked out, by number of tokens.

    load: for kernels measured one by one, as in step_times/ and not in a server: ([ranks] visits, [ranks] distinct experts)
    of so many tokens. What such rows have and servers do not (`expert_floor_us`, the apart all-reduces) goes with it.
    """

    def __init__(
        self,
        scenario: Scenario,
        fitted: Constants | None = None,
        common: Shared | None = None,
        load: Callable[[float], tuple[Array, Array]] | None = None,
    ) -> None:
        self.shape: Model = model(scenario.model)
        self.card = gpu(scenario.gpu)
        memory.check_parallel(self.shape, scenario)
        self.fitted = fitted or constants(self.card)
        self.shared = common or shared()
        self.tp = scenario.tensor_parallel_size
        self.ep = memory.expert_ranks(scenario)
        self.gathered = scenario.data_parallel_size if self.shape.experts else 1
        self.ranks = self.tp * self.gathered
        self.skew = scenario.expert_skew
        self.redundant = scenario.num_redundant_experts if self.ep > 1 else 0
        shape, card, fit, tp = self.shape, self.card, self.fitted, self.tp
        self.linear_bytes, self.expert_bytes = shape.weight_bytes(scenario.weights)
        self.linear_flops = self._peak(self.linear_bytes)
        self.expert_flops = card.tflops_bf16 * 1e12 * fit.expert_flops
        if self._narrow(self.expert_bytes):
            self.expert_flops = self._peak(self.expert_bytes) * self.shared.expert_narrow
        self.bandwidth = card.bandwidth * fit.bandwidth
        self.link = card.nvlink if scenario.link == "nvlink" and card.nvlink else card.pcie
        self.peak_bandwidth = card.bandwidth * max(fit.bandwidth, fit.kv_bandwidth)
        self.attention = shape.attention_matrices(tp)
        self.dense = shape.mlp_matrices(shape.intermediate, tp)
        self.shared_mlp = shape.mlp_matrices(shape.shared_intermediate, tp) if shape.shared_intermediate else []
        width = 1 if scenario.kv_cache_dtype == "fp8" else 2
        self.kv_bytes = shape.kv_values_per_token(tp) * width
        score_dim = shape.head_dim + shape.qk_rope_head_dim + (shape.v_head_dim or shape.head_dim)
        self.pair_flops = 2.0 * shape.heads / tp * score_dim * shape.layers * shape.kv_rows_per_token
        self.attention_us = fit.attention_us * (self.shared.mla_floor if shape.is_mla else 1.0)
        self.prefill_us = self.attention_us + (
            self.shared.mla_prefill_us if shape.is_mla else self.shared.prefill_attention_us)
        value_dim, query_dim = shape.v_head_dim or shape.head_dim, shape.head_dim + shape.qk_rope_head_dim
        kv_heads = shape.heads / tp if shape.is_mla else max(1.0, shape.kv_heads / tp)  # latent rows are unpacked
        touched = (shape.heads / tp + kv_heads) * (query_dim + value_dim)
        self.qkv_bytes = shape.layers * touched * 2.0 * self.shared.attention_moves
        self.load = load or self._load
        self.by_kernel = load is not None
        self.host_model = scenario.host
        self.host_s, self.host_seq_s = {
            "none": (0.0, 0.0),
            "v0": (self.shared.v0_host_us * 1e-6, self.shared.v0_host_seq_us * 1e-6),
        }.get(scenario.host, (self.shared.host_us * 1e-6, self.shared.host_seq_us * 1e-6))
        self.slides = bool(shape.sliding_layers)
        self.overlaps = scenario.async_scheduling and scenario.host != "v0"  # the host prepares a step during the one before
        self._layers: dict[int, tuple[float, float, float, float]] = {}
        self._heads: dict[int, float] = {}
        self._attention: dict[int, list[Line]] = {0: [(0.0, 0.0, INF)]}
        self._ragged: dict[int, float] = {}
        self._own: dict[int, float] = {}
        self._common: dict[int, tuple[float, float]] = {}
        attainable = card.tflops_bf16 * 1e12 * fit.attention_flops * (self.shared.mla_prefill if shape.is_mla else 1.0)
        kv_rate = card.bandwidth * fit.kv_bandwidth
        self.pair_s, self.seen_s, self.token_s = self.pair_flops / attainable, self.kv_bytes / kv_rate, self.qkv_bytes / kv_rate
        sharpness = self.shared.attention_sharpness  # of a smooth maximum, as in smooth_max; neither side comes near 0
        self.attention_sharpness, self.attention_root = sharpness, 1.0 / sharpness
        self.prefill_floor_power = (shape.layers * self.prefill_us * 1e-6) ** sharpness
        self._decode: dict[int, tuple[Line, ...]] = {}

    def _peak(self, width: float) -> float:
        card, fit = self.card, self.fitted
        if width <= 0.6 and card.tflops_fp4:
            return card.tflops_fp4 * 1e12 * fit.flops_fp8
        if width <= 1.0 and width > 0.6 and card.tflops_fp8:
            return card.tflops_fp8 * 1e12 * fit.flops_fp8
        return card.tflops_bf16 * 1e12 * fit.flops

    def _load(self, tokens: float) -> tuple[Array, Array]:
        """([ranks] expert visits, [ranks] distinct experts touched) of a batch in one layer."""
        shape, skew, ranks, redundant = self.shape, self.skew, self.ep, self.redundant
        return (
            tokens * experts.rank_load(shape, skew, ranks, redundant),
            experts.rank_distinct(shape, skew, tokens, ranks, redundant),
        )

    # --- terms that depend on the number of tokens
    def _narrow(self, width: float) -> bool:
        """Whether weights of that width meet activations of 8 or 4 bits, which must be quantised on the way."""
        return bool(self.card.tflops_fp8 if width > 0.6 else self.card.tflops_fp4) and width <= 1.0

    def _matrix(self, outputs: float, inputs: float, tokens: float, width: float, flops: float) -> float:
        """Seconds of [tokens, inputs] x [inputs, outputs]: the larger of FLOPs and bytes, and what overlaps with neither."""
        shared, quantised = self.shared, self._narrow(width)
        compute = 2.0 * tokens * outputs * inputs / flops
        if tokens > THROTTLE_FROM:  # long bursts at full power lower the clock
            compute *= 1.0 + shared.throttle * math.log2(tokens / THROTTLE_FROM)
        moved = (outputs * inputs * width + tokens * (outputs + inputs) * 2.0) / self.bandwidth
        extra = 0.0
        launch = self.fitted.kernel_us
        if quantised:
            extra += tokens * inputs * 3.0 * shared.quantise_moves
            launch += shared.quantise_us
        return smooth_max(compute, moved, shared.sharpness) + extra / self.bandwidth + launch * 1e-6

    def linear(self, tokens: int) -> float:
        """Seconds of all projections and dense feed-forwards."""
        shape = self.shape

        def of(matrices: list[tuple[int, int]]) -> float:
            return sum(self._matrix(n, k, tokens, self.linear_bytes, self.linear_flops) for n, k in matrices)

        total = shape.layers * of(self.attention) + (shape.layers - shape.moe_layers) * of(self.dense)
        if shape.moe_layers:
            router = self._matrix(shape.experts, shape.hidden, tokens, 2.0, self.card.tflops_bf16 * 1e12 * self.fitted.flops)
            total += shape.moe_layers * (of(self.shared_mlp) + router)
        return total

    def moe(self, tokens: float) -> float:
        """Seconds of the experts on the rank that takes longest, for so many tokens of each replica.

        FLOPs of the visits against weights of the experts touched.
        """
        shape, fit = self.shape, self.fitted
        if not shape.moe_layers:
            return 0.0
        visits, distinct = self.load(tokens * self.gathered)
        shard = 1 if self.ep > 1 else self.ranks
        values = shape.expert_values / shard
        compute = 2.0 * visits * values / self.expert_flops
        move = distinct * values * self.expert_bytes / self.bandwidth
        copied = EXPERT_MOVES * shape.hidden + EXPERT_WIDTH_MOVES * shape.moe_intermediate / shard
        power = self.shared.expert_sharpness
        busy = (compute**power + move**power) ** (1.0 / power) + visits * copied * 2.0 / self.card.bandwidth
        seconds = float(busy.max()) + fit.expert_us * 1e-6
        if self.host_model != "none":
            seconds += self.shared.expert_gap_us * 1e-6
        if self.by_kernel and self._narrow(self.expert_bytes):
            seconds = smooth_max(seconds, fit.expert_floor_us * 1e-6, 4.0)
        return shape.moe_layers * seconds

    def all_reduce(self, tokens: int) -> float:
        """Seconds of two all-reduces a layer between the ranks of a replica."""
        shape, fit, shared = self.shape, self.fitted, self.shared
        if self.tp == 1:
            return 0.0
        size = tokens * shape.hidden * 2.0 * 2.0 * ((self.tp - 1) / self.tp) ** shared.ring_power
        count = 2 * shape.layers
        if shape.shared_intermediate and self.by_kernel:  # in the rows shared experts come in and go out apart
            count += 2 * shape.moe_layers
        return count * (fit.all_reduce_us * 1e-6 + self._sent(size, self.tp))

    def gather(self, tokens: float) -> float:
        """Seconds of bringing so many tokens of each replica to the experts of all, and back."""
        shape, fit, shared = self.shape, self.fitted, self.shared
        if self.gathered == 1:
            return 0.0
        size = tokens * shape.hidden * 2.0
        copies = (self.gathered - 1) * (1.0 + shared.gather_tp * (self.tp - 1))
        latency = fit.all_reduce_us + shared.gather_rank_us * self.gathered
        if self.ranks > NODE:
            latency += shared.network_us
        return 2 * shape.moe_layers * (latency * 1e-6 + copies * self._sent(size, self.ranks))

    def _sent(self, size: float, ranks: int) -> float:
        """Seconds to move so many bytes: links come near their rate only with large messages."""
        if not size:
            return 0.0
        if ranks > NODE:
            return size / self._link(ranks)
        slower: float = (size / MESSAGE) ** (self.shared.message_power - 1.0)
        return size / self._link(ranks) * slower

    def _link(self, ranks: int) -> float:
        """Attainable bytes/s of one GPU's link in a group of so many ranks: beyond eight they talk over the network."""
        return self.card.network * self.shared.network if ranks > NODE else self.link * self.fitted.link

    def fixed(self, tokens: int) -> float:
        """Seconds of everything else inside the layers."""
        shape, shared = self.shape, self.shared
        dense = shape.layers - shape.moe_layers
        width = (
            dense * shared.width_moves * shape.intermediate
            + shape.moe_layers * shared.width_moves * shape.shared_intermediate
        )
        moved = tokens * 2.0 * (shape.layers * shared.hidden_moves * shape.hidden + width / self.tp)
        return (shape.layers * shared.layer_us + dense * shared.dense_us) * 1e-6 + moved / self.card.bandwidth

    def head(self, sampled: int) -> float:
        """Seconds of logits and sampling."""
        shape = self.shape
        flops = self.card.tflops_bf16 * 1e12 * self.fitted.flops
        logits = self._matrix(shape.vocab / self.tp, shape.hidden, sampled, 2.0, flops)
        if self.host_model == "none":
            return logits
        return logits + self.shared.sampler_us * 1e-6 + sampled * shape.vocab * 16.0 / self.bandwidth

    def host(self, seqs: int) -> float:
        """Seconds of CPU work for a step of so many sequences."""
        return self.host_s + self.host_seq_s * seqs

    def base(self, tokens: int, sampled: int) -> tuple[float, float, float, float, float]:
        """(linear, experts, all_reduce, head, fixed) in s; remembered."""
        layers = self._layers.get(tokens)
        if layers is None:
            layers = self._layers[tokens] = (
                self.linear(tokens), self.moe(tokens), self.all_reduce(tokens) + self.gather(tokens), self.fixed(tokens),
            )
        head = self._heads.get(sampled)
        if head is None:
            head = self._heads[sampled] = self.head(sampled)
        linear, moe, reduce_, fixed = layers
        return linear, moe, reduce_, head, fixed

    def own(self, tokens: int, sampled: int) -> float:
        """Seconds of what a replica does by itself, attention apart; remembered."""
        found = self._own.get(tokens)
        if found is None:
            found = self._own[tokens] = self.linear(tokens) + self.all_reduce(tokens) + self.fixed(tokens)
        return found + self.base(tokens, sampled)[3]

    def common(self, tokens: int) -> tuple[float, float]:
        """(experts, gathering) in s for that many tokens of all replicas together; remembered."""
        found = self._common.get(tokens)
        if found is None:
            each = tokens / self.gathered
            found = self._common[tokens] = (self.moe(each), self.gather(each))
        return found

    def ragged(self, tokens: int) -> float:
        """Seconds of the layers, attention apart, in a step that holds a prefill; remembered."""
        linear, moe, reduce_, _, fixed = self.base(tokens, 1)
        found = self._ragged[tokens] = linear + moe + reduce_ + fixed
        return found

    # --- attention
    def attention_lines(self, seqs: int) -> list[Line]:
        """Decode attention as lines in the summed context: [(fixed s, s per token, holds up to this context), ...]."""
        shape, fit = self.shape, self.fitted
        per_seq = self.shared.attention_seq_us * min(1.0, max(1.0, shape.kv_heads / self.tp) / 8)
        if shape.is_mla:
            per_seq = self.shared.mla_seq_us * shape.heads / self.tp / 128
        floor = shape.layers * (self.attention_us + per_seq * seqs) * 1e-6
        per_token = self.kv_bytes / (self.card.bandwidth * fit.kv_bandwidth)
        if shape.is_mla:
            flops = 2.0 * shape.heads / self.tp * (2 * shape.kv_lora_rank + shape.qk_rope_head_dim) * shape.layers
            per_token = max(
                per_token, flops * shape.kv_rows_per_token / (self.card.tflops_bf16 * 1e12 * fit.attention_flops)
            )
        if not shape.sliding_layers:
            return [(floor, per_token, INF)]
        windowed = per_token * shape.sliding_layers / shape.layers
        reach = float(seqs * shape.sliding_window)
        return [(floor, per_token, reach), (floor + windowed * reach, per_token - windowed, INF)]

    def attention_decode(self, seqs: int, context: int) -> float:
        """Seconds of attention of the decoding sequences."""
        lines = self._attention.get(seqs)
        if lines is None:
            lines = self._attention[seqs] = self.attention_lines(seqs)
        floor, slope, limit = lines[0]
        if context > limit:
            floor, slope, _ = lines[-1]
        return floor + slope * context

    def attention_prefill(self, seqs: int, tokens: int, pairs: int, context: int) -> float:
        """Seconds of attention of the chunks: FLOPs of (new, seen) pairs, the KV they read, a floor."""
        if not tokens:
            return 0.0
        attended = float(pairs)
        if self.slides:
            shape = self.shape
            seen = min(attended, float(tokens) * shape.sliding_window)
            attended = (attended * (shape.layers - shape.sliding_layers) + seen * shape.sliding_layers) / shape.layers
        work = attended * self.pair_s + context * self.seen_s + tokens * self.token_s
        seconds: float = (self.prefill_floor_power + work**self.attention_sharpness) ** self.attention_root
        return seconds

    # --- whole steps
    def step(self, gpu_s: float, host_s: float) -> float:
        """Duration of a step from GPU and host seconds."""
        return max(gpu_s, host_s) if self.overlaps else gpu_s + host_s

    def decode_lines(self, seqs: int) -> tuple[Line, ...]:
        """A decode-only step as lines in the summed context; remembered."""
        found = self._decode.get(seqs)
        if found is None:
            linear, moe, reduce_, head, fixed = self.base(seqs, seqs)
            rest, host = linear + moe + reduce_ + head + fixed, self.host(seqs)
            lines: list[Line] = []
            for floor, slope, limit in self.attention_lines(seqs):
                start = rest + floor
                if not self.overlaps:
                    lines.append((start + host, slope, limit))
                    continue
                crossing = (host - start) / slope if slope > 0 else (INF if host > start else 0.0)
                crossing = float(math.floor(min(crossing, 1e15)))
                if crossing > 0:  # the host is the slower up to there
                    lines.append((host, 0.0, min(crossing, limit)))
                if crossing < limit:
                    lines.append((start, slope, limit))
            found = self._decode[seqs] = tuple(lines)
        return found


@lru_cache(maxsize=128)
def _hardware(scenario: Scenario) -> Hardware:
    return Hardware(scenario)


# Fields that do not touch the duration of a step take their defaults in the key, so that a sweep over them shares one table.
_TIMED = (
    "model",
    "gpu",
    "weights",
    "kv_cache_dtype",
    "tensor_parallel_size",
    "data_parallel_size",
    "enable_expert_parallel",
    "num_redundant_experts",
    "expert_skew",
    "link",
    "async_scheduling",
    "host",
)


class StepTime:
    """The clock of an engine: seconds of a step, and afterwards the terms it was made of."""

    def __init__(self, scenario: Scenario, hardware: Hardware | None = None) -> None:
        self.hardware = hardware or _hardware(Scenario(**{name: getattr(scenario, name) for name in _TIMED}))
        shape, hard = self.hardware.shape, self.hardware
        self.block_bytes: int = memory.block_bytes(shape, scenario)
        self.peak_bandwidth: float = hard.peak_bandwidth
        self.jitter: tuple[float, ...] = _jitter(shape, hard, scenario)
        self.in_step = hard.gathered > 1
        self._lines = hard._decode

    def decode(self, num_seqs: int, context: int) -> Line:
        """(fixed s, s per token, context_limit): a decode-only step takes fixed + per_token * context up to the limit."""
        lines = self._lines.get(num_seqs) or self.hardware.decode_lines(num_seqs)
        for line in lines:
            if context <= line[2]:
                return line
        return lines[-1]

    def seconds(
        self,
        decode_seqs: int,
        decode_context: int,
        prefill_seqs: int,
        prefill_tokens: int,
        prefill_pairs: int,
        prefill_context: int,
        sampled: int,
    ) -> float:
        """Duration of a step; without prefill it equals decode() to the bit."""
        if not prefill_tokens:
            fixed, slope, _ = self.decode(decode_seqs, decode_context)
            return fixed + slope * decode_context
        hard = self.hardware
        tokens = decode_seqs + prefill_tokens
        gpu_s = hard._ragged.get(tokens) or hard.ragged(tokens)
        gpu_s += hard._heads.get(sampled) or hard.base(tokens, sampled)[3]
        gpu_s += hard.attention_prefill(prefill_seqs, prefill_tokens, prefill_pairs, prefill_context)
        gpu_s += hard.attention_decode(decode_seqs, decode_context)
        host_s = hard.host_s + hard.host_seq_s * (decode_seqs + prefill_seqs)
        if hard.overlaps:
            return gpu_s if gpu_s > host_s else host_s
        return gpu_s + host_s

    def together(self, batches: Sequence[Batch | None]) -> float:
        """Duration of one step of replicas that share experts; None has nothing to do and takes part with a single token.

        Each replica's own part takes what the slowest needs; the experts get the tokens of all. Of equal batches it is what
        `seconds` says of one.
        """
        hard = self.hardware
        slowest = host_s = 0.0
        everybody = 0
        for batch in batches:
            if batch is None:
                everybody += 1
                continue
            decode_seqs, decode_context, chunks, tokens, pairs, seen, sampled = batch
            everybody += decode_seqs + tokens
            own = hard.own(decode_seqs + tokens, sampled) + hard.attention_decode(decode_seqs, decode_context)
            slowest = max(slowest, own + hard.attention_prefill(chunks, tokens, pairs, seen))
            host_s = max(host_s, hard.host(decode_seqs + chunks))
        return hard.step(slowest + sum(hard.common(everybody)), host_s)

    def terms(self, ticks: Ticks) -> dict[str, Array]:
        """Seconds of each of TERMS per tick, before jitter; their sum is the duration (hidden host time is left out)."""
        count = len(ticks.decode_seqs)
        out: dict[str, Array] = {name: np.zeros(count) for name in TERMS}
        hard = self.hardware
        for i, (seqs, context, chunks, tokens, pairs, seen, sampled) in enumerate(
            zip(
                *(
                    np.asarray(getattr(ticks, name)).tolist()
                    for name in (
                        "decode_seqs",
                        "decode_context",
                        "prefill_seqs",
                        "prefill_tokens",
                        "prefill_pairs",
                        "prefill_context",
                        "sampled",
                    )
                ),
                strict=True,
            )
        ):
            if not seqs + tokens:
                continue
            linear, moe, reduce_, head, fixed = hard.base(seqs + tokens, sampled if tokens else seqs)
            prefill = hard.attention_prefill(chunks, tokens, pairs, seen)
            decode = hard.attention_decode(seqs, context)
            total = linear + moe + reduce_ + head + fixed + prefill + decode
            out["linear"][i], out["experts"][i], out["all_reduce"][i], out["head"][i], out["fixed"][i] = (
                linear,
                moe,
                reduce_,
                head,
                fixed,
            )
            out["attention_prefill"][i], out["attention_decode"][i] = prefill, decode
            out["host"][i] = hard.step(total, hard.host(seqs + chunks)) - total
        if self.in_step:
            self._share(ticks, out)
        return out

    def _share(self, ticks: Ticks, out: dict[str, Array]) -> None:
        """Terms of replicas in step: experts with the tokens of all, and the wait for the slowest in all_reduce."""
        hard = self.hardware
        _, step = np.unique(ticks.start, return_inverse=True)
        common = np.array([hard.common(n) for n in self._everybody(ticks).tolist()]).reshape(-1, 2)

        def slowest(values: Any) -> Array:
            found = np.zeros(len(values))
            np.maximum.at(found, step, values)
            return found[step]

        reduce_ = np.array([hard.all_reduce(n) for n in (ticks.decode_seqs + ticks.prefill_tokens).tolist()])
        own = reduce_ + sum(out[name] for name in ("linear", "attention_prefill", "attention_decode", "head", "fixed"))
        wait = slowest(own) - own
        out["experts"], out["all_reduce"] = common[:, 0], reduce_ + common[:, 1] + wait
        gpu_s, host_s = own + wait + common.sum(axis=1), slowest(hard.host_s + hard.host_seq_s * (ticks.decode_seqs + ticks.prefill_seqs))
        out["host"] = np.maximum(host_s - gpu_s, 0.0) if hard.overlaps else host_s

    def _everybody(self, ticks: Ticks) -> Ints:
        """Tokens of each tick that go through the experts it uses: its own, or of all replicas that step with it.

        A replica that has no tick there had nothing to do, and took part with one token.
        """
        tokens: Ints = ticks.decode_seqs + ticks.prefill_tokens
        if not self.in_step:
            return tokens
        _, step = np.unique(ticks.start, return_inverse=True)
        everybody: Ints = (np.bincount(step, tokens).astype(np.int64) + self.hardware.gathered - np.bincount(step))[step]
        return everybody

    def _weights(self) -> int:
        """Values of one rank's matrices that every token passes through: experts and head apart."""
        hard, shape = self.hardware, self.hardware.shape
        attention, dense, shared_mlp = (sum(n * k for n, k in m) for m in (hard.attention, hard.dense, hard.shared_mlp))
        return shape.layers * attention + (shape.layers - shape.moe_layers) * dense + shape.moe_layers * shared_mlp

    def _attended(self, pairs: Any, queries: Any) -> Array:
        """(query, key) pairs of the mean layer: in those with a sliding window a query sees no more than that."""
        shape = self.hardware.shape
        windowed = shape.sliding_layers / shape.layers
        result: Array = pairs * (1 - windowed) + np.minimum(pairs, queries * shape.sliding_window) * windowed
        return result

    def compute_seconds(self, ticks: Ticks) -> Array:
        """Seconds per tick that its FLOPs take at the rates the kernels attain: never more than the tick's duration."""
        hard, shape = self.hardware, self.hardware.shape
        decode, prefill = np.asarray(ticks.decode_seqs), np.asarray(ticks.prefill_tokens)
        tokens, wide = decode + prefill, hard.card.tflops_bf16 * 1e12 * hard.fitted.flops
        head = np.asarray(ticks.sampled) * shape.vocab * shape.hidden / hard.tp
        visits = self._everybody(ticks) / hard.ranks * shape.moe_layers * shape.experts_per_token
        pairs = self._attended(np.asarray(ticks.prefill_pairs), prefill) + self._attended(np.asarray(ticks.decode_context), decode)
        matrices = tokens * self._weights() / hard.linear_flops + visits * shape.expert_values / hard.expert_flops + head / wide
        result: Array = 2.0 * matrices + pairs * hard.pair_s
        return result

    def bytes(self, ticks: Ticks) -> Array:
        """Bytes one rank moves per tick: weights (of experts, those touched) once a step, KV read and written."""
        hard, shape = self.hardware, self.hardware.shape
        decode, prefill = np.asarray(ticks.decode_seqs), np.asarray(ticks.prefill_tokens)
        tokens = decode + prefill
        weights = np.full(len(tokens), self._weights() * hard.linear_bytes + shape.vocab * shape.hidden * 2.0 / hard.tp)
        if shape.moe_layers:
            sizes, where = np.unique(self._everybody(ticks), return_inverse=True)
            touched = np.array([
                experts.rank_distinct(shape, hard.skew, size, hard.ep, hard.redundant).mean() for size in sizes.tolist()
            ])
            values = shape.expert_values / (1 if hard.ep > 1 else hard.ranks)
            weights = weights + shape.moe_layers * touched[where] * values * hard.expert_bytes
        read = self._attended(np.asarray(ticks.decode_context), decode) + np.asarray(ticks.prefill_context)
        result: Array = np.where(tokens > 0, weights, 0.0) + (read + tokens) * hard.kv_bytes
        return result


def _jitter(shape: Model, hard: Hardware, scenario: Scenario) -> tuple[float, ...]:
    """Multipliers of successive steps: which experts a batch happens to load, drawn once from the scenario's seed.

    The spread is that of the share of a step its slowest rank decides; dense models and single ranks have none.
    """
    if not shape.moe_layers or hard.ep == 1:
        return ()
    draws = np.random.default_rng([scenario.seed, 97]).normal(0.0, 0.02, 1024)
    return tuple((1.0 + np.clip(draws, -0.06, 0.06)).tolist())
