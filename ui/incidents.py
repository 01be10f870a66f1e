"""Incidents: dashboards without names. Each is a scenario whose disease `sim.advice` names and whose story was real.

What an action does to it is one more run, and `outcome` says in the figures of both what came of it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np

from sim.advice import Advice, Figures, advise, changes
from sim.presets import preset
from sim.results import Run
from sim.scenario import Scenario
from sim.sentences import Blanks
from ui.text import figure, joined, seconds, t, value

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


def _case(
    key: str, code: str, causes: str, actions: str, case: str, source: str, base: Scenario = _BASE, **fields: Any,
) -> Incident:
    return Incident(key, code, base.but(**fields), tuple(causes.split()), tuple(actions.split()), case, source)


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
    _case("thrash", "PAST_SWEET_SPOT", "PAST_SWEET_SPOT BUDGET_SMALL HOST_BOUND CLIENT_LIMITED",
          "seats_up clients seats_down nothing", "B1", "vllm-project/vllm#18115",
          arrival="closed", num_clients=16, think_time_s=4.0, duration_s=40.0, prompt_tokens=16_000, prompt_cv=0.1,
          output_tokens=200, output_cv=0.3, max_num_seqs=16, num_gpu_blocks_override=12_000, enable_prefix_caching=False,
          scheduler_reserve_full_isl=False),
    _case("swap", "PAST_SWEET_SPOT", "BUDGET_SMALL PAST_SWEET_SPOT PREFILL_BOUND HOST_BOUND",
          "seats_down seats_up host budget_up", "C1", "vllm-project/vllm#546", preset("lesson_exp2_512").scenario),
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
          request_rate=110.0, data_parallel_size=8, router="round_robin", lengths="mixture", long_share=0.02,
          prompt_tokens=200, long_prompt_tokens=16_000, num_gpu_blocks_override=3000, output_tokens=200),
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
          request_rate=2.5, prompt_tokens=5000, output_tokens=300, prompt_cv=0.5, max_num_batched_tokens=16_384,
          max_num_seqs=128),
    _case("fine", "HEALTHY", "HEALTHY IDLE BUDGET_SMALL KV_NEAR_FULL",
          "seats_up more_kv nothing replicas", "", "",
          request_rate=10.0, prompt_tokens=300, output_tokens=200),
)
"""In the order in which they are met."""
INSTANCES = 5
"""Of each: other requests, the same disease."""

RIGHT = {
    "BUDGET_SMALL": "seats_up", "KV_FULL_WITH_QUEUE": "more_kv", "KV_FULL": "more_kv", "KV_NEAR_FULL": "more_kv",
    "PAST_SWEET_SPOT": "seats_down", "LONG_PROMPTS": "threshold", "PREFILL_BOUND": "budget_up", "CLIENT_LIMITED":
    "clients", "DP_IMBALANCE": "router", "HOST_BOUND": "host", "OVERLOADED": "replicas", "NEVER_FITS": "length",
    "BUDGET_LARGE": "budget_down", "HEALTHY": "nothing", "IDLE": "nothing",
}
"""The action (a word of `actions`) that carries out what advice.py says, by code."""


DECIDE = {
    "BUDGET_SMALL": ("waiting", "running"), "KV_FULL_WITH_QUEUE": ("waiting", "kv"), "KV_FULL": ("kv", "waiting"),
    "KV_NEAR_FULL": ("kv", "waiting"), "PAST_SWEET_SPOT": ("preempted", "tpot"), "LONG_PROMPTS": ("ttft_p50", "waiting"),
    "PREFILL_BOUND": ("ttft", "waiting"), "CLIENT_LIMITED": ("running", "gpu"), "DP_IMBALANCE": ("waiting", "ttft"),
    "HOST_BOUND": ("tpot", "running"), "OVERLOADED": ("waiting", "ttft"), "BUDGET_LARGE": ("itl", "ttft"),
    "NEVER_FITS": ("running", "ttft"),
}
"""The two pictures on which a diagnosis turns, by code; of an imbalance, what each engine holds comes before them."""


def instance(incident: Incident, number: int) -> Scenario:
    """The scenario of a number in 1..INSTANCES: other requests, a slightly other rate, the same disease."""
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
    wanted = {
        "seats_up": {"max_num_seqs": min(4096, 2 * s.max_num_seqs), "max_num_batched_tokens": max(budget, 2 * s.max_num_seqs)},
        "seats_down": {"max_num_seqs": max(1, s.max_num_seqs // 2)},
        "more_kv": {"num_gpu_blocks_override": 2 * blocks} if blocks else {"gpu_memory_utilization": 0.95},
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
    return {k: v for k, v in wanted.items() if getattr(s, k) != v}


# --- what an action did, in words --------------------------------------------------------------------------------------

FIGURES = {
    "qps": ("req/s", 1), "ttft_p99": ("s", -1), "itl_p99": ("s", -1), "preemptions": ("", -1), "kv_max": ("%", 0), "refused": ("", -1),
}
"""What is shown of a run: unit, and whether more (+1) or less (-1) of it is better."""
SLIGHT = 0.01
"""A share by which a figure moves without being called better or worse."""


def named(code: str) -> str:
    """A diagnosis in words."""
    return _capital(t(f"advice.name_{code.lower()}"))


def say(key: str, advice: Advice) -> str:
    """A sentence of an Advice in the visitor's language; what is unknown is a question mark."""
    return _capital(t(f"advice.{key}").format_map(Blanks(advice.params)))


def action_name(action: str) -> str:
    """What a button says."""
    return _capital(t(f"diagnose.act.{action}"))


def _capital(words: str) -> str:
    """A sentence's beginning; names of settings stay as vLLM writes them."""
    return words if words.startswith(("max_num", "--")) else words[:1].upper() + words[1:]


def figures(advice: Advice) -> dict[str, tuple[str, int]]:
    """The five of FIGURES that tell what a change did; first the one that the advice promises to mend."""
    name = advice.promise.lstrip("+") or "qps"
    unit, sense = FIGURES.get(name, ("s", -1))
    promised = {name: (unit, sense or -1)}
    return dict([*(promised | FIGURES | promised).items()][:5])


def outcome(before: Run, after: Run, advised: Run, advice: Advice, action: str) -> str:
    """Whether what was wrong got better, at what price, what is wrong now, and what the advised action would have given."""
    (name, (unit, sense)), *others = figures(advice).items()
    gain, best = (_gain(before, run, name, sense) for run in (after, advised))
    effect = "same" if not gain else "worse" if gain < 0 else "little" if gain < best / 3 else "better"
    moved, comma = [_moved(before, after, name, unit)], t("narration.comma")
    price = [_moved(before, after, other, u) for other, (u, better) in others if _gain(before, after, other, better) < 0]
    if effect == "better" and name != "qps" and _gain(before, after, "qps", 1) > 0.05:
        moved.append(_moved(before, after, "qps", FIGURES["qps"][0]))
    if effect == "worse":
        moved, price = [*moved, *price], []
    said = [t(f"diagnose.effect_{effect}", moved=comma.join(moved), name=figure(name)[0], figure=_shown(after, name, unit))]
    if name == "refused" and price:  # not a price: those who were sent away have latencies now
        said.append(t("diagnose.counted", what=comma.join(price)))
        price = []
    if advice.code == "LONG_PROMPTS" and effect != "same":  # what the many feel; the P99 of all is the few long ones'
        said.append(t("diagnose.short_ones", n=f"{_short(before):,.0f}", a=seconds(_short_ttft(before)), b=seconds(_short_ttft(after))))
    if (times := after.scenario.data_parallel_size / before.scenario.data_parallel_size) > 1:
        price.append(t("diagnose.more_gpus", n=times))
    if price:
        said.append(t("diagnose.price", what=comma.join(price)))
    if after is not before:
        now = verdict(after)
        same = "healthy" if now.healthy else "milder" if gain > 0 and action == RIGHT[advice.code] else "same"
        left = action == RIGHT[advice.code] and (advice.code, now.code) == ("PAST_SWEET_SPOT", "KV_FULL_WITH_QUEUE")
        told = f"diagnose.now_{same}" if now.code == advice.code else "diagnose.now_left" if left else ""
        said.append(t(told) if told else t("diagnose.now", cause=named(now.code)))
    if action != RIGHT[advice.code] and best:
        said.append(t("diagnose.advised_gives_here" if times > 1 else "diagnose.advised_gives", figure=_shown(advised, name, unit)))
    return joined(said)


def _short(run: Run) -> float:
    """Up to how many tokens a prompt is a short one."""
    return 4.0 * float(np.median(run.requests.prompt))


def _short_ttft(run: Run) -> float:
    """P99 of the TTFT of the short ones, s."""
    return float(np.nanquantile((run.first_token - run.arrival)[run.requests.prompt <= _short(run)], 0.99))


def _gain(before: Run, after: Run, name: str, sense: int) -> float:
    """The share by which a figure got better; less than 0: worse; 0: too little to speak of."""
    a, b = (getattr(run.summary(), name) for run in (before, after))
    share = sense * (b - a) / max(abs(a), abs(b), 1e-9)
    return share if abs(share) > SLIGHT else 0.0


def _shown(run: Run, name: str, unit: str) -> str:
    return value(getattr(run.summary(), name), unit)


def _moved(before: Run, after: Run, name: str, unit: str) -> str:
    """A figure before and after, by the name that it has in its tile."""
    return f"{figure(name)[0]} {_shown(before, name, unit)} → {_shown(after, name, unit)}"


# --- examples to paste ------------------------------------------------------------------------------------------------

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
