"""Figures -> what is wrong, which knob, how far. One pure function, `advise`, behind every hint.

The lesson's mnemonic has three lines; the field has more. An empty queue with a full cache is memory; a full queue with
an idle GPU is a budget, but only if the running requests stand at the cap; preemption is past the sweet spot, but only
as a rate. What the mnemonic leaves out comes first here: queue *and* cache full, waiters that wait for something else
(adapters, transfers, a rank next door), requests that can never fit, a slow client, a busy host, start-up failures.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from sim.memory import plan
from sim.scenario import SETTINGS, Scenario, SimError

if TYPE_CHECKING:
    from sim.results import Run

KV_FULL = 0.97
KV_NEAR_FULL = 0.90
KV_TIGHT = 0.85
"""Shares of the KV pool (0..1) from which it counts as full, nearly full, too tight for a larger batch."""


@dataclass(frozen=True, slots=True)
class EngineFigures:
    """One engine of several: requests running and waiting, share of its KV pool in use (0..1); None: unknown."""

    name: str
    running: float | None
    waiting: float | None
    kv_usage: float | None


@dataclass(frozen=True, slots=True)
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
    fits: int | None = None  # requests of typical length that the pool holds
    step_slow: float | None = None  # ITL p99 / the promised TPOT
    prefill_share: float | None = None  # of scheduled tokens' time: steps with a prefill in them
    full_compute: float | None = None  # compute used within the steps that fill the token budget
    step_tokens: float | None = None  # p99 of tokens in a step with a prefill
    running_max: int | None = None
    preempted_share: float | None = None  # preemptions / requests
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
        return _say(TEXT[self.why_key], self.params)

    @property
    def action(self) -> str:
        """What to do, in English."""
        return _say(TEXT[self.action_key], self.params)

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
            "alternatives": [{"code": c, "what": TEXT["name_" + c.lower()]} for c in self.alternatives],
            "measure_next": [TEXT["measure_" + m] for m in self.measure],
        }


def _say(template: str, params: Mapping[str, Any]) -> str:
    return template.format_map(Blanks(params))


class Blanks(dict[str, Any]):
    """Format parameters, where what is missing or None reads as a question mark."""

    def __init__(self, params: Mapping[str, Any]) -> None:
        super().__init__({k: v for k, v in params.items() if v is not None})

    def __missing__(self, key: str) -> _Mark:
        return _Mark()


class _Mark:
    def __format__(self, spec: str) -> str:
        return "?"


# ---------------------------------------------------------------------------------------------------- the one function


def advise(figures: Figures) -> list[Advice]:
    """What the figures say, the most pressing first; never empty. Pure: the same figures, the same advice."""
    f = figures
    if f.error:
        return [_startup(f)]
    found: list[Advice] = []
    if f.refused:
        found.append(_never_fits(f))
    if len(f.engines) > 1:
        imbalance = _imbalance(f) if f.one_model else None
        if imbalance:
            found.append(imbalance)
        elif f.source == "paste":
            worst = max(f.engines, key=lambda e: (e.waiting or 0, e.kv_usage or 0))
            f = _with(f, running=worst.running, waiting=worst.waiting, kv_usage=worst.kv_usage)
    found.extend(_run_rules(f) if f.source == "run" else [_paste_rule(f)] if not found else [])
    return found or [_advice("HEALTHY", f, confidence="high")]


def _with(f: Figures, **changes: Any) -> Figures:
    return Figures(**{x.name: changes.get(x.name, getattr(f, x.name)) for x in fields(Figures)})


def _advice(code: str, f: Figures, variant: str = "", **more: Any) -> Advice:
    params = {
        "running": f.running,
        "waiting": f.waiting,
        "kv": f.kv_usage,
        "cap": f.cap,
        "budget": f.token_budget,
        "preemptions": f.preemptions,
        "delta": f.preemptions_delta,
        "rate": f.preemptions_per_s,
        "deferred": f.waiting_deferred,
        "slots": f.lora_slots,
        "free": None if f.kv_usage is None else 1 - f.kv_usage,
        "gen": f.gen_tok_s,
        "compute": f.gpu_compute,
        "busy": f.gpu_busy,
        "host": f.host_share,
        "fits": f.fits,
        "refused": f.refused,
        "needed": f.needed_tokens,
        "swapped": f.swapped,
        "queue": f.queue_mean_s,
        **more.pop("params", {}),
    }
    stem = code.lower()
    why = f"{stem}_why_{variant}" if f"{stem}_why_{variant}" in TEXT else f"{stem}_why"
    action = f"{stem}_action_{variant}" if f"{stem}_action_{variant}" in TEXT else f"{stem}_action"
    return Advice(code, why, action, {k: v for k, v in params.items() if v is not None}, **more)


def _startup(f: Figures) -> Advice:
    p = dict(f.error_params)
    rows: dict[str, tuple[str, str]] = {  # our name for the error -> code, variant of the text
        "oom_sampler_warmup": ("STARTUP_OOM", ""),
        "oom": ("STARTUP_OOM", "other"),
        "kv_too_small": ("STARTUP_KV_TOO_SMALL", "gib" if "needed_gib" in p else "tokens"),
        "no_kv_memory": ("STARTUP_KV_TOO_SMALL", "none"),
        "memory_taken": ("STARTUP_MEMORY_TAKEN", ""),
        "budget_below_model_len": ("STARTUP_BUDGET_BELOW_MODEL_LEN", ""),
        "budget_below_seqs": ("STARTUP_BUDGET_BELOW_SEQS", ""),
        "model_len_too_long": ("STARTUP_MODEL_LEN_TOO_LONG", ""),
        "tp_heads": ("STARTUP_TP_HEADS", ""),
        "too_few_gpus": ("STARTUP_TOO_FEW_GPUS", ""),
        "unknown_flag": ("STARTUP_UNKNOWN_FLAG", ""),
        "model_access": ("STARTUP_MODEL_ACCESS", ""),
        "port_taken": ("STARTUP_PORT_TAKEN", ""),
        "prompt_too_long": ("NEVER_FITS", "length"),
    }
    code, variant = rows.get(f.error, ("STARTUP_OTHER", ""))
    change: dict[str, Any] = {}
    if code == "STARTUP_OOM" and f.error == "oom_sampler_warmup":
        change = {
            "max_num_seqs": 256 if (p.get("dummy_requests") or 1024) > 256 else max(1, int(p["dummy_requests"]) // 2)
        }
    if code == "STARTUP_KV_TOO_SMALL":
        limit = p.get("suggested_max_model_len") or p.get("kv_tokens")
        if not limit and p.get("needed_gib") and p.get("available_gib"):
            limit = int(p["max_model_len"] * p["available_gib"] / p["needed_gib"] * 0.98)
        if limit:
            change = {"max_model_len": int(limit)}
            p.setdefault("suggested_max_model_len", int(limit))
    if code == "STARTUP_BUDGET_BELOW_MODEL_LEN" and p.get("max_model_len"):
        change = {"max_num_batched_tokens": int(p["max_model_len"])}
    if code == "STARTUP_BUDGET_BELOW_SEQS" and p.get("max_num_seqs"):
        change = {"max_num_batched_tokens": int(p["max_num_seqs"])}
    if change:
        p["to"] = next(iter(change.values()))
    sure = "high" if code not in ("STARTUP_OTHER",) and variant != "other" else "medium"
    return _advice(code, f, variant, params=p, change=change, confidence=sure, measure=("startup_log",))


def _imbalance(f: Figures) -> Advice | None:
    known = [e for e in f.engines if e.running is not None and e.waiting is not None]
    if len(known) < 2:
        return None
    least = 1.5 if f.source == "run" else 4  # a run's figures are means over all its time, a paste's are of one moment
    queued = [e for e in known if (e.waiting or 0) >= least / 2]
    empty = [e for e in known if (e.waiting or 0) < 1 and (e.kv_usage is None or e.kv_usage < 0.8)]
    running = sorted(e.running or 0 for e in known)
    skewed = running[-1] >= 8 and running[0] * 4 < running[-1] and sum(running) < 0.75 * running[-1] * len(running)
    worst = max((e.waiting or 0) for e in known)
    if (queued and empty and worst >= least) or (skewed and (not queued or empty)):
        params = {
            "queued": len(queued),
            "engines": len(known),
            "empty": len(empty),
            "most": running[-1],
            "least": running[0],
        }
        return _advice(
            "DP_IMBALANCE",
            f,
            "queue" if queued else "running",
            params=params,
            confidence="high" if queued else "medium",
            change={"router": "vllm"},
            promise="queue_mean",
            alternatives=("KV_FULL_WITH_QUEUE",) if queued else ("CLIENT_LIMITED",),
            measure=("per_engine", "router"),
        )
    return None


_USUAL_CAPS = {m * 2**k for k in range(3, 11) for m in (1, 3)}


def likely_cap(running: float, flat: bool | None) -> int | None:
    """The max_num_seqs that a number of running requests gives away; None if it looks like none.

    The gauge is taken after finished requests were freed, so that a full server often shows one or two less.
    """
    n = int(running)
    if flat or (n >= 8 and (n % 8 == 0 or n % 10 == 0)):
        return n
    return next((n + less for less in (1, 2) if n >= 14 and n + less in _USUAL_CAPS), None)


def _paste_rule(f: Figures) -> Advice:
    kv, running, waiting = f.kv_usage, f.running, f.waiting
    if waiting is None and running is None and kv is None:
        return _advice("UNKNOWN", f, confidence="low", measure=("engine_metrics",))
    moving = (f.preemptions_per_s or 0) > 0 or (f.preemptions_delta or 0) > 0
    still = f.preemptions_per_s == 0 or f.preemptions_delta == 0
    queue = waiting or 0
    if (f.swapped or 0) > 0:
        return _advice(
            "PAST_SWEET_SPOT",
            f,
            "swap",
            confidence="high",
            change=_back_off(f),
            promise="preemptions",
            alternatives=("KV_FULL",),
            measure=("preemption_rate",),
        )
    if moving and (kv is None or kv >= KV_TIGHT):
        return _advice(
            "PAST_SWEET_SPOT",
            f,
            confidence="high",
            change=_back_off(f),
            promise="preemptions",
            alternatives=("KV_FULL_WITH_QUEUE",) if queue else ("KV_FULL",),
            measure=("preemption_rate", "lengths"),
        )
    collapse = f.gen_trend is not None and f.gen_trend < 0.5 and kv is not None and kv >= KV_FULL
    if collapse and queue <= (running or 0):
        return _advice(
            "PAST_SWEET_SPOT",
            f,
            "collapse",
            confidence="medium",
            change=_back_off(f),
            promise="preemptions",
            alternatives=("KV_FULL",),
            measure=("preemption_rate",),
        )
    busy_queue = waiting is not None and (
        queue >= 3 or (queue >= 2 and queue > 0.05 * (running or 0)) or (queue >= 1 and not running)
    )
    deferred = f.waiting_deferred or 0
    if busy_queue and deferred and deferred >= 0.5 * queue:
        lora = bool(f.lora_waiting)
        return _advice(
            "NOT_BUDGET_LORA" if lora else "NOT_BUDGET_DEFERRED",
            f,
            confidence="high" if lora else "medium",
            alternatives=() if lora else ("NOT_BUDGET_LORA",),
            measure=("lora_slots", "connector"),
        )
    if busy_queue and f.lora_waiting and (kv is None or kv < KV_TIGHT):
        return _advice(
            "NOT_BUDGET_LORA", f, confidence="medium", alternatives=("BUDGET_SMALL",), measure=("lora_slots",)
        )
    if busy_queue and kv is None:
        return _advice(
            "UNKNOWN",
            f,
            "kv",
            confidence="low",
            alternatives=("BUDGET_SMALL", "KV_FULL_WITH_QUEUE", "PREFILL_BOUND"),
            measure=("kv_usage", "running_vs_cap"),
        )
    if busy_queue and kv is not None:
        return _queue_rule(f, kv, queue)
    if waiting is None:
        if kv is not None and kv >= KV_NEAR_FULL:
            return _advice(
                "KV_NEAR_FULL",
                f,
                "no_queue",
                confidence="low",
                change=_more_kv(),
                promise="kv_max",
                measure=("waiting", "preemption_rate"),
            )
        return _advice("UNKNOWN", f, "waiting", confidence="low", measure=("waiting", "kv_usage"))
    if kv is not None and kv >= KV_NEAR_FULL:
        if (f.preemptions or 0) > 0 and not still and kv >= 0.95:
            return _advice(
                "PAST_SWEET_SPOT",
                f,
                "counter",
                confidence="medium",
                change=_back_off(f),
                promise="preemptions",
                alternatives=("KV_FULL",),
                measure=("second_scrape",),
            )
        code = "KV_FULL" if kv >= KV_FULL else "KV_NEAR_FULL"
        return _advice(
            code,
            f,
            "empty" if code == "KV_FULL" else "",
            confidence="high",
            change=_more_kv(),
            promise="kv_max",
            alternatives=("PAST_SWEET_SPOT",),
            measure=("preemption_rate", "lengths"),
        )
    if not running:
        if running is None:
            return _advice("UNKNOWN", f, "waiting", confidence="low", measure=("engine_metrics",))
        return _advice("IDLE", f, confidence="high", measure=("client",))
    if f.running_flat and running >= 50 and running % 50 == 0 and (f.cap is None or running < f.cap):
        return _advice("CLIENT_LIMITED", f, confidence="medium", alternatives=("HEALTHY",), measure=("client",))
    if kv is None:
        return _advice("HEALTHY", f, "no_kv", confidence="low", measure=("kv_usage",))
    variant = "history" if (f.preemptions or 0) > 0 else ""
    return _advice(
        "HEALTHY",
        f,
        "rate" if variant and still else variant,
        confidence="high" if not variant or still else "medium",
        measure=("preemption_rate",) if variant else ("latency",),
    )


def _queue_rule(f: Figures, kv: float, queue: float) -> Advice:
    """A queue, and how full the pool is: the lesson's second line with the tests that it leaves out."""
    running = f.running
    share = kv / running if running else None  # of the pool, by an average request
    if running is not None and 0 < running <= 3 and kv >= 0.95:
        return _advice(
            "KV_FULL",
            f,
            "few",
            confidence="high",
            change=_more_kv(),
            promise="queue_mean",
            alternatives=("NEVER_FITS",),
            measure=("lengths", "kv_pool"),
        )
    if kv >= KV_NEAR_FULL or (kv >= KV_TIGHT and not (f.cap and running is not None and running >= f.cap)):
        return _advice(
            "KV_FULL_WITH_QUEUE",
            f,
            confidence="high" if kv >= KV_NEAR_FULL else "medium",
            change=_more_kv(),
            promise="queue_mean",
            alternatives=("PAST_SWEET_SPOT",),
            measure=("preemption_rate", "lengths"),
        )
    if share is not None and share > 1 - kv:
        return _advice(
            "KV_FULL_WITH_QUEUE",
            f,
            "long",
            confidence="medium",
            change=_more_kv(),
            promise="queue_mean",
            alternatives=("NEVER_FITS", "NOT_BUDGET_LORA_OR_OTHER"),
            measure=("lengths", "kv_pool"),
        )
    if running == 0:
        return _advice(
            "NEVER_FITS",
            f,
            "stuck",
            confidence="medium",
            alternatives=("NOT_BUDGET_LORA_OR_OTHER",),
            measure=("lengths", "kv_pool", "second_scrape"),
        )
    at_cap = f.cap is not None and running is not None and running >= f.cap - max(1.0, 0.03 * f.cap)
    if not at_cap and running is not None and running <= 4:
        return _advice(
            "NOT_BUDGET_LORA_OR_OTHER",
            f,
            confidence="medium",
            alternatives=("NOT_BUDGET_LORA", "PREFILL_BOUND", "NEVER_FITS"),
            measure=("lora_slots", "running_vs_cap", "lengths"),
        )
    if at_cap or (f.cap is None and running is not None and likely_cap(running, f.running_flat)):
        return _advice(
            "BUDGET_SMALL",
            f,
            "" if at_cap else "guess",
            params=_seats(f),
            confidence="high" if at_cap or f.running_flat else "medium",
            change=_more_seats(f),
            promise="queue_mean",
            alternatives=("HOST_BOUND", "PREFILL_BOUND"),
            measure=("running_vs_cap", "gpu", "preemption_rate"),
        )
    budget = f.token_budget
    return _advice(
        "PREFILL_BOUND",
        f,
        "cap" if f.cap is not None else "",
        confidence="medium" if f.cap is not None else "low",
        change={"max_num_batched_tokens": 2 * budget} if budget else {},
        promise="ttft_p50",
        params={"to": 2 * budget if budget else None},
        alternatives=("BUDGET_SMALL", "NOT_BUDGET_LORA_OR_OTHER", "HOST_BOUND"),
        measure=("running_vs_cap", "lengths", "gpu"),
    )


def _seats_now(f: Figures) -> int | None:
    return f.cap or (likely_cap(f.running, f.running_flat) or int(f.running) if f.running else None)


def _seats(f: Figures) -> dict[str, Any]:
    now = _seats_now(f)
    if now is None:
        return {}
    to = _more_seats(f).get("max_num_seqs", 2 * now)
    return {"now": now, "to": to, "room": int(now * KV_NEAR_FULL / f.kv_usage) if f.kv_usage else None}


def _more_seats(f: Figures) -> dict[str, Any]:
    """Twice the seats, but no more than the pool holds at 90 %."""
    now = _seats_now(f)
    if now is None:
        return {}
    room = int(now * KV_NEAR_FULL / f.kv_usage) if f.kv_usage else 2 * now
    to = min(2 * now, room, 4096)
    return {"max_num_seqs": max(now + 1, to - to % 8 if to >= now + 8 else to)}


def _back_off(f: Figures) -> dict[str, Any]:
    """Seats for what the pool holds with a margin."""
    if f.fits:
        return {"max_num_seqs": max(1, min(f.fits, int(0.7 * min(f.cap or f.fits, f.running_max or f.fits))))}
    base = f.running or f.cap
    return {"max_num_seqs": max(1, int(0.8 * base))} if base else {}


def _more_kv() -> dict[str, Any]:
    return {"kv_cache_dtype": "fp8"}


def _never_fits(f: Figures) -> Advice:
    length = f.refused_code == "prompt_too_long"
    return _advice(
        "NEVER_FITS",
        f,
        "length" if length else "pool",
        confidence="high",
        promise="refused",
        change={"max_model_len": f.needed_tokens + 1} if length and f.needed_tokens else _more_kv(),
        params={"max_model_len": None, "requested_tokens": f.needed_tokens},
        measure=("lengths",),
    )


def _run_rules(f: Figures) -> list[Advice]:
    """A run's time is known second by second, so each limit is named by the share of queueing time it caused."""
    found: list[Advice] = []
    kv, waiting = f.kv_usage or 0.0, f.waiting or 0.0
    if (f.preemptions or 0) >= 1 and (f.preemptions_per_s or 0) >= 0.02:
        found.append(
            _advice(
                "PAST_SWEET_SPOT",
                f,
                "run",
                confidence="high",
                change=_back_off(f),
                promise="preemptions",
                alternatives=("KV_FULL_WITH_QUEUE",),
                measure=("preemption_rate", "lengths"),
            )
        )
    queueing = (f.queue_share or 0) > 0.1 and (f.queue_mean_s or 0) > 0.02
    if queueing:
        causes = {"cap": f.at_cap or 0.0, "kv": f.kv_bound or 0.0, "budget": f.budget_bound or 0.0}
        cause = max(causes, key=lambda c: causes[c])
        if causes[cause] < 0.2:
            cause = "other"
        # a step that is full *and* computes at full speed is work, not a budget: a larger one would only take longer
        saturated = (f.gpu_compute or 0) > 0.85 or (f.full_compute or 0) > 0.7
        if cause == "cap":
            if kv < KV_TIGHT:
                found.append(
                    _advice(
                        "BUDGET_SMALL",
                        f,
                        "",
                        params=_seats(f),
                        confidence="high",
                        change=_more_seats(f),
                        promise="queue_mean",
                        alternatives=("OVERLOADED", "HOST_BOUND"),
                        measure=("gpu", "preemption_rate"),
                    )
                )
            else:
                found.append(
                    _advice(
                        "KV_FULL_WITH_QUEUE",
                        f,
                        confidence="medium",
                        change=_more_kv(),
                        promise="queue_mean",
                        alternatives=("BUDGET_SMALL",),
                        measure=("lengths",),
                    )
                )
        elif cause == "kv":
            found.append(
                _advice(
                    "KV_FULL_WITH_QUEUE",
                    f,
                    confidence="high",
                    change=_more_kv(),
                    promise="queue_mean",
                    alternatives=("PAST_SWEET_SPOT",),
                    measure=("preemption_rate", "lengths"),
                )
            )
        elif (
            cause == "budget"
            and (f.overload or 1) < 1.5
            and (f.prompt_spread or 1) > 8
            and f.token_budget
            and 3 * (f.prompt_p50 or 1) <= f.token_budget
            and (f.queue_mean_s or 0) > 0.1
        ):
            threshold = max(128, int(1.5 * (f.prompt_p50 or 256)))
            found.append(
                _advice(
                    "LONG_PROMPTS",
                    f,
                    confidence="medium",
                    params={"to": threshold, "spread": f.prompt_spread},
                    change={"long_prefill_token_threshold": threshold},
                    promise="ttft_p50",
                    alternatives=("PREFILL_BOUND", "OVERLOADED"),
                    measure=("lengths",),
                )
            )
        elif cause == "budget" and not saturated and f.token_budget:
            found.append(
                _advice(
                    "PREFILL_BOUND",
                    f,
                    "run",
                    confidence="medium",
                    params={"to": 2 * f.token_budget},
                    change={"max_num_batched_tokens": 2 * f.token_budget},
                    promise="ttft_mean",
                    alternatives=("OVERLOADED", "HOST_BOUND"),
                    measure=("lengths", "gpu"),
                )
            )
        else:
            found.append(
                _advice(
                    "OVERLOADED",
                    f,
                    confidence="high" if saturated else "medium",
                    promise="ttft_mean",
                    alternatives=("PREFILL_BOUND",),
                    measure=("gpu", "lengths"),
                )
            )
    if not found and kv >= KV_NEAR_FULL:
        found.append(
            _advice(
                "KV_FULL" if kv >= KV_FULL else "KV_NEAR_FULL",
                f,
                "empty" if kv >= KV_FULL else "",
                confidence="high",
                change=_more_kv(),
                promise="kv_max",
                alternatives=("PAST_SWEET_SPOT",),
                measure=("lengths",),
            )
        )
    if not found and (f.host_share or 0) > 0.4 and (f.gpu_compute or 0) < 0.5 and waiting < 1 and (f.running or 0) >= 2:
        found.append(
            _advice(
                "HOST_BOUND",
                f,
                confidence="medium",
                promise="itl_mean",
                alternatives=("CLIENT_LIMITED",),
                measure=("host", "gpu"),
            )
        )
    to = max(256, 2 ** int(math.log2(max(1.0, (f.step_tokens or 0) / max(2.0, f.step_slow or 2.0)))), f.cap or 0)
    if not found and (f.step_slow or 0) > 1.5 and f.token_budget and to < min(f.token_budget, f.step_tokens or 0):
        found.append(
            _advice(
                "BUDGET_LARGE",
                f,
                confidence="medium",
                params={"to": to, "slow": f.step_slow},
                change={"max_num_batched_tokens": to},
                promise="itl_p99",
                alternatives=("OVERLOADED",),
                measure=("latency",),
            )
        )
    if not found and f.closed and (f.running or 0) > 1 and (f.gpu_compute or 0) < 0.7:
        found.append(
            _advice(
                "CLIENT_LIMITED", f, confidence="medium", promise="+qps", alternatives=("HEALTHY",), measure=("client",)
            )
        )
    if not found and (f.gpu_busy or 0) < 0.3 and (f.running or 0) < 2:
        found.append(_advice("IDLE", f, confidence="high", measure=("client",)))
    if (
        len(found) > 1
        and found[0].code == "PAST_SWEET_SPOT"
        and found[1].code == "KV_FULL_WITH_QUEUE"
        and (waiting > (f.running or 0) and (f.preempted_share or 0) < 0.5)
    ):  # a few victims among many who wait: what is missing is capacity, and fewer seats would only lengthen the queue
        found[0], found[1] = found[1], found[0]
    return found


def changes(advice: Advice, scenario: Scenario) -> dict[str, Any]:
    """Fields of `scenario` that carry out the advice, in one click; empty if a simulator has no such knob.

    Every value is one that Scenario accepts together with the others.
    """
    code, s = advice.code, scenario
    wanted: dict[str, Any] = dict(advice.change)
    if wanted.get("kv_cache_dtype") == "fp8" or code in ("KV_FULL", "KV_FULL_WITH_QUEUE", "KV_NEAR_FULL"):
        wanted = _room(s)
    if code == "NEVER_FITS":
        wanted = _fitting(s, int(wanted["max_model_len"])) if "max_model_len" in wanted else _room(s)
    elif code == "BUDGET_SMALL":
        to = int(wanted.get("max_num_seqs", 2 * s.max_num_seqs))
        wanted = {"max_num_seqs": to if to > s.max_num_seqs else min(4096, 2 * s.max_num_seqs)}
        if s.max_num_active_seqs and s.max_num_active_seqs < wanted["max_num_seqs"]:
            wanted["max_num_active_seqs"] = 0
        wanted["max_num_batched_tokens"] = max(s.max_num_batched_tokens, wanted["max_num_seqs"])
    elif code == "PAST_SWEET_SPOT":
        to = int(wanted.get("max_num_seqs", 0.7 * s.max_num_seqs))
        wanted = {"max_num_seqs": max(1, min(to, s.max_num_seqs - 1))}
    elif code == "PREFILL_BOUND":
        wanted = {"max_num_batched_tokens": min(1_000_000, 2 * s.max_num_batched_tokens)}
    elif code == "OVERLOADED":
        wanted = {"data_parallel_size": min(64, 2 * s.data_parallel_size)}
    elif code == "HOST_BOUND":
        if s.host == "v0":
            wanted = {"host": "v1"}
        elif not s.async_scheduling:
            wanted = {"async_scheduling": True}
        elif s.tensor_parallel_size > 1:
            wanted = {
                "tensor_parallel_size": s.tensor_parallel_size // 2,
                "data_parallel_size": min(64, s.data_parallel_size * 2),
            }
        else:
            wanted = {}
    elif code == "DP_IMBALANCE":
        wanted = {"router": "vllm" if s.router != "vllm" else "least_loaded"}
    elif code == "CLIENT_LIMITED":
        wanted = {"num_clients": min(5000, 2 * s.num_clients)} if s.arrival == "closed" else {}
    elif code in ("HEALTHY", "IDLE", "UNKNOWN") or code.startswith("NOT_BUDGET"):
        wanted = {}
    wanted = {k: v for k, v in wanted.items() if k in SETTINGS and getattr(s, k) != v}
    if "max_num_seqs" in wanted and s.max_num_batched_tokens < wanted["max_num_seqs"]:
        wanted["max_num_batched_tokens"] = wanted["max_num_seqs"]
    try:
        s.but(**wanted)
    except SimError:
        return {}
    return wanted


def _fitting(s: Scenario, length: int) -> dict[str, Any]:
    """What lets requests of `length` tokens in: max_model_len, and as much pool as vLLM demands for it at start-up."""
    wanted: dict[str, Any] = {"max_model_len": min(10_000_000, max(length, s.max_model_len))}
    if s.num_gpu_blocks_override:
        wanted["num_gpu_blocks_override"] = max(s.num_gpu_blocks_override, math.ceil(length / s.block_size) + 1)
    if not s.enable_chunked_prefill:
        wanted["max_num_batched_tokens"] = max(s.max_num_batched_tokens, wanted["max_model_len"])
    steps: list[dict[str, Any]] = [
        {},
        {"kv_cache_dtype": "fp8"},
        {"gpu_memory_utilization": max(0.95, s.gpu_memory_utilization)},
    ]
    steps += [{"tensor_parallel_size": tp} for tp in (2, 4, 8) if tp > s.tensor_parallel_size]
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
    engines = tuple(
        EngineFigures(who, e.get("running"), e.get("waiting"), e.get("kv_usage")) for who, e in table.items()
    )
    one: Mapping[str, Any] = parse.get("last") or (
        next(iter(table.values())) if len(table) == 1 else parse.get("aggregate") or {}
    )
    rates: Mapping[str, Any] = parse.get("rates") or {}
    lora: Mapping[str, Any] = parse.get("lora") or {}
    error = parse.get("error") or ""
    if error in ("oom", "prompt_too_long", "port_taken") and (one or table):
        error = ""  # the server runs: an error of one request is not why it waits
    first, last = parse.get("gen_tok_s_first"), one.get("gen_tok_s")
    preemptions_delta = parse.get("preemptions_delta")
    rate = rates.get("preemptions_per_s")
    if rate is None and preemptions_delta is not None and parse.get("interval_s"):
        rate = preemptions_delta / parse["interval_s"]

    def setting(name: str) -> int | None:
        value = settings.get(name, config.get(name))
        return int(value) if isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0 else None

    return Figures(
        engine=parse.get("engine_family", "vllm-v1"),
        running=one.get("running"),
        waiting=one.get("waiting"),
        kv_usage=one.get("kv_usage", one.get("kv_max")),
        waiting_deferred=one.get("waiting_deferred"),
        swapped=one.get("swapped"),
        cap=setting("max_num_seqs"),
        token_budget=setting("max_num_batched_tokens"),
        running_flat=parse.get("running_flat"),
        preemptions=one.get("preemptions_total", parse.get("preemptions_total")),
        preemptions_delta=preemptions_delta,
        preemptions_per_s=rate,
        gen_tok_s=last,
        gen_trend=last / first if first and last is not None else None,
        prompt_tok_s=one.get("prompt_tok_s"),
        engines=engines if len(engines) > 1 else (),
        one_model=len({e.get("model") for e in table.values()}) <= 1,
        lora_slots=lora.get("max_lora"),
        lora_waiting=len(lora.get("waiting") or ()) or None,
        error=error,
        samples=parse.get("samples"),
        error_params={
            k: v
            for k, v in parse.items()
            if isinstance(v, (int, float, str)) and k not in ("error", "engine_family", "samples")
        },
    )


def _of_run(run: Run) -> Figures:
    s, t, q = run.scenario, run.ticks, run.requests
    summary = run.summary()
    base: dict[str, Any] = dict(
        source="run", cap=s.max_num_seqs, token_budget=s.max_num_batched_tokens, closed=s.arrival == "closed"
    )
    refusals: Mapping[int, SimError] = run.refusals if hasattr(run, "refusals") else {}
    lengths = np.asarray(q.prompt) + np.asarray(q.output)
    needed = max((int(lengths[i]) for i in refusals), default=0)
    code = next((e.code for e in refusals.values()), "")
    if not len(t.start):
        return Figures(
            **base,
            running=0,
            waiting=0,
            kv_usage=0.0,
            refused=len(refusals),
            refused_code=code,
            needed_tokens=needed or None,
        )
    w = np.asarray(t.duration, dtype=float)
    waiting, running = np.asarray(t.waiting), np.asarray(t.running)
    blocks = max(1, summary.num_gpu_blocks - 1)
    free = np.asarray(t.free_blocks) / blocks
    tokens = np.asarray(t.decode_seqs) + np.asarray(t.prefill_tokens)
    queue = waiting > 0
    queued_s = float(w[queue].sum())
    cap = s.max_num_seqs if not s.max_num_active_seqs else min(s.max_num_seqs, s.max_num_active_seqs)
    full_budget = tokens >= s.max_num_batched_tokens
    at_cap = running >= cap
    short = ~at_cap & ~full_budget
    prompt = np.asarray(q.prompt, dtype=float)
    typical = float(np.percentile(lengths, 75)) if len(lengths) else 1.0
    need = math.ceil(typical / s.block_size)

    def share(mask: np.ndarray[Any, np.dtype[np.bool_]]) -> float:
        return float(w[queue & mask].sum()) / queued_s if queued_s else 0.0

    busy = float(w.sum()) or 1.0
    terms = run.step_time.terms(t) if run.step_time is not None and hasattr(run.step_time, "terms") else {}
    host = float(np.sum(terms["host"])) / busy if "host" in terms else None
    full_s = float(w[full_budget].sum())
    full_compute, prefilling = None, t.prefill_tokens > 0
    if full_s > 0 and hasattr(run.step_time, "flops"):
        full_compute = _finite(float(np.sum(run.step_time.flops(t)[full_budget])) / (run.step_time.peak_flops * full_s))
    engines: tuple[EngineFigures, ...] = ()
    replicas = np.unique(t.replica)
    if len(replicas) > 1:
        rows = []
        for r in replicas:
            mine = t.replica == r
            mw = w[mine]
            total = float(mw.sum()) or 1.0
            rows.append(
                EngineFigures(
                    str(int(r)),
                    float((running[mine] * mw).sum()) / total,
                    float((waiting[mine] * mw).sum()) / total,
                    float(((1 - free[mine]) * mw).sum()) / total,
                )
            )
        engines = tuple(rows)
    loaded = queue if queued_s > 0 else w > 0
    weight = w[loaded]
    usage = float(((1 - free[loaded]) * weight).sum() / weight.sum())
    wall = summary.duration_s or 1.0
    return Figures(
        **base,
        running=float((running * w).sum()) / busy,
        waiting=float((waiting * w).sum()) / busy,
        kv_usage=max(usage, float(1 - free.min())) if not queued_s else usage,
        preemptions=summary.preemptions,
        preemptions_delta=summary.preemptions,
        preemptions_per_s=summary.preemptions / wall,
        gen_tok_s=summary.output_tok_s,
        engines=engines,
        at_cap=share(at_cap),
        budget_bound=share(full_budget & ~at_cap),
        kv_bound=share(short & (free < max(0.1, 2 * need / blocks))),
        queue_share=queued_s / busy,
        queue_mean_s=_finite(summary.queue_mean),
        gpu_compute=_finite(summary.gpu_compute),
        gpu_bandwidth=_finite(summary.gpu_bandwidth),
        gpu_busy=_finite(summary.gpu_busy),
        host_share=host,
        refused=int(summary.refused),
        refused_code=code,
        needed_tokens=needed or None,
        prompt_p50=float(np.median(prompt)) if len(prompt) else None,
        prompt_spread=float(np.percentile(prompt, 99) / max(1.0, np.median(prompt))) if len(prompt) else None,
        fits=max(1, int(0.9 * blocks / max(1, need))),
        step_slow=(_finite(summary.itl_p99) or 0.0) / s.slo_tpot_s,
        prefill_share=float(w[prefilling].sum()) / busy,
        full_compute=full_compute,
        step_tokens=float(np.percentile(tokens[prefilling], 99)) if prefilling.any() else None,
        running_max=int(running.max()),
        overload=wall / s.duration_s,
        preempted_share=summary.preemptions / max(1, len(prompt)),
    )


def _finite(value: float) -> float | None:
    return float(value) if value is not None and math.isfinite(value) else None


# ------------------------------------------------------------------------------------------------------------- in English

TEXT: dict[str, str] = {
    "name_budget_small": "max_num_seqs is too small",
    "budget_small_why": "{waiting:.0f} waiting, running flat at the cap of {cap}, KV only {kv:.0%}: seats are the limit, not memory",
    "budget_small_why_guess": "{waiting:.0f} waiting with KV {kv:.0%}, and {running:.0f} running looks like the max_num_seqs cap",
    "budget_small_action": "raise --max-num-seqs one step ({now} to {to}), watch KV and the preemption rate, stop where tokens/s stops rising",
    "budget_small_action_guess": "check that max_num_seqs is {now}; if so raise --max-num-seqs to {to} (the pool has room for about {room}), "
    "watch KV, preemptions and GPU use",
    "name_kv_full_with_queue": "queue full and cache full: capacity",
    "kv_full_with_queue_why": "{waiting:.0f} waiting and KV {kv:.0%}: capacity; what runs ({running:.0f}) is set by KV, not by the cap",
    "kv_full_with_queue_why_long": "{running:.0f} running hold {kv:.0%} of the pool, so an average waiter does not fit the free {free:.0%}: "
    "long requests monopolise it",
    "kv_full_with_queue_action": "more KV (fp8 KV, more gpu_memory_utilization, more or larger GPUs) or fewer and shorter requests; raising "
    "max_num_seqs would only add preemptions",
    "kv_full_with_queue_action_long": "cap max_model_len or the prompt size, or give the pool more memory; not a cap of {running:.0f}",
    "name_kv_full": "the KV pool is full",
    "kv_full_why": "KV {kv:.0%}",
    "kv_full_why_few": "only {running:.0f} running yet KV {kv:.0%}: the pool is too small for these lengths",
    "kv_full_why_empty": "queue empty, KV {kv:.0%}: memory is at its top, the next growth preempts",
    "kv_full_action": "shorter max_model_len, fp8 KV, more gpu_memory_utilization, more or larger GPUs; raising max_num_seqs cannot help",
    "name_kv_near_full": "the KV pool is nearly full",
    "kv_near_full_why": "queue empty, KV {kv:.0%}",
    "kv_near_full_why_no_queue": "KV {kv:.0%}; the queue is not in the paste",
    "kv_near_full_action": "get KV room before load grows (fp8 KV, gpu_memory_utilization, TP); not max_num_seqs",
    "name_past_sweet_spot": "past the sweet spot: preempting",
    "past_sweet_spot_why": "KV {kv:.0%} and preemptions rising ({delta:.0f} in the window): work is thrown away and done again",
    "past_sweet_spot_why_counter": "queue empty, KV {kv:.0%} and {preemptions:.0f} preemptions counted since start",
    "past_sweet_spot_why_collapse": "KV {kv:.0%} and the generation rate has collapsed to {gen:.0f} tok/s: preempted requests are prefilled over and over",
    "past_sweet_spot_why_swap": "{swapped:.0f} requests are swapped out to CPU memory (V0): the pool is oversubscribed",
    "past_sweet_spot_why_run": "{preemptions:.0f} preemptions ({rate:.2f}/s): the pool holds about {fits} typical requests, max_num_seqs allows {cap}",
    "past_sweet_spot_action": "lower max_num_seqs a step, or add KV (gpu_memory_utilization, TP, fp8 KV)",
    "past_sweet_spot_action_counter": "lower max_num_seqs or add KV (gpu_memory_utilization, TP, fp8 KV); first confirm with a second scrape "
    "that the counter is moving",
    "name_dp_imbalance": "data-parallel ranks are out of balance",
    "dp_imbalance_why": "load sits on some ranks only",
    "dp_imbalance_why_queue": "queues sit on {queued} of {engines} ranks while {empty} have none and room to spare",
    "dp_imbalance_why_running": "one rank runs {most:.0f} requests, another {least:.0f}, and nothing waits",
    "dp_imbalance_action": "route by KV and queue (vLLM's internal balancer, or a KV-aware external one); max_num_seqs is not the cause",
    "name_not_budget_lora": "LoRA adapter slots",
    "not_budget_lora_why": "{waiting:.0f} wait for an adapter slot (max_loras {slots}); KV {kv:.0%}",
    "not_budget_lora_action": "raise --max-loras (or route each adapter to its own replica); max_num_seqs is irrelevant",
    "name_not_budget_deferred": "waiters are deferred",
    "not_budget_deferred_why": "{deferred:.0f} of {waiting:.0f} waiters are deferred (a LoRA slot, a KV transfer or a grammar), not short of capacity",
    "not_budget_deferred_action": "look at LoRA slots, the KV connector and structured output, not at the budgets",
    "name_not_budget_lora_or_other": "neither the cap nor KV",
    "not_budget_lora_or_other_why": "{running:.0f} running, {waiting:.0f} waiting, KV {kv:.0%}: neither the cap nor KV explains it",
    "not_budget_lora_or_other_action": "check LoRA max_loras, guided decoding, a KV connector, a stuck request; raise max_num_seqs only if it really is {running:.0f}",
    "name_prefill_bound": "the token budget: prompts queue for prefill",
    "prefill_bound_why": "{waiting:.0f} waiting with KV {kv:.0%}, and {running:.0f} running does not look like a cap: prompts probably wait for "
    "their share of max_num_batched_tokens",
    "prefill_bound_why_cap": "{waiting:.0f} waiting, {running:.0f} running of {cap} allowed, KV {kv:.0%}: not seats, not memory; prompts wait for the token budget",
    "prefill_bound_why_run": "steps are filled to max_num_batched_tokens ({budget}) while requests wait and seats are free",
    "prefill_bound_action": "compare running with max_num_seqs first; if it is below, raise --max-num-batched-tokens a step (it costs ITL and some KV), "
    "look at prompt lengths and prefix caching",
    "name_long_prompts": "long prompts starve short ones",
    "long_prompts_why": "the longest prompts are {spread:.0f} times the median and fill the token budget ({budget}) alone",
    "long_prompts_action": "set --long-prefill-token-threshold {to} so that short prompts pass beside them, or cap prompt length, or give long prompts their own replicas",
    "name_budget_large": "the token budget is too large for the promised ITL",
    "budget_large_why": "ITL p99 is {slow:.1f} times the target: prefill chunks of up to {budget} tokens stretch the steps that everyone decodes in",
    "budget_large_action": "lower --max-num-batched-tokens to {to}; TTFT and prompt throughput pay for it",
    "name_overloaded": "the GPU is saturated",
    "overloaded_why": "compute {compute:.0%} used and still {waiting:.0f} waiting on average: more work arrives than this hardware can do",
    "overloaded_action": "add replicas (data parallel) or GPUs, quantise, or shed load; no scheduler setting creates capacity",
    "name_host_bound": "the host (CPU) is the limit",
    "host_bound_why": "{host:.0%} of step time is host work, during which the GPU waits; compute use is {compute:.0%}",
    "host_bound_action": "async scheduling, a current version, fewer TP ranks with more replicas, more API server processes; budgets do not help",
    "name_client_limited": "the client sends too little",
    "client_limited_why": "{running:.0f} running and nothing waits: the number in flight is the client's limit (aiohttp's default is 100 connections)",
    "client_limited_action": "raise the client's concurrency; no server change",
    "name_never_fits": "a request that can never fit",
    "never_fits_why": "{refused} requests can never be served",
    "never_fits_why_stuck": "nothing runs, {waiting:.0f} wait and KV is at {kv:.0%}: the request at the head fits neither the pool nor the budget",
    "never_fits_why_length": "a request is longer than max_model_len allows ({requested_tokens} tokens)",
    "never_fits_why_pool": "{refused} requests need more KV than the whole pool holds ({needed} tokens the longest)",
    "never_fits_action": "find the longest waiting prompt; raise max_model_len and the pool, or refuse it at the door",
    "name_idle": "idle",
    "idle_why": "nothing waits, {running:.0f} running: the server has nothing to do",
    "idle_action": "none; if users still wait, look at the client, the gateway and the network",
    "name_healthy": "healthy",
    "healthy_why": "no queue to speak of and KV {kv:.0%}",
    "healthy_why_no_kv": "no queue, {running:.0f} running; KV usage is not known",
    "healthy_why_history": "{preemptions:.0f} preemptions since start with KV at {kv:.0%} now: history, not a present fault",
    "healthy_why_rate": "no preemption in the window (the counter stands at {preemptions:.0f}), KV {kv:.0%}",
    "healthy_action": "none; watch the preemption rate and TTFT",
    "name_unknown": "not enough to say",
    "unknown_why": "no figure of running, waiting or KV in the paste",
    "unknown_why_kv": "{waiting:.0f} wait and {running:.0f} run, but KV usage is unknown: it decides between seats and memory",
    "unknown_why_waiting": "the queue length is unknown",
    "unknown_action": "paste the engine's own /metrics page (not the router's), twice, a minute apart",
    "name_startup_oom": "out of memory at start-up",
    "startup_oom_why": "the sampler warm-up with {dummy_requests} rows of logits (max_num_seqs x vocabulary) needs memory outside the KV pool",
    "startup_oom_why_other": "the GPU ran out of memory before serving",
    "startup_oom_action": 'lower max_num_seqs (to {to}) or gpu_memory_utilization; the opposite of "raise it"',
    "startup_oom_action_other": "lower gpu_memory_utilization, max_num_seqs or max_num_batched_tokens; see who else uses the GPU",
    "name_startup_kv_too_small": "the KV pool is smaller than one full-length request",
    "startup_kv_too_small_why": "the KV pool is smaller than one full-length request",
    "startup_kv_too_small_why_gib": "one request of max_model_len {max_model_len} needs {needed_gib} GiB of KV, {available_gib} GiB are there",
    "startup_kv_too_small_why_tokens": "one request of max_model_len {max_model_len} does not fit a pool of {kv_tokens} tokens",
    "startup_kv_too_small_why_none": "weights and activations leave no memory for KV blocks",
    "startup_kv_too_small_action": "--max-model-len {to} or less, or more memory for KV (gpu_memory_utilization, fp8 KV, TP)",
    "startup_kv_too_small_action_none": "raise gpu_memory_utilization, use smaller or quantised weights, or more GPUs (TP)",
    "name_startup_memory_taken": "somebody else holds the GPU's memory",
    "startup_memory_taken_why": "{free_gib} of {total_gib} GiB are free, gpu_memory_utilization {gpu_memory_utilization} wants {desired_gib} GiB",
    "startup_memory_taken_action": "stop the other process on this GPU (a dead server's worker?), or lower gpu_memory_utilization",
    "name_startup_budget_below_model_len": "token budget below max_model_len",
    "startup_budget_below_model_len_why": "without chunked prefill a prompt of {max_model_len} tokens must fit one step of {max_num_batched_tokens}",
    "startup_budget_below_model_len_action": "enable chunked prefill, or raise --max-num-batched-tokens to {to}, or lower max_model_len",
    "name_startup_budget_below_seqs": "token budget below max_num_seqs",
    "startup_budget_below_seqs_why": "every running sequence needs a token a step: {max_num_batched_tokens} tokens cannot serve {max_num_seqs} sequences",
    "startup_budget_below_seqs_action": "raise --max-num-batched-tokens to at least {to} or lower max_num_seqs",
    "name_startup_model_len_too_long": "max_model_len beyond the model",
    "startup_model_len_too_long_why": "max_model_len {max_model_len} is more than the model's own length",
    "startup_model_len_too_long_action": "lower --max-model-len, or configure rope scaling as the model card says",
    "name_startup_tp_heads": "tensor parallel size does not divide the heads",
    "startup_tp_heads_why": "{num_attention_heads} attention heads do not divide by TP {tensor_parallel_size}",
    "startup_tp_heads_action": "choose a tensor-parallel size that divides the number of heads; fill the rest with data parallel",
    "name_startup_too_few_gpus": "more GPUs wanted than there are",
    "startup_too_few_gpus_why": "{world_size} ranks wanted, {num_gpus} GPUs visible",
    "startup_too_few_gpus_action": "lower the parallel sizes or make more GPUs visible (--gpus, CUDA_VISIBLE_DEVICES)",
    "name_startup_unknown_flag": "a flag that this version does not know",
    "startup_unknown_flag_why": "{flag} is not a flag of this version",
    "startup_unknown_flag_action": "remove it or use its successor; `vllm serve --help=all` lists today's",
    "name_startup_model_access": "no access to the model",
    "startup_model_access_why": "the hub refused the model: gated, private, or no token",
    "startup_model_access_action": "accept the licence on the hub and pass a token, or mount the weights",
    "name_startup_port_taken": "the port is taken",
    "startup_port_taken_why": "another process listens on the port",
    "startup_port_taken_action": "stop it or choose another --port",
    "name_startup_other": "it did not start",
    "startup_other_why": "the log shows an error that this page does not know",
    "startup_other_action": "read the first error, not the last",
    "measure_second_scrape": "a second /metrics scrape a minute later: is the counter moving?",
    "measure_preemption_rate": "rate(vllm:num_preemptions_total[5m]): a rate, not the counter",
    "measure_running_vs_cap": "running against max_num_seqs: equal, or below?",
    "measure_gpu": 'GPU compute use (tensor activity, not nvidia-smi\'s "busy")',
    "measure_lengths": "prompt and output lengths (vllm:request_prompt_tokens, vllm:request_generation_tokens): p50 and p99",
    "measure_kv_pool": 'the pool in tokens (start-up line "GPU KV cache size") against the longest request',
    "measure_lora_slots": "vllm:lora_requests_info and --max-loras; vllm:num_requests_waiting_by_reason",
    "measure_connector": "the KV connector's own metrics and structured-output compile times",
    "measure_per_engine": "running, waiting and KV per engine label, not their mean",
    "measure_router": "how the router in front chooses a rank",
    "measure_client": "the client's connection limit and its rate in flight",
    "measure_latency": "TTFT and ITL percentiles against their targets",
    "measure_host": "CPU use of EngineCore and API server processes",
    "measure_kv_usage": "vllm:kv_cache_usage_perc (before 0.10: vllm:gpu_cache_usage_perc)",
    "measure_waiting": "vllm:num_requests_waiting",
    "measure_engine_metrics": "the engine's own /metrics page",
    "measure_startup_log": "the whole start-up log, from its first line",
}
"""English, by key; pages hold the same keys in both languages (ui/text/*/advice.toml)."""
