"""Figures -> what is wrong, which knob, how far. One pure function, `advise`, behind every hint.

The lesson's mnemonic has three lines; the field has more. An empty queue with a full cache is memory; a full queue with
an idle GPU is a budget, but only if the running requests stand at the cap; preemption is past the sweet spot, but only
as a rate. What the mnemonic leaves out comes first here: queue *and* cache full, waiters that wait for something else
(adapters, transfers, a rank next door), requests that can never fit, a slow client, a busy host, start-up failures.

The rules are tables: PASTE_RULES for what a scrape or a log knows, RUN_RULES for a simulated run, ERRORS for a start
that failed. In each the first rule that holds speaks. Sentences: sentences.toml.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from sim.memory import plan
from sim.scenario import SETTINGS, Scenario, SimError
from sim.sentences import TEXT, say

if TYPE_CHECKING:
    from sim.results import Run

KV_FULL = 0.97
KV_NEAR_FULL = 0.90
KV_TIGHT = 0.85
"""Shares of the KV pool (0..1) from which it counts as full, nearly full, too tight for a larger batch."""
SLOW = 1.5
"""Steps are too long from this multiple of the promised ITL on."""


@dataclass(frozen=True, slots=True)
class EngineFigures:
    """One engine of several: requests running and waiting, share of its KV pool in use (0..1); None: unknown."""

    name: str
    running: float | None
    waiting: float | None
    kv_usage: float | None


@dataclass(frozen=True)
class Figures:
    """What is known of a server. None is unknown and never read as 0. Rates per s, shares 0..1, lengths in tokens."""

    source: str = "paste"  # "paste" | "run"
    engine: str = "vllm-v1"
    running: float | None = None
    waiting: float | None = None
    kv_usage: float | None = None
    waiting_deferred: float | None = None
    swapped: float | None = None
    cap: int | None = None  # max_num_seqs, of one engine
    token_budget: int | None = None  # max_num_batched_tokens
    running_flat: bool | None = None  # the same number in every sample
    preemptions: float | None = None  # since start
    preemptions_delta: float | None = None  # within what was pasted, or the run
    preemptions_per_s: float | None = None
    gen_tok_s: float | None = None
    gen_trend: float | None = None  # last / first generation rate
    prompt_tok_s: float | None = None
    engines: tuple[EngineFigures, ...] = ()
    one_model: bool = True  # the engines serve the same model, so that a balanced router would load them alike
    lora_slots: int | None = None
    lora_waiting: int | None = None
    error: str = ""  # why the server did not start
    error_params: Mapping[str, Any] = field(default_factory=dict)
    samples: int | None = None
    # --- known of a run only
    at_cap: float | None = None  # of the time with a queue: share with running == cap
    kv_peak: float | None = None  # share of the pool in use at its fullest moment (0..1)
    kv_bound: float | None = None  # ... share in which the pool was short
    budget_bound: float | None = None  # ... share in which the token budget was used up
    queue_share: float | None = None  # share of the time with a queue
    queue_mean_s: float | None = None
    gpu_compute: float | None = None
    gpu_bandwidth: float | None = None
    gpu_busy: float | None = None
    host_share: float | None = None  # of step time: host work that hides behind nothing
    refused: int = 0
    refused_code: str = ""
    needed_tokens: int | None = None  # of the largest refused request
    prompt_spread: float | None = None  # p99 / median of prompt lengths
    prompt_p50: float | None = None
    carried: float | None = None  # requests running while the pool was full
    step_slow: float | None = None  # ITL p99 / the promised TPOT
    prefill_share: float | None = None  # of scheduled tokens' time: steps with a prefill in them
    full_compute: float | None = None  # compute used within the steps that fill the token budget
    step_tokens: float | None = None  # p99 of tokens in a step with a prefill
    running_max: int | None = None
    preempted_share: float | None = None  # preemptions / requests
    swap_share: float | None = None  # of the time: KV blocks move between GPU and CPU and every step waits
    overload: float | None = None  # wall time / the time in which requests arrive
    closed: bool = False  # clients that wait for their answer

    @classmethod
    def of(cls, run: Run) -> Figures:
        """The figures of a simulated run, weighted by time."""
        return _of_run(run)

    @classmethod
    def of_paste(cls, parse: Mapping[str, Any], settings: Mapping[str, Any] | None = None) -> Figures:
        """The figures of what `sim.vllm` read (a metrics page or log lines); settings: a `vllm serve` line's, if known."""
        return _of_paste(parse, settings or {})

    # --- what the rules ask, where unknown must not count as a yes

    @property
    def kv(self) -> float:
        """KV usage, 0 if unknown."""
        return self.kv_usage or 0.0

    @property
    def queue(self) -> float:
        """Requests waiting, 0 if unknown."""
        return self.waiting or 0

    @property
    def queued(self) -> bool:
        """A queue that is no accident of the moment."""
        return self.queue >= 3 or (self.queue >= 2 and self.queue > 0.05 * (self.running or 0)) or (self.queue >= 1 and not self.running)

    @property
    def preempting(self) -> bool:
        return (self.preemptions_per_s or 0) > 0 or (self.preemptions_delta or 0) > 0

    @property
    def no_preemption(self) -> bool:
        """Known to have had none in the window."""
        return self.preemptions_per_s == 0 or self.preemptions_delta == 0

    @property
    def thrown_out(self) -> bool:
        """Preempting again and again, not once."""
        return (self.preemptions or 0) >= 1 and (self.preemptions_per_s or 0) >= 0.02

    @property
    def stands_at_cap(self) -> bool:
        return self.cap is not None and self.running is not None and self.running >= self.cap - max(1.0, 0.03 * self.cap)

    @property
    def seats(self) -> int | None:
        """max_num_seqs, or what it seems to be."""
        return self.cap or (likely_cap(self.running, self.running_flat) or int(self.running) if self.running else None)

    @property
    def room(self) -> int | None:
        """Requests that would fill the pool to KV_NEAR_FULL: at its fullest moment, where that is known."""
        most = self.kv_peak or self.kv_usage
        return int(self.seats * KV_NEAR_FULL / most) if self.seats and most else None

    @property
    def cause(self) -> str:
        """What a run's queue waited for most: "cap", "kv", "budget", "other"; "" without a queue to speak of."""
        if (self.queue_share or 0) <= 0.1 or (self.queue_mean_s or 0) <= 0.02:
            return ""
        shares = {"cap": self.at_cap or 0.0, "kv": self.kv_bound or 0.0, "budget": self.budget_bound or 0.0}
        most = max(shares, key=lambda c: shares[c])
        return most if shares[most] >= 0.2 else "other"

    @property
    def held_up(self) -> bool:
        """A run whose queue has a cause and costs its requests something: a moment's wait is no overload."""
        return bool(self.cause) and (self.queue_mean_s or 0) > 0.1

    @property
    def saturated(self) -> bool:
        """A step that is full *and* computes at full speed is work, not a budget: a larger one would only take longer."""
        return (self.gpu_compute or 0) > 0.85 or (self.full_compute or 0) > 0.7


@dataclass(frozen=True, slots=True)
class Advice:
    """What is wrong and what to do. `str(advice)` is English; a page uses the keys and `params` instead.

    change: fields of a Scenario and their new values, as far as they can be known from the figures alone.
    promise: the field of a run's Summary that should fall (or, with a "+" in front, rise) if the advice is followed.
    """

    code: str
    why_key: str
    action_key: str
    params: Mapping[str, Any]
    confidence: str = "medium"  # high | medium | low
    change: Mapping[str, Any] = field(default_factory=dict)
    promise: str = ""
    alternatives: tuple[str, ...] = ()
    measure: tuple[str, ...] = ()

    @property
    def healthy(self) -> bool:
        """Nothing needs doing."""
        return self.code in ("HEALTHY", "IDLE")

    @property
    def why(self) -> str:
        """The reason, in English."""
        return say(f"advice.{self.why_key}", self.params)

    @property
    def action(self) -> str:
        """What to do, in English."""
        return say(f"advice.{self.action_key}", self.params)

    def __str__(self) -> str:
        return f"{self.code}: {self.why}. {self.action}."

    def as_dict(self) -> dict[str, Any]:
        """For JSON: sentences and data."""
        return {
            "code": self.code,
            "why": self.why,
            "action": self.action,
            "confidence": self.confidence,
            "how_far": dict(self.change),
            "alternatives": [{"code": c, "what": TEXT[f"advice.name_{c.lower()}"]} for c in self.alternatives],
            "measure_next": [TEXT[f"advice.measure_{m}"] for m in self.measure],
        }


# ------------------------------------------------------------------------------------------------------- how far to turn

_USUAL_CAPS = {m * 2**k for k in range(3, 11) for m in (1, 3)}


def likely_cap(running: float, flat: bool | None) -> int | None:
    """The max_num_seqs that a number of running requests gives away; None if it looks like none.

    The gauge is taken after finished requests were freed, so that a full server often shows one or two less.
    """
    n = int(running)
    if flat or (n >= 8 and (n % 8 == 0 or n % 10 == 0)):
        return n
    return next((n + less for less in (1, 2) if n >= 14 and n + less in _USUAL_CAPS), None)


def _more_seats(f: Figures) -> dict[str, Any]:
    """Twice the seats, but no more than the pool holds."""
    now = f.seats
    if now is None:
        return {}
    to = min(2 * now, f.room if f.room is not None else 2 * now, 4096)
    return {"max_num_seqs": max(now + 1, to - to % 8 if to >= now + 8 else to)}


def _fewer_seats(f: Figures) -> dict[str, Any]:
    """Seats for what the pool carries, with a margin."""
    if f.carried:
        return {"max_num_seqs": max(1, int(KV_NEAR_FULL * min(f.carried, f.cap or f.carried)))}
    base = f.running or f.cap
    return {"max_num_seqs": max(1, int(0.8 * base))} if base else {}


def _more_kv(f: Figures) -> dict[str, Any]:
    return {"kv_cache_dtype": "fp8"}


def _longer(f: Figures) -> dict[str, Any]:
    return {"max_model_len": f.needed_tokens + 1} if f.needed_tokens else _more_kv(f)


def _more_budget(f: Figures) -> dict[str, Any]:
    return {"max_num_batched_tokens": 2 * f.token_budget} if f.token_budget else {}


def _smaller_budget(f: Figures) -> dict[str, Any]:
    """Tokens of a step whose time keeps the promised ITL, a power of two."""
    wanted = max(1.0, (f.step_tokens or 0) / max(2.0, f.step_slow or 2.0))
    return {"max_num_batched_tokens": max(256, 2 ** int(math.log2(wanted)), f.cap or 0)}


def _threshold(f: Figures) -> dict[str, Any]:
    return {"long_prefill_token_threshold": max(128, int(1.5 * (f.prompt_p50 or 256)))}


def _other_router(f: Figures) -> dict[str, Any]:
    return {"router": "vllm"}


def _nothing(f: Figures) -> dict[str, Any]:
    return {}


# ----------------------------------------------------------------------------------------------------------- the rules


@dataclass(frozen=True, slots=True)
class Rule:
    """A diagnosis: when it holds, its code, which of its sentences, and what to do.

    cure: the change that the figures call for; promise, confidence: as in Advice; others (codes of what else it may be)
    and measure: words parted by blanks.
    """

    holds: Callable[[Figures], Any]
    code: str
    variant: str = ""
    confidence: str = "high"
    cure: Callable[[Figures], dict[str, Any]] = _nothing
    promise: str = ""
    others: str = ""
    measure: str = ""

    def advice(self, f: Figures, **params: Any) -> Advice:
        """What the rule says of these figures."""
        change = self.cure(f)
        known = {name: getattr(f, source) for name, source in PARAMS.items()}
        known |= {"now": f.seats, "room": f.room, "free": None if f.kv_usage is None else 1 - f.kv_usage}
        known |= {"to": next(iter(change.values()), None), **params}
        keys = {}
        for what in ("why", "action"):
            plain = f"{self.code.lower()}_{what}"
            keys[what] = f"{plain}_{self.variant}" if f"advice.{plain}_{self.variant}" in TEXT else plain
        return Advice(
            self.code, keys["why"], keys["action"], {k: v for k, v in known.items() if v is not None}, self.confidence, change,
            self.promise, tuple(self.others.split()), tuple(self.measure.split()),
        )


PARAMS = {
    "running": "running", "waiting": "waiting", "kv": "kv_usage", "cap": "cap", "budget": "token_budget",
    "preemptions": "preemptions", "delta": "preemptions_delta", "rate": "preemptions_per_s", "deferred": "waiting_deferred",
    "slots": "lora_slots", "gen": "gen_tok_s", "compute": "gpu_compute", "busy": "gpu_busy", "host": "host_share",
    "carried": "carried", "refused": "refused", "needed": "needed_tokens", "requested_tokens": "needed_tokens", "swapped": "swapped",
    "peak": "kv_peak", "queue": "queue_mean_s", "spread": "prompt_spread", "slow": "step_slow",
    "swap": "swap_share", "share": "queue_share", "full": "full_compute",
}
"""What a sentence may say: name in it -> field of Figures."""

PASTE_RULES = (
    Rule(lambda f: f.waiting is None and f.running is None and f.kv_usage is None,
         "UNKNOWN", confidence="low", measure="engine_metrics"),
    # work thrown away
    Rule(lambda f: (f.swapped or 0) > 0, "PAST_SWEET_SPOT", "swap", cure=_fewer_seats, promise="preemptions", others="KV_FULL",
         measure="preemption_rate"),
    Rule(lambda f: f.preempting and (f.kv_usage is None or f.kv >= KV_TIGHT) and f.queue, "PAST_SWEET_SPOT",
         cure=_fewer_seats, promise="preemptions", others="KV_FULL_WITH_QUEUE", measure="preemption_rate lengths"),
    Rule(lambda f: f.preempting and (f.kv_usage is None or f.kv >= KV_TIGHT), "PAST_SWEET_SPOT",
         cure=_fewer_seats, promise="preemptions", others="KV_FULL", measure="preemption_rate lengths"),
    Rule(lambda f: f.gen_trend is not None and f.gen_trend < 0.5 and f.kv >= KV_FULL and f.queue <= (f.running or 0),
         "PAST_SWEET_SPOT", "collapse", "medium", _fewer_seats, "preemptions", "KV_FULL", "preemption_rate"),
    # a queue: for something else than a seat or a block
    Rule(lambda f: f.queued and f.waiting_deferred and f.waiting_deferred >= 0.5 * f.queue and f.lora_waiting,
         "NOT_BUDGET_LORA", measure="lora_slots connector"),
    Rule(lambda f: f.queued and f.waiting_deferred and f.waiting_deferred >= 0.5 * f.queue,
         "NOT_BUDGET_DEFERRED", confidence="medium", others="NOT_BUDGET_LORA", measure="lora_slots connector"),
    Rule(lambda f: f.queued and f.lora_waiting and f.kv < KV_TIGHT,
         "NOT_BUDGET_LORA", confidence="medium", others="BUDGET_SMALL", measure="lora_slots"),
    Rule(lambda f: f.queued and f.kv_usage is None, "UNKNOWN", "kv", "low",
         others="BUDGET_SMALL KV_FULL_WITH_QUEUE PREFILL_BOUND", measure="kv_usage running_vs_cap"),
    # a queue, and how full the pool is: the lesson's second line with the tests that it leaves out
    Rule(lambda f: f.queued and 0 < (f.running or 0) <= 3 and f.kv >= 0.95,
         "KV_FULL", "few", cure=_more_kv, promise="queue_mean", others="NEVER_FITS", measure="lengths kv_pool"),
    Rule(lambda f: f.queued and f.kv >= KV_NEAR_FULL,
         "KV_FULL_WITH_QUEUE", cure=_more_kv, promise="queue_mean", others="PAST_SWEET_SPOT", measure="preemption_rate lengths"),
    Rule(lambda f: f.queued and f.kv >= KV_TIGHT and not (f.cap and f.running is not None and f.running >= f.cap),
         "KV_FULL_WITH_QUEUE", "", "medium", _more_kv, "queue_mean", "PAST_SWEET_SPOT", "preemption_rate lengths"),
    Rule(lambda f: f.queued and f.running and f.kv / f.running > 1 - f.kv,  # an average request does not fit what is free
         "KV_FULL_WITH_QUEUE", "long", "medium", _more_kv, "queue_mean", "NEVER_FITS NOT_BUDGET_LORA_OR_OTHER", "lengths kv_pool"),
    Rule(lambda f: f.queued and f.running == 0, "NEVER_FITS", "stuck", "medium", others="NOT_BUDGET_LORA_OR_OTHER",
         measure="lengths kv_pool second_scrape"),
    Rule(lambda f: f.queued and not f.stands_at_cap and f.running is not None and f.running <= 4,
         "NOT_BUDGET_LORA_OR_OTHER", confidence="medium", others="NOT_BUDGET_LORA PREFILL_BOUND NEVER_FITS",
         measure="lora_slots running_vs_cap lengths"),
    Rule(lambda f: f.queued and f.stands_at_cap, "BUDGET_SMALL", cure=_more_seats, promise="queue_mean",
         others="HOST_BOUND PREFILL_BOUND", measure="running_vs_cap gpu preemption_rate"),
    Rule(lambda f: f.queued and f.cap is None and f.running and f.running_flat, "BUDGET_SMALL", "guess",
         cure=_more_seats, promise="queue_mean", others="HOST_BOUND PREFILL_BOUND", measure="running_vs_cap gpu preemption_rate"),
    Rule(lambda f: f.queued and f.cap is None and f.running and likely_cap(f.running, False), "BUDGET_SMALL", "guess",
         "medium", _more_seats, "queue_mean", "HOST_BOUND PREFILL_BOUND", "running_vs_cap gpu preemption_rate"),
    Rule(lambda f: f.queued and f.cap is not None, "PREFILL_BOUND", "cap", "medium", _more_budget, "ttft_p50",
         "BUDGET_SMALL NOT_BUDGET_LORA_OR_OTHER HOST_BOUND", "running_vs_cap lengths gpu"),
    Rule(lambda f: f.queued, "PREFILL_BOUND", "", "low", _more_budget, "ttft_p50",
         "BUDGET_SMALL NOT_BUDGET_LORA_OR_OTHER HOST_BOUND", "running_vs_cap lengths gpu"),
    # no queue
    Rule(lambda f: f.waiting is None and f.kv >= KV_NEAR_FULL, "KV_NEAR_FULL", "no_queue", "low", _more_kv, "kv_max",
         measure="waiting preemption_rate"),
    Rule(lambda f: f.waiting is None, "UNKNOWN", "waiting", "low", measure="waiting kv_usage"),
    Rule(lambda f: f.kv >= 0.95 and (f.preemptions or 0) > 0 and not f.no_preemption,
         "PAST_SWEET_SPOT", "counter", "medium", _fewer_seats, "preemptions", "KV_FULL", "second_scrape"),
    Rule(lambda f: f.kv >= KV_FULL, "KV_FULL", "empty", cure=_more_kv, promise="kv_max", others="PAST_SWEET_SPOT",
         measure="preemption_rate lengths"),
    Rule(lambda f: f.kv >= KV_NEAR_FULL, "KV_NEAR_FULL", cure=_more_kv, promise="kv_max", others="PAST_SWEET_SPOT",
         measure="preemption_rate lengths"),
    Rule(lambda f: f.running is None, "UNKNOWN", "waiting", "low", measure="engine_metrics"),
    Rule(lambda f: not f.running, "IDLE", measure="client"),
    Rule(lambda f: f.running_flat and f.running and f.running >= 50 and f.running % 50 == 0 and (f.cap is None or f.running < f.cap),
         "CLIENT_LIMITED", confidence="medium", others="HEALTHY", measure="client"),
    Rule(lambda f: f.kv_usage is None, "HEALTHY", "no_kv", "low", measure="kv_usage"),
    Rule(lambda f: not f.preemptions, "HEALTHY", measure="latency"),
    Rule(lambda f: f.no_preemption, "HEALTHY", "rate", measure="preemption_rate"),
    Rule(lambda f: True, "HEALTHY", "history", "medium", measure="preemption_rate"),
)
"""What a paste says: the first rule that holds."""

RUN_RULES = (
    (
        Rule(lambda f: f.thrown_out and f.queue < 0.1 * (f.running or 0) and (f.running_max or 0) < 0.9 * (f.cap or 0),
             "KV_FULL", "all_in", cure=_more_kv, promise="preemptions", others="PAST_SWEET_SPOT", measure="preemption_rate lengths"),
        Rule(lambda f: f.thrown_out and f.swap_share, "PAST_SWEET_SPOT", "run_swap", cure=_fewer_seats, promise="preemptions",
             others="KV_FULL_WITH_QUEUE", measure="preemption_rate lengths"),
        Rule(lambda f: f.thrown_out, "PAST_SWEET_SPOT", "run", cure=_fewer_seats, promise="preemptions", others="KV_FULL_WITH_QUEUE",
             measure="preemption_rate lengths"),
    ),
    (
        Rule(lambda f: f.cause == "cap" and f.kv < KV_TIGHT and (f.room or 0) >= 1.1 * (f.seats or 0), "BUDGET_SMALL", "run", cure=_more_seats,
             promise="queue_mean", others="OVERLOADED HOST_BOUND", measure="gpu preemption_rate"),
        Rule(lambda f: f.cause == "cap", "KV_FULL_WITH_QUEUE", "peak", "medium", _more_kv, "queue_mean", "BUDGET_SMALL", "lengths"),
        Rule(lambda f: f.cause == "kv", "KV_FULL_WITH_QUEUE", "run", cure=_more_kv, promise="queue_mean", others="PAST_SWEET_SPOT",
             measure="preemption_rate lengths"),
        Rule(lambda f: f.cause == "budget" and (f.overload or 1) < 1.5 and (f.prompt_spread or 1) > 8 and f.token_budget
             and 3 * (f.prompt_p50 or 1) <= f.token_budget and (f.queue_mean_s or 0) > 0.1,
             "LONG_PROMPTS", "", "medium", _threshold, "ttft_p50", "PREFILL_BOUND OVERLOADED", "lengths"),
        Rule(lambda f: f.cause == "budget" and not f.saturated and f.token_budget and 2 * (f.step_slow or 0) <= SLOW,
             "PREFILL_BOUND", "run", "medium", _more_budget, "ttft_mean", "OVERLOADED HOST_BOUND", "lengths gpu"),
        Rule(lambda f: f.held_up and f.saturated and (f.gpu_compute or 0) >= 0.5,
             "OVERLOADED", promise="ttft_mean", others="PREFILL_BOUND", measure="gpu lengths"),
        Rule(lambda f: f.held_up and f.saturated, "OVERLOADED", "at_times", "medium", promise="ttft_mean", others="PREFILL_BOUND",
             measure="gpu lengths"),
        Rule(lambda f: f.held_up, "OVERLOADED", "full_steps", "medium", promise="ttft_mean", others="PREFILL_BOUND",
             measure="gpu lengths"),
    ),
)
"""What a run says: its time is known second by second, so each limit is named by the share of queueing time it caused.

The first rule of each group that holds; if none does, the first of QUIET_RULES.
"""

QUIET_RULES = (
    Rule(lambda f: f.kv >= KV_FULL, "KV_FULL", "empty", cure=_more_kv, promise="kv_max", others="PAST_SWEET_SPOT", measure="lengths"),
    Rule(lambda f: f.kv >= KV_NEAR_FULL, "KV_NEAR_FULL", cure=_more_kv, promise="kv_max", others="PAST_SWEET_SPOT", measure="lengths"),
    Rule(lambda f: (f.host_share or 0) > 0.4 and (f.gpu_compute or 0) < 0.5 and f.queue < 1 and (f.running or 0) >= 2,
         "HOST_BOUND", confidence="medium", promise="itl_mean", others="CLIENT_LIMITED", measure="host gpu"),
    Rule(lambda f: (f.step_slow or 0) > SLOW and f.token_budget
         and _smaller_budget(f)["max_num_batched_tokens"] < min(f.token_budget, f.step_tokens or 0),
         "BUDGET_LARGE", "", "medium", _smaller_budget, "itl_p99", "OVERLOADED", "latency"),
    Rule(lambda f: f.closed and (f.running or 0) > 1 and (f.gpu_compute or 0) < 0.7,
         "CLIENT_LIMITED", "run", "medium", promise="+qps", others="HEALTHY", measure="client"),
    Rule(lambda f: (f.gpu_busy or 0) < 0.3 and (f.running or 0) < 2, "IDLE", measure="client"),
    Rule(lambda f: True, "HEALTHY"),
)

TOO_LONG = Rule(lambda f: f.refused_code == "prompt_too_long", "NEVER_FITS", "length", cure=_longer, promise="refused", measure="lengths")
TOO_BIG = Rule(lambda f: True, "NEVER_FITS", "pool", cure=_more_kv, promise="refused", measure="lengths")

ERRORS = {
    "oom_sampler_warmup": ("STARTUP_OOM", ""), "oom": ("STARTUP_OOM", "other"),
    "kv_too_small": ("STARTUP_KV_TOO_SMALL", "tokens"), "no_kv_memory": ("STARTUP_KV_TOO_SMALL", "none"),
    "prompt_too_long": ("NEVER_FITS", "length"),
    **{name: (f"STARTUP_{name.upper()}", "") for name in (
        "memory_taken", "budget_below_model_len", "budget_below_seqs", "model_len_too_long", "tp_heads", "too_few_gpus",
        "unknown_flag", "model_access", "port_taken")},
}
"""Why a server did not start (a name of `sim.vllm.logs`) -> code, variant of the sentences."""


# ------------------------------------------------------------------------------------------------------ the one function


def advise(figures: Figures) -> list[Advice]:
    """What the figures say, the most pressing first; never empty. Pure: the same figures, the same advice."""
    f = figures
    if f.error:
        return [_startup(f)]
    found = [TOO_LONG.advice(f) if TOO_LONG.holds(f) else TOO_BIG.advice(f)] if f.refused else []
    if len(f.engines) > 1:
        imbalance = _imbalance(f) if f.one_model else None
        if imbalance:
            found.append(imbalance)
        elif f.source == "paste":
            worst = max(f.engines, key=lambda e: (e.waiting or 0, e.kv_usage or 0))
            f = replace(f, running=worst.running, waiting=worst.waiting, kv_usage=worst.kv_usage)
    if f.source == "paste":
        return found or _first(PASTE_RULES, f)
    said = [advice for group in RUN_RULES for advice in _first(group, f)] or _first(QUIET_RULES, f)
    if len(said) == 2 and said[1].code == "KV_FULL_WITH_QUEUE" and f.queue > 0.25 * (f.running or 0) and (f.preempted_share or 0) < 0.5:
        said.reverse()  # a few victims and many who wait: capacity is missing, and fewer seats would only lengthen the queue
    return [*found, *(a for a in said if not (found and a.code == "HEALTHY"))]


def _first(rules: tuple[Rule, ...], f: Figures) -> list[Advice]:
    """What the first rule that holds says; [] if none does."""
    return next(([rule.advice(f)] for rule in rules if rule.holds(f)), [])


def _startup(f: Figures) -> Advice:
    """Why it did not start, and what the numbers of its error message say of the way out."""
    p = dict(f.error_params)
    code, variant = ERRORS.get(f.error, ("STARTUP_OTHER", ""))
    change: dict[str, Any] = {}
    if f.error == "oom_sampler_warmup":
        rows = p.get("dummy_requests") or 1024
        change = {"max_num_seqs": 256 if rows > 256 else max(1, int(rows) // 2)}
    elif code == "STARTUP_KV_TOO_SMALL":
        variant = "gib" if "needed_gib" in p and variant == "tokens" else variant
        limit = p.get("suggested_max_model_len") or p.get("kv_tokens")
        if not limit and p.get("needed_gib") and p.get("available_gib"):
            limit = p["max_model_len"] * p["available_gib"] / p["needed_gib"] * 0.98
        change = {"max_model_len": int(limit)} if limit else {}
    elif code == "STARTUP_BUDGET_BELOW_MODEL_LEN" and p.get("max_model_len"):
        change = {"max_num_batched_tokens": int(p["max_model_len"])}
    elif code == "STARTUP_BUDGET_BELOW_SEQS" and p.get("max_num_seqs"):
        change = {"max_num_batched_tokens": int(p["max_num_seqs"])}
    sure = "medium" if code == "STARTUP_OTHER" or variant == "other" else "high"
    return Rule(lambda f: True, code, variant, sure, lambda f: change, measure="startup_log").advice(f, **p)


def _imbalance(f: Figures) -> Advice | None:
    known = [e for e in f.engines if e.running is not None and e.waiting is not None]
    if len(known) < 2:
        return None
    least = 1.5 if f.source == "run" else 4  # a run's figures are means over all its time, a paste's are of one moment
    queued = sum((e.waiting or 0) >= least / 2 for e in known)
    empty = sum((e.waiting or 0) < 1 and (e.kv_usage is None or e.kv_usage < 0.8) for e in known)
    running = sorted(e.running or 0 for e in known)
    skewed = running[-1] >= 8 and running[0] * 4 < running[-1] and sum(running) < 0.75 * running[-1] * len(running)
    if not (queued and empty and max(e.waiting or 0 for e in known) >= least) and not (skewed and (not queued or empty)):
        return None
    rule = (
        Rule(lambda f: True, "DP_IMBALANCE", "queue", "high", _other_router, "queue_mean", "KV_FULL_WITH_QUEUE", "per_engine router") if queued
        else Rule(lambda f: True, "DP_IMBALANCE", "running", "medium", _other_router, "queue_mean", "CLIENT_LIMITED", "per_engine router")
    )
    return rule.advice(f, queued=queued, engines=len(known), empty=empty, most=running[-1], least=running[0])


# --------------------------------------------------------------------------------------------------- carrying advice out


def changes(advice: Advice, scenario: Scenario) -> dict[str, Any]:
    """Fields of `scenario` that carry out the advice, in one click; empty if a simulator has no such knob.

    Every value is one that Scenario accepts together with the others.
    """
    s = scenario
    wanted = _wanted(advice.code, dict(advice.change), s)
    wanted = {k: v for k, v in wanted.items() if k in SETTINGS and getattr(s, k) != v}
    if "max_num_seqs" in wanted and s.max_num_batched_tokens < wanted["max_num_seqs"]:
        wanted["max_num_batched_tokens"] = wanted["max_num_seqs"]
    try:
        s.but(**wanted)
    except SimError:
        return {}
    return wanted


def _wanted(code: str, change: dict[str, Any], s: Scenario) -> dict[str, Any]:
    match code:
        case "NEVER_FITS" if "max_model_len" in change:
            return _fitting(s, int(change["max_model_len"]))
        case "KV_FULL" | "KV_FULL_WITH_QUEUE" | "KV_NEAR_FULL" | "NEVER_FITS":
            return _room(s)
        case "BUDGET_SMALL":
            to = int(change.get("max_num_seqs", 2 * s.max_num_seqs))
            to = to if to > s.max_num_seqs else min(4096, 2 * s.max_num_seqs)
            active = {"max_num_active_seqs": 0} if 0 < s.max_num_active_seqs < to else {}
            return {"max_num_seqs": to, **active, "max_num_batched_tokens": max(s.max_num_batched_tokens, to)}
        case "PAST_SWEET_SPOT":
            return {"max_num_seqs": max(1, min(int(change.get("max_num_seqs", 0.7 * s.max_num_seqs)), s.max_num_seqs - 1))}
        case "PREFILL_BOUND":
            return {"max_num_batched_tokens": min(1_000_000, 2 * s.max_num_batched_tokens)}
        case "OVERLOADED":
            return {"data_parallel_size": min(64, 2 * s.data_parallel_size)}
        case "HOST_BOUND" if s.host == "v0":
            return {"host": "v1"}
        case "HOST_BOUND" if not s.async_scheduling:
            return {"async_scheduling": True}
        case "HOST_BOUND" if s.tensor_parallel_size > 1:
            return {"tensor_parallel_size": s.tensor_parallel_size // 2, "data_parallel_size": min(64, s.data_parallel_size * 2)}
        case "DP_IMBALANCE":
            better = {"round_robin": "vllm", "vllm": "least_loaded"}
            return {"router": better[s.router]} if s.router in better else {}
        case "CLIENT_LIMITED" if s.arrival == "closed":
            return {"num_clients": min(5000, 2 * s.num_clients)}
    return change


def _fitting(s: Scenario, length: int) -> dict[str, Any]:
    """What lets requests of `length` tokens in: max_model_len, and as much pool as vLLM demands for it at start-up."""
    wanted: dict[str, Any] = {"max_model_len": min(10_000_000, max(length, s.max_model_len))}
    if s.num_gpu_blocks_override:
        wanted["num_gpu_blocks_override"] = max(s.num_gpu_blocks_override, math.ceil(length / s.block_size) + 1)
    if not s.enable_chunked_prefill:
        wanted["max_num_batched_tokens"] = max(s.max_num_batched_tokens, wanted["max_model_len"])
    larger = [{"tensor_parallel_size": tp} for tp in (2, 4, 8) if tp > s.tensor_parallel_size]
    steps: list[dict[str, Any]] = [{}, {"kv_cache_dtype": "fp8"}, {"gpu_memory_utilization": max(0.95, s.gpu_memory_utilization)}, *larger]
    for step in steps:
        wanted |= step
        try:
            plan(s.but(**wanted))
        except SimError:
            continue
        return wanted
    return {}


def _room(s: Scenario) -> dict[str, Any]:
    """More KV for this scenario, the cheapest first: fp8 KV, more memory, then more cards."""
    if s.num_gpu_blocks_override:
        return {"num_gpu_blocks_override": min(10_000_000, 2 * s.num_gpu_blocks_override)}
    if s.kv_cache_dtype == "auto":
        return {"kv_cache_dtype": "fp8"}
    if s.gpu_memory_utilization < 0.92:
        return {"gpu_memory_utilization": 0.95}
    if s.tensor_parallel_size < 8:
        return {"tensor_parallel_size": 2 * s.tensor_parallel_size}
    return {"data_parallel_size": min(64, 2 * s.data_parallel_size)}


# ------------------------------------------------------------------------------------------------- where figures come from


def _of_paste(parse: Mapping[str, Any], settings: Mapping[str, Any]) -> Figures:
    config: Mapping[str, Any] = parse.get("config") or {}
    table: Mapping[str, Mapping[str, Any]] = parse.get("engines") or {}
    engines = tuple(EngineFigures(who, e.get("running"), e.get("waiting"), e.get("kv_usage")) for who, e in table.items())
    only = next(iter(table.values())) if len(table) == 1 else parse.get("aggregate") or {}
    one: Mapping[str, Any] = parse.get("last") or only
    lora: Mapping[str, Any] = parse.get("lora") or {}
    error = parse.get("error") or ""
    if error in ("oom", "prompt_too_long", "port_taken") and (one or table):
        error = ""  # the server runs: an error of one request is not why it waits
    first, last = parse.get("gen_tok_s_first"), one.get("gen_tok_s")
    delta, rate = parse.get("preemptions_delta"), (parse.get("rates") or {}).get("preemptions_per_s")
    if rate is None and delta is not None and parse.get("interval_s"):
        rate = delta / parse["interval_s"]

    def setting(name: str) -> int | None:
        value = settings.get(name, config.get(name))
        return int(value) if isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0 else None

    return Figures(
        engine=parse.get("engine_family", "vllm-v1"),
        running=one.get("running"),
        waiting=one.get("waiting"),
        waiting_deferred=one.get("waiting_deferred"),
        swapped=one.get("swapped"),
        gen_tok_s=last,
        prompt_tok_s=one.get("prompt_tok_s"),
        kv_usage=one.get("kv_usage", one.get("kv_max")),
        cap=setting("max_num_seqs"),
        token_budget=setting("max_num_batched_tokens"),
        running_flat=parse.get("running_flat"),
        preemptions=one.get("preemptions_total", parse.get("preemptions_total")),
        preemptions_delta=delta,
        preemptions_per_s=rate,
        gen_trend=last / first if first and last is not None else None,
        engines=engines if len(engines) > 1 else (),
        one_model=len({e.get("model") for e in table.values()}) <= 1,
        lora_slots=lora.get("max_lora"),
        lora_waiting=len(lora.get("waiting") or ()) or None,
        error=error,
        samples=parse.get("samples"),
        error_params={k: v for k, v in parse.items() if isinstance(v, (int, float, str)) and k not in ("error", "engine_family", "samples")},
    )


def _of_run(run: Run) -> Figures:
    s, t, q, summary = run.scenario, run.ticks, run.requests, run.summary()
    lengths, prompt = np.asarray(q.prompt) + np.asarray(q.output), np.asarray(q.prompt, dtype=float)
    base: dict[str, Any] = dict(
        source="run", cap=s.max_num_seqs, token_budget=s.max_num_batched_tokens, closed=s.arrival == "closed",
        refused=len(run.refusals), refused_code=next((e.code for e in run.refusals.values()), ""),
        needed_tokens=max((int(lengths[i]) for i in run.refusals), default=None),
    )
    if not len(t.start):
        return Figures(**base, running=0, waiting=0, kv_usage=0.0)
    w, waiting, running, tokens = t.duration, t.waiting, t.running, t.decode_seqs + t.prefill_tokens
    busy = float(w.sum()) or 1.0
    blocks = max(1, summary.num_gpu_blocks - 1)
    free = t.free_blocks / blocks
    queue = waiting > 0
    queued_s = float(w[queue].sum())
    at_cap = running >= min(s.max_num_seqs, s.max_num_active_seqs or s.max_num_seqs)
    full_budget = tokens >= s.max_num_batched_tokens
    full_s = float(w[full_budget].sum())
    prefilling = t.prefill_tokens > 0
    typical = float(np.percentile(lengths, 75)) if len(lengths) else 1.0
    need = math.ceil(typical / s.block_size)

    def share(mask: Any) -> float:
        return float(w[queue & mask].sum()) / queued_s if queued_s else 0.0

    def mean(values: Any, mine: Any) -> float:
        """Weighted by time; `mine`: which ticks."""
        return float((values[mine] * w[mine]).sum()) / (float(w[mine].sum()) or 1.0)

    replicas = np.unique(t.replica)
    loaded = queue if queued_s > 0 else w > 0
    usage = mean(1 - free, loaded)
    wall = summary.duration_s or 1.0
    return Figures(
        **base,
        running=mean(running, w > 0),
        waiting=mean(waiting, w > 0),
        kv_usage=usage if queued_s else max(usage, summary.kv_max),
        kv_peak=summary.kv_max,
        preemptions=summary.preemptions,
        preemptions_delta=summary.preemptions,
        preemptions_per_s=summary.preemptions / wall,
        gen_tok_s=summary.output_tok_s,
        engines=tuple(
            EngineFigures(str(int(r)), mean(running, t.replica == r), mean(waiting, t.replica == r), mean(1 - free, t.replica == r))
            for r in replicas
        ) if len(replicas) > 1 else (),
        at_cap=share(at_cap),
        budget_bound=share(full_budget & ~at_cap),
        kv_bound=share(~at_cap & ~full_budget & (free < max(0.1, 2 * need / blocks))),
        queue_share=queued_s / busy,
        queue_mean_s=_finite(summary.queue_mean),
        gpu_compute=_finite(summary.gpu_compute),
        gpu_bandwidth=_finite(summary.gpu_bandwidth),
        gpu_busy=_finite(summary.gpu_busy),
        host_share=float(np.sum(run.step_time.terms(t)["host"])) / busy,
        prompt_p50=float(np.median(prompt)) if len(prompt) else None,
        prompt_spread=float(np.percentile(prompt, 99) / max(1.0, np.median(prompt))) if len(prompt) else None,
        carried=mean(running, free < 1 - KV_FULL) if (free < 1 - KV_FULL).any() else None,
        step_slow=(_finite(summary.itl_p99) or 0.0) / s.slo_tpot_s,
        prefill_share=float(w[prefilling].sum()) / busy,
        full_compute=_finite(float(run.step_time.compute_seconds(t)[full_budget].sum()) / full_s) if full_s else None,
        step_tokens=float(np.percentile(tokens[prefilling], 99)) if prefilling.any() else None,
        running_max=int(running.max()),
        overload=wall / s.duration_s,
        preempted_share=summary.preemptions / max(1, len(prompt)),
        swap_share=float(t.swap_s.sum()) / busy,
    )


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
