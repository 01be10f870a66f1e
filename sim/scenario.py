"""Scenario: the one immutable description of a run. Everything else follows from it.

Every field is a plain scalar, so that a Scenario is also a cache key, a URL and a JSON object. What a screen, a shell
or a link needs to know of a field (bounds, choices, unit, vLLM's flag) stands in its metadata, in one place: `SETTINGS`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any


class SimError(ValueError):
    """Something the simulator was given cannot work.

    `code` names the message and `params` fills it, so that a page can say it in the visitor's language; `str()` is
    English. `params["field"]`, where present, is the field at fault.
    """

    def __init__(self, code: str, message: str, **params: Any) -> None:
        super().__init__(message)
        self.code = code
        self.params = params


@dataclass(frozen=True, slots=True)
class Setting:
    """What is known of one field of a Scenario."""

    name: str
    kind: type
    default: Any
    key: str  # short key in links
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    unit: str = ""
    flag: str = ""  # of `vllm serve`, "" if it has none
    status: str = "today"  # "today" | "history" | "what if"


def _number(default: float, low: float, high: float, key: str, unit: str = "", flag: str = "", status: str = "today") -> Any:
    return field(default=default, metadata=dict(key=key, low=low, high=high, unit=unit, flag=flag, status=status))


def _choice(default: str, choices: tuple[str, ...], key: str, flag: str = "", status: str = "today") -> Any:
    return field(default=default, metadata=dict(key=key, choices=choices, flag=flag, status=status))


def _switch(default: bool, key: str, flag: str = "", status: str = "today") -> Any:
    return field(default=default, metadata=dict(key=key, flag=flag, status=status))


def _name(default: str, key: str, flag: str = "") -> Any:
    return field(default=default, metadata=dict(key=key, flag=flag))


@dataclass(frozen=True, slots=True)
class Scenario:
    """One run: the traffic, the server, the hardware. Times in s, lengths in tokens, memory in GiB unless named.

    Raises SimError on a value out of range and on settings that contradict each other (as `vllm serve` would).
    """

    # --- traffic: when requests come
    arrival: str = _choice("poisson", ("poisson", "constant", "bursty", "spike", "ramp", "closed", "trace"), "ar")
    request_rate: float = _number(30.0, 0.01, 5000.0, "rr", "req/s")
    duration_s: float = _number(60.0, 0.1, 86400.0, "du", "s")  # no request is issued after it; the run then drains
    num_requests: int = _number(0, 0, 200_000, "nr")  # at most this many; 0: as many as the duration brings
    burst_cv: float = _number(4.0, 0.1, 20.0, "bc")  # bursty: coefficient of variation of the gaps
    spike_factor: float = _number(5.0, 1.0, 100.0, "sf")  # spike: rate x factor in the middle fifth; ramp: rate -> rate x factor
    num_clients: int = _number(64, 1, 5000, "nc")  # closed: users, each waits for its answer
    think_time_s: float = _number(0.0, 0.0, 600.0, "tt", "s")  # closed, chats: pause between an answer and the next request
    trace: str = _name("azure2023_conv", "tr")  # name of a shipped trace, or "upload"
    trace_start_s: float = _number(0.0, 0.0, 1e8, "ts", "s")  # the window begins here; it is duration_s of trace time long
    rate_scale: float = _number(1.0, 0.01, 1000.0, "rs")  # trace: 2 replays it twice as fast
    # --- traffic: how long they are
    lengths: str = _choice(
        "lognormal", ("fixed", "lognormal", "mixture", "chat", "code", "rag", "agents", "reasoning"), "le"
    )
    prompt_tokens: int = _number(512, 1, 1_000_000, "pt", "tokens")  # mean (fixed, lognormal, short part of mixture)
    output_tokens: int = _number(256, 1, 1_000_000, "ot", "tokens")
    prompt_cv: float = _number(1.0, 0.0, 5.0, "pc")  # lognormal: standard deviation / mean
    output_cv: float = _number(0.8, 0.0, 5.0, "oc")
    long_share: float = _number(0.05, 0.0, 1.0, "ls")  # mixture: share of long prompts
    long_prompt_tokens: int = _number(30_000, 1, 1_000_000, "lp", "tokens")
    system_prompt_tokens: int = _number(0, 0, 100_000, "sp", "tokens")  # shared head of prompts (comes on top)
    num_system_prompts: int = _number(1, 1, 1000, "ns")
    chat_turns: int = _number(1, 1, 50, "ct")  # > 1: each request is a turn that quotes the turns before it
    urgent_share: float = _number(0.0, 0.0, 1.0, "us")  # share with priority 0, the others have 1
    seed: int = _number(7, 0, 2**31 - 1, "sd")
    # --- hardware
    model: str = _name("Llama-3.1-8B", "mo", "--model")  # a name of the catalogue, or a spec made by catalog.model_from_config
    gpu: str = _name("H100-SXM", "gp")
    weights: str = _choice("bf16", ("bf16", "fp8", "int4"), "we", "--quantization")
    kv_cache_dtype: str = _choice("auto", ("auto", "fp8"), "kd", "--kv-cache-dtype")
    tensor_parallel_size: int = _number(1, 1, 64, "tp", "", "--tensor-parallel-size")
    data_parallel_size: int = _number(1, 1, 64, "dp", "", "--data-parallel-size")
    enable_expert_parallel: bool = _switch(False, "ep", "--enable-expert-parallel")
    num_redundant_experts: int = _number(0, 0, 512, "re", "", "--eplb-config.num_redundant_experts")
    expert_skew: float = _number(0.0, 0.0, 2.0, "sk")  # Zipf exponent of the routing
    link: str = _choice("nvlink", ("nvlink", "pcie"), "li")
    gpu_memory_utilization: float = _number(0.92, 0.05, 1.0, "gm", "", "--gpu-memory-utilization")
    num_gpu_blocks_override: int = _number(0, 0, 10_000_000, "nb", "blocks", "--num-gpu-blocks-override")  # 0: from memory
    block_size: int = _number(16, 1, 256, "bs", "tokens", "--block-size")
    max_model_len: int = _number(32_768, 2, 10_000_000, "ml", "tokens", "--max-model-len")
    # --- the two budgets, and the rest of the scheduler
    max_num_seqs: int = _number(256, 1, 4096, "ms", "", "--max-num-seqs")
    max_num_batched_tokens: int = _number(8192, 1, 1_000_000, "mt", "tokens", "--max-num-batched-tokens")
    max_num_active_seqs: int = _number(0, 0, 4096, "ma", "", "--max-num-active-seqs")  # 0: off
    long_prefill_token_threshold: int = _number(0, 0, 1_000_000, "lt", "tokens", "--long-prefill-token-threshold")
    long_prefill_token_threshold_adaptive: bool = _switch(False, "la", "--long-prefill-token-threshold-adaptive")
    enable_chunked_prefill: bool = _switch(True, "cp", "--enable-chunked-prefill")
    enable_prefix_caching: bool = _switch(True, "px", "--enable-prefix-caching")
    scheduling_policy: str = _choice("fcfs", ("fcfs", "priority"), "po", "--scheduling-policy")
    scheduler_reserve_full_isl: bool = _switch(True, "fi", "--scheduler-reserve-full-isl")
    watermark: float = _number(0.0, 0.0, 0.5, "wm", "", "--watermark")
    async_scheduling: bool = _switch(True, "as", "--async-scheduling")  # host work overlaps the GPU's (time only)
    # --- history and what-if
    batching: str = _choice("continuous", ("continuous", "prefill_first", "static"), "ba", "", "history")
    static_timeout_s: float = _number(1.0, 0.0, 600.0, "st", "s", "", "history")  # static: how long a batch gathers
    preemption_mode: str = _choice("recompute", ("recompute", "swap"), "pm", "", "history")
    swap_space_gib: float = _number(4.0, 0.0, 4096.0, "ss", "GiB", "", "history")
    pcie_gb_s: float = _number(25.0, 0.1, 1000.0, "pb", "GB/s", "", "history")
    victim: str = _choice("last_admitted", ("last_admitted", "fewest_remaining", "longest"), "vi", "", "what if")
    router: str = _choice("vllm", ("round_robin", "least_loaded", "vllm"), "ro")
    host: str = _choice("v1", ("v1", "v0", "none"), "ho", "", "history")  # whose CPU time a step pays
    # --- service level, for goodput
    slo_ttft_s: float = _number(1.0, 0.001, 3600.0, "s1", "s")
    slo_tpot_s: float = _number(0.05, 0.0001, 3600.0, "s2", "s")

    def __post_init__(self) -> None:
        for setting in SETTINGS.values():
            _check(setting, getattr(self, setting.name))
        if self.batching == "continuous" and self.max_num_batched_tokens < self.max_num_seqs:
            raise SimError(
                "budget_below_seqs",
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) must be at least max_num_seqs "
                f"({self.max_num_seqs}): raise the first or lower the second",
                field="max_num_batched_tokens", value=self.max_num_batched_tokens, low=self.max_num_seqs,
            )
        if not self.enable_chunked_prefill and self.max_num_batched_tokens < self.max_model_len:
            raise SimError(
                "budget_below_model_len",
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) must be at least max_model_len "
                f"({self.max_model_len}) when chunked prefill is off: raise it, or turn enable_chunked_prefill on",
                field="max_num_batched_tokens", value=self.max_num_batched_tokens, low=self.max_model_len,
            )

    def but(self, **changes: Any) -> Scenario:
        """The same run with some fields changed."""
        return replace(self, **changes)

    def as_dict(self) -> dict[str, Any]:
        """Every field and its value, in order."""
        return asdict(self)


_KINDS: dict[str, type] = {"str": str, "int": int, "float": float, "bool": bool}
SETTINGS: dict[str, Setting] = {
    f.name: Setting(f.name, _KINDS[str(f.type)], f.default, **f.metadata) for f in fields(Scenario)
}
"""Every field of a Scenario by name, in order."""


def _check(setting: Setting, value: Any) -> None:
    right = isinstance(value, (int, float) if setting.kind is float else setting.kind)
    if not right or (isinstance(value, bool) and setting.kind is not bool):
        raise SimError(
            "wrong_type", f"{setting.name} must be {setting.kind.__name__}, not {value!r}",
            field=setting.name, value=value, kind=setting.kind.__name__,
        )
    if setting.choices and value not in setting.choices:
        raise SimError(
            "unknown_choice", f"{setting.name} must be one of {', '.join(setting.choices)}, not {value!r}",
            field=setting.name, value=value, choices=", ".join(setting.choices),
        )
    if setting.low is not None and setting.high is not None and not setting.low <= value <= setting.high:
        raise SimError(
            "out_of_range", f"{setting.name} must lie between {setting.low:g} and {setting.high:g}, not {value!r}",
            field=setting.name, value=value, low=setting.low, high=setting.high,
        )
