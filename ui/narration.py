"""What changed against A: sentences made from two runs' own figures, in the visitor's language."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any

from sim import catalog
from sim.results import Run, Summary
from sim.scenario import SETTINGS, Scenario
from ui import state, text
from ui.controls import COUNTED, option
from ui.text import count, has, percent, seconds, t, value

FIGURES = {
    "qps": ("req/s", 0.02), "ttft_p99": ("s", 0.05), "e2e_p99": ("s", 0.05), "itl_p99": ("s", 0.05), "gpu_compute": ("%", 0.03),
    "waiting_mean": ("", 0.1), "kv_max": ("%", 0.05), "preemptions": ("", 0.0),
    "ttft_p50": ("s", 0.05), "running_max": ("", 0.03), "waiting_max": ("", 0.1),
}
"""Figures a sentence may speak of: name -> unit, relative change below which it is not worth a word."""
USUAL = tuple(FIGURES)[:8]
"""In this order, where a page has no pictures of its own to speak of."""


def changed(
    b: Summary, a: Summary, scenario_b: Scenario, scenario_a: Scenario, most: int = 4, pictures: Sequence[str] = (),
    recent: Sequence[str] = (),
) -> str:
    """What was set differently and what came of it; "" if B is A.

    pictures: the figures that the page's pictures show; recent: settings to name first, the last that was moved before others.
    """
    if scenario_b == scenario_a:
        return ""
    told = dict.fromkeys((*pictures, *USUAL))
    if "waiting_max" in told:
        del told["waiting_mean"]
    if not (a.preemptions and b.preemptions):  # a sentence of its own says so
        told.pop("preemptions")
    said = []
    for name in told:
        unit, least = FIGURES[name]
        before, after = getattr(a, name), getattr(b, name)
        if before == after or before != before or after != after or abs(after - before) <= least * max(abs(before), abs(after)):
            continue
        if name == "waiting_mean" and max(before, after) < 0.5:
            continue
        was, now = value(before, unit), value(after, unit)
        if was != now:
            direction = "rose" if after > before else "fell"
            said.append(t(f"narration.{direction}", figure=t(f"narration.figure.{name}"), a=was, b=now))
    seats = min(scenario_a.max_num_seqs, scenario_b.max_num_seqs)
    unused = scenario_a.max_num_seqs != scenario_b.max_num_seqs and max(a.running_max, b.running_max) < seats
    nothing = t("narration.seats_unused", n=value(b.running_max), seats=value(seats)) if unused else t("narration.nothing")
    sentences = []
    if b.preemptions and not a.preemptions:
        began = "swapping_began" if scenario_b.preemption_mode == "swap" else "preemption_began"
        sentences.append(t(f"narration.{began}", kv=value(b.kv_max, "%"), n=value(b.preempted_requests), times=value(b.preemptions)))
    elif a.preemptions and not b.preemptions:
        sentences.append(t("narration.preemption_ended"))
    if b.refused != a.refused:  # those sent away count in no other figure
        sentences.append(t("narration.refused", n=value(b.refused), a=value(a.refused)))
    fuller = b.running_mean > 1.1 * a.running_mean and b.waiting_mean < a.waiting_mean and not b.preemptions
    if fuller and b.tpot_p50 > 1.1 * a.tpot_p50 and b.e2e_p99 > 1.05 * a.e2e_p99:  # the queue is shorter: why then?
        sentences.append(t("narration.fuller", n=value(b.running_mean), n_a=value(a.running_mean), b=seconds(b.tpot_p50), a=seconds(a.tpot_p50)))
    if b.goodput_qps < 0.9 * a.goodput_qps and b.qps > 1.02 * a.qps:
        sentences.append(t("narration.too_far", a=value(a.goodput_qps), b=value(b.goodput_qps), ttft=seconds(scenario_b.slo_ttft_s),
                           tpot=seconds(scenario_b.slo_tpot_s)))
    effects = t("narration.and").join(said[: max(most, len(pictures))]) if said else sentences.pop(0).rstrip("。.") if sentences else nothing
    return text.joined([t("narration.sentence", what=settings(scenario_b, scenario_a, recent=recent), effects=effects), *sentences])


def settings(b: Scenario, a: Scenario, most: int = 3, recent: Sequence[str] = ()) -> str:
    """What B sets differently from A: "max_num_seqs 64 → 256, ...", in plain text; `recent` first."""
    differing = [n for n in dict.fromkeys((*recent, *SETTINGS)) if getattr(b, n) != getattr(a, n)]
    parts = [
        t("narration.chosen" if isinstance(getattr(b, n), str) and not SETTINGS[n].flag else "narration.moved",
          name=name(n), a=word(n, getattr(a, n)), b=word(n, getattr(b, n))) for n in differing[:most]
    ]
    if len(differing) > most:
        parts.append(t("narration.more", n=len(differing) - most))
    return t("narration.comma").join(parts)


def name(field: str) -> str:
    """The name of a setting in plain text: vLLM's own where it has one."""
    return field if SETTINGS[field].flag else t(f"settings.{field}.label")


def word(field: str, setting: Any) -> str:
    """A setting's value in words."""
    if isinstance(setting, bool):
        return t("narration.on" if setting else "narration.off")
    if isinstance(setting, str):
        return option(field, setting)
    unit = SETTINGS[field].unit
    shown = f"{setting:,}" if isinstance(setting, int) else f"{setting:g}"
    return f"{shown}{text.BLANK}{unit}" if unit and unit not in COUNTED else shown


def figures(b: Run, a: Run) -> dict[str, str]:
    """Figures of two runs in words, to fill a page's texts: `qps`, ... of B and `qps_a`, ... of A."""
    return _figures(b) | {f"{k}_a": v for k, v in _figures(a).items()}


def _figures(run: Run) -> dict[str, str]:
    s = run.summary()
    return {
        "qps": count(s.qps), "p99": seconds(s.e2e_p99), "ttft": seconds(s.ttft_p99), "ttft50": seconds(s.ttft_p50),
        "queue50": seconds(s.queue_p50), "itl": seconds(s.itl_p99), "waiting": count(s.waiting_max),
        "running": count(s.running_max), "seats": count(run.scenario.max_num_seqs), "budget": count(run.scenario.max_num_batched_tokens), "kv": percent(s.kv_max),
        "gpu": percent(s.gpu_compute), "busy": percent(s.gpu_busy), "preempt": count(s.preemptions),
        "again": count(s.recomputed_tokens), "swapped": count(s.swapped_blocks),
        "swap_s": seconds(float(run.ticks.swap_s.sum())),
    }


def facts(summary: Summary) -> str:
    """How long the run was, what it handled and whether its books agree: one line for the small print."""
    key = "drained" if summary.drained else "undrained"
    return t(
        f"narration.facts_{key}", finished=value(summary.finished), ticks=value(summary.ticks),
        wall=value(summary.duration_s, "s"), blocks=value(summary.num_gpu_blocks), little=f"{summary.littles_law:.2f}",
        unfinished=value(summary.unfinished),
    )


def refused(run: Run) -> str:
    """How many requests a run sent away, and why, of one of them; "" if none."""
    if not run.refusals:
        return ""
    return text.joined([t("narration.sent_away", n=count(len(run.refusals)), all=count(len(run.requests.prompt))),
                        state.message(next(iter(run.refusals.values())))])


def error(gpu: str) -> tuple[float, str]:
    """How far times may be off on a GPU: a share (P90 of step times against silicon; 0: not known) and words for it."""
    median, p90 = catalog.step_time_error(gpu)
    if not isfinite(p90):
        return 0.0, t("narration.error_unknown", gpu=gpu)
    return p90, t("narration.error", gpu=gpu, median=percent(median), p90=percent(p90))


def figure(name: str) -> str:
    """How a sentence calls a figure; its label where it has no name of its own."""
    return t(f"narration.figure.{name}") if has(f"narration.figure.{name}") else text.figure(name)[0]
