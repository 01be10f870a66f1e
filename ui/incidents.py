"""Incidents: dashboards without names. Each is a scenario whose disease `sim.advice` names and whose story was real."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from sim.advice import Advice, Figures, advise, changes
from sim.results import Run
from sim.scenario import Scenario

_BASE = Scenario(duration_s=20.0, max_model_len=32_000, max_num_batched_tokens=8192, max_num_seqs=256)


@dataclass(frozen=True, slots=True)
class Incident:
    """One dashboard. `code`: what advice.py says of it; `causes`, `actions`: what the visitor may choose from.

    case: the id in cases.jsonl that it was drawn from ("" = the lesson); source: where the real report can be read.
    Texts: diagnose.case.<key>.
    """

    key: str
    code: str
    scenario: Scenario
    causes: tuple[str, ...]
    actions: tuple[str, ...]
    case: str
    source: str


def _case(key: str, code: str, causes: str, actions: str, case: str, source: str, **fields: Any) -> Incident:
    return Incident(key, code, _BASE.but(**fields), tuple(causes.split()), tuple(actions.split()), case, source)


INCIDENTS: tuple[Incident, ...] = (
    _case("cap", "BUDGET_SMALL", "KV_FULL_WITH_QUEUE BUDGET_SMALL OVERLOADED HOST_BOUND",
          "replicas seats_up more_kv budget_up", "A1", "liao4s/BurstGPT_test",
          request_rate=40.0, prompt_tokens=300, output_tokens=250, max_num_seqs=64),
    _case("both_full", "KV_FULL_WITH_QUEUE", "BUDGET_SMALL OVERLOADED KV_FULL_WITH_QUEUE PREFILL_BOUND",
          "seats_up more_kv budget_up nothing", "B3", "vllm-project/vllm#3561",
          request_rate=25.0, prompt_tokens=900, output_tokens=300, num_gpu_blocks_override=2600, prompt_cv=0.3,
          output_cv=0.2),
    _case("top", "KV_FULL", "HEALTHY KV_FULL BUDGET_SMALL CLIENT_LIMITED",
          "seats_up nothing more_kv seats_down", "", "",
          arrival="constant", request_rate=5.13, prompt_tokens=1500, output_tokens=500, prompt_cv=0.02,
          output_cv=0.02, num_gpu_blocks_override=3150, max_num_seqs=64),
    _case("thrash", "PAST_SWEET_SPOT", "PAST_SWEET_SPOT BUDGET_SMALL HOST_BOUND LONG_PROMPTS",
          "seats_up budget_up seats_down nothing", "B1", "vllm-project/vllm#18115",
          request_rate=20.0, prompt_tokens=200, output_tokens=800, max_num_seqs=512, num_gpu_blocks_override=3000),
    _case("swap", "PAST_SWEET_SPOT", "OVERLOADED PAST_SWEET_SPOT PREFILL_BOUND HOST_BOUND",
          "seats_down seats_up host budget_up", "C1", "vllm-project/vllm#546",
          request_rate=20.0, prompt_tokens=200, output_tokens=800, max_num_seqs=512, num_gpu_blocks_override=3000,
          preemption_mode="swap", host="v0"),
    _case("long", "LONG_PROMPTS", "BUDGET_SMALL KV_FULL_WITH_QUEUE LONG_PROMPTS CLIENT_LIMITED",
          "seats_up threshold more_kv seats_down", "E1", "vllm-project/vllm#10235",
          request_rate=14.0, lengths="mixture", prompt_tokens=150, output_tokens=100, long_prompt_tokens=16_000,
          long_share=0.08, max_num_batched_tokens=1024),
    _case("prefill", "PREFILL_BOUND", "BUDGET_SMALL PREFILL_BOUND KV_FULL_WITH_QUEUE HOST_BOUND",
          "seats_up more_kv budget_up host", "A3", "vllm-project/vllm#13508",
          request_rate=12.0, prompt_tokens=1800, output_tokens=60, prompt_cv=0.5, max_num_batched_tokens=256,
          max_num_seqs=128),
    _case("client", "CLIENT_LIMITED", "BUDGET_SMALL HEALTHY CLIENT_LIMITED OVERLOADED",
          "seats_up clients budget_up replicas", "J1", "vllm-project/vllm#7241",
          arrival="closed", num_clients=100, prompt_tokens=300, output_tokens=200, think_time_s=0.5),
    _case("ranks", "DP_IMBALANCE", "KV_FULL_WITH_QUEUE BUDGET_SMALL DP_IMBALANCE OVERLOADED",
          "seats_up router budget_up seats_down", "J7", "vllm-project/vllm#48808",
          request_rate=40.0, data_parallel_size=8, router="round_robin", lengths="mixture", long_share=0.015,
          prompt_tokens=200, long_prompt_tokens=30_000, num_gpu_blocks_override=2050, output_tokens=300),
    _case("host", "HOST_BOUND", "CLIENT_LIMITED HOST_BOUND BUDGET_SMALL PREFILL_BOUND",
          "seats_up budget_up host nothing", "J3", "vllm-project/vllm#580",
          request_rate=10.0, model="Llama-3.2-3B", host="v0", prompt_tokens=200, output_tokens=100),
    _case("overload", "OVERLOADED", "BUDGET_SMALL KV_FULL_WITH_QUEUE OVERLOADED PREFILL_BOUND",
          "seats_up budget_up replicas more_kv", "", "",
          request_rate=40.0, prompt_tokens=3000, prompt_cv=0.3, output_tokens=30),
    _case("refused", "NEVER_FITS", "HEALTHY CLIENT_LIMITED NEVER_FITS KV_FULL",
          "length seats_up clients nothing", "H3", "vllm-project/vllm#34076",
          request_rate=5.0, lengths="mixture", prompt_tokens=300, long_prompt_tokens=12_000, long_share=0.1,
          max_model_len=8192, output_tokens=100),
    _case("stutter", "BUDGET_LARGE", "PAST_SWEET_SPOT BUDGET_LARGE HOST_BOUND OVERLOADED",
          "seats_down budget_down budget_up more_kv", "D1", "vllm-project/vllm#7604",
          request_rate=4.0, prompt_tokens=5000, output_tokens=300, prompt_cv=0.5, max_num_batched_tokens=16_384,
          max_num_seqs=128),
    _case("fine", "HEALTHY", "HEALTHY IDLE BUDGET_SMALL KV_NEAR_FULL",
          "seats_up more_kv nothing replicas", "", "",
          request_rate=10.0, prompt_tokens=300, output_tokens=200),
)
"""In the order in which they are met. A new number gives a new instance of the same disease."""

RIGHT = {
    "BUDGET_SMALL": "seats_up", "KV_FULL_WITH_QUEUE": "more_kv", "KV_FULL": "more_kv", "KV_NEAR_FULL": "more_kv",
    "PAST_SWEET_SPOT": "seats_down", "LONG_PROMPTS": "threshold", "PREFILL_BOUND": "budget_up", "CLIENT_LIMITED":
    "clients", "DP_IMBALANCE": "router", "HOST_BOUND": "host", "OVERLOADED": "replicas", "NEVER_FITS": "length",
    "BUDGET_LARGE": "budget_down", "HEALTHY": "nothing", "IDLE": "nothing",
}
"""The action (a word of `actions`) that carries out what advice.py says, by code."""


DECIDE = {
    "BUDGET_SMALL": ("waiting", "running"), "KV_FULL_WITH_QUEUE": ("waiting", "kv"), "KV_FULL": ("kv", "waiting"),
    "KV_NEAR_FULL": ("kv", "waiting"), "PAST_SWEET_SPOT": ("preempted", "waiting"), "LONG_PROMPTS": ("ttft_p50", "waiting"),
    "PREFILL_BOUND": ("ttft", "waiting"), "CLIENT_LIMITED": ("running", "gpu"), "DP_IMBALANCE": ("waiting", "ttft"),
    "HOST_BOUND": ("tpot", "gpu"), "OVERLOADED": ("waiting", "ttft"), "BUDGET_LARGE": ("tpot", "ttft"),
}
"""The two pictures on which a diagnosis turns, by code; of an imbalance, what each engine holds comes before them."""


def instance(incident: Incident, number: int) -> Scenario:
    """The scenario of this number: other requests, a slightly other rate, the same disease."""
    drawn = random.Random(f"{incident.key}.{number}")
    fields: dict[str, Any] = {"seed": drawn.randrange(1, 10**6)}
    if incident.scenario.arrival == "poisson":
        fields["request_rate"] = round(incident.scenario.request_rate * drawn.uniform(0.97, 1.03), 2)
    return incident.scenario.but(**fields)


def verdict(run: Run) -> Advice:
    """What advice.py says of a run, the most pressing."""
    return advise(Figures.of(run))[0]


def act(action: str, scenario: Scenario, advice: Advice) -> dict[str, Any]:
    """What an action changes in a scenario; the right one is advice.py's own."""
    if RIGHT.get(advice.code) == action:
        return changes(advice, scenario)
    s, blocks, budget = scenario, scenario.num_gpu_blocks_override, scenario.max_num_batched_tokens
    return {
        "seats_up": {"max_num_seqs": min(4096, 2 * s.max_num_seqs), "max_num_batched_tokens": max(budget, 2 * s.max_num_seqs)},
        "seats_down": {"max_num_seqs": max(1, s.max_num_seqs // 2)},
        "more_kv": {"num_gpu_blocks_override": 2 * blocks} if blocks else {"kv_cache_dtype": "fp8"},
        "budget_up": {"max_num_batched_tokens": 2 * budget},
        "budget_down": {"max_num_batched_tokens": max(s.max_num_seqs, budget // 4)},
        "replicas": {"data_parallel_size": 2 * s.data_parallel_size},
        "router": {"router": "least_loaded" if s.router == "vllm" else "vllm"},
        "clients": {"num_clients": 2 * s.num_clients} if s.arrival == "closed" else {},
        "host": {"host": "v1" if s.host == "v0" else s.host, "async_scheduling": True},
        "threshold": {"long_prefill_token_threshold": 256},
        "length": {"max_model_len": 2 * s.max_model_len},
        "nothing": {},
    }[action]


SAMPLE_LOG = (
    "(APIServer pid=1) INFO 04-28 22:54:32 [loggers.py:257] Engine 000: Avg prompt throughput: 812.0 tokens/s, Avg generation "
    "throughput: 1840.2 tokens/s, Running: 41 reqs, Waiting: 87 reqs, GPU KV cache usage: 98.9%, Prefix cache hit rate: 12.0%\n"
    "(APIServer pid=1) INFO 04-28 22:54:42 [loggers.py:257] Engine 000: Avg prompt throughput: 640.0 tokens/s, Avg generation "
    "throughput: 1822.9 tokens/s, Running: 40 reqs, Waiting: 94 reqs, GPU KV cache usage: 99.3%, Prefix cache hit rate: 12.1%\n"
)
SAMPLE_SERVE = (
    "docker run --gpus all -p 8000:8000 vllm/vllm-openai:v0.11.0 \\\n  --model Qwen/Qwen3-32B -tp 2 --max-num-seqs 64 \\\n"
    "  --max-num-batched-tokens 8k --gpu-memory-utilization 0.9\n"
)
