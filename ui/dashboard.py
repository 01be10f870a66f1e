"""Pictures of a run and its baseline side by side: the playground's six, and the monitor of page 7 before and after a change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import streamlit as st

from sim.results import Run
from ui import charts, frame, series
from ui.text import t

HEIGHT = 172  # px of a picture: the first four stand on a 720 px screen below what changed


@st.cache_data(max_entries=128, show_spinner=False)
def pictures(key: tuple[str, ...], _b: Run, _a: Run, kind: str, what: str, error: float) -> None:
    """Queue, GPU, P99, preemptions, KV pool and the parts of TTFT: of B, and of A where it is another run.

    Kept as drawn: the same two runs cost nothing the second time. `key` names the runs, the language and the look; kind:
    which GPU utilisation; what: whose P99; error: the share by which times may be off.
    """
    b, a = _b, _a
    end = max(b.duration_s, a.duration_s)
    summary, scenario = b.summary(), b.scenario
    first = series.first_preemption(b)
    events = [(first, t("playground.first_preemption"))] if first == first else []
    left, right = st.columns(2, gap="medium")
    with left:
        charts.timeline(
            t("playground.queue"), charts.both(series.waiting, b, a, "waiting", steps=True, fill=True), x_end=end, height=HEIGHT,
            alt=t("playground.queue_alt", mean=summary.waiting_mean, most=summary.waiting_max),
        )
    with right:
        charts.timeline(
            t(f"playground.gpu_{kind}"), charts.both(lambda r: series.utilisation(r, kind), b, a, "ink"), x_end=end, height=HEIGHT,
            percent=True, alt=t("playground.gpu_alt", mean=100 * getattr(summary, f"gpu_{kind}")),
        )
    left, right = st.columns(2, gap="medium")
    limit = {"ttft": [("SLO", scenario.slo_ttft_s)], "tpot": [("SLO", scenario.slo_tpot_s)]}.get(what, [])
    with left:
        charts.timeline(
            t(f"playground.p99_{what}"), charts.both(lambda r: series.latency(r, what), b, a, "prefill", error=error),
            x_end=end, height=HEIGHT, limits=limit, alt=t("playground.p99_alt", value=getattr(summary, f"{what}_p99")),
        )
    with right:
        charts.timeline(
            t("playground.preemptions"), charts.both(series.preemptions, b, a, "preempted", steps=True), x_end=end, height=HEIGHT,
            y_end=None if max(summary.preemptions, a.summary().preemptions) > 4 else 4.0, events=events, alt=t("playground.preemptions_alt", n=summary.preemptions),
        )
    left, right = st.columns(2, gap="medium")
    with left:
        charts.timeline(
            t("playground.kv"), charts.both(series.kv, b, a, "kv", fill=True), x_end=end, height=HEIGHT, percent=True, y_end=1.08,
            limits=[(t("playground.pool_full"), 1.0)], alt=t("playground.kv_alt", most=100 * summary.kv_max),
        )
    with right:
        runs = [("A", a), ("B", b)] if a is not b else [("B", b)]
        names = [f"{tail.upper()} {label}" if len(runs) > 1 else tail.upper() for tail in ("p50", "p99") for label, _ in runs]
        parts = [series.ttft_split(r, share) for share in (0.5, 0.99) for _, r in runs]
        charts.bars(
            t("playground.split"), names,
            [charts.Part(t("playground.split_queue"), "waiting", [p[0] for p in parts]),
             charts.Part(t("playground.split_prefill"), "prefill", [p[1] for p in parts])],
            height=HEIGHT, alt=t("playground.split_alt", queue=parts[-1][0], prefill=parts[-1][1]),
        )


# --- of several engines ------------------------------------------------------------------------------------------------


def over_engines(run: Run, of: Callable[[Run], tuple[Any, Any]], mean: bool = False) -> tuple[Any, Any]:
    """A gauge over all engines of a run: their sum, or mean. Of one engine it is the series itself."""
    x, y = of(run)
    replicas = run.scenario.data_parallel_size
    if replicas == 1:
        return x, y
    grid = np.linspace(0.0, run.duration_s, 240)
    summed = np.zeros(len(grid))
    for r in range(replicas):
        mine = run.ticks.replica == r
        at, value, end = run.ticks.start[mine], np.asarray(y)[mine], (run.ticks.start + run.ticks.duration)[mine]
        place = np.searchsorted(at, grid, side="right") - 1
        busy = (place >= 0) & (grid <= end[np.maximum(place, 0)]) if len(at) else np.zeros(len(grid), bool)
        summed[busy] += value[place[busy]]
    return grid, summed / replicas if mean else summed


def _queues(run: Run) -> list[float]:
    """Mean queue of each engine."""
    ticks, spent = run.ticks, run.ticks.waiting * run.ticks.duration
    return [float(spent[ticks.replica == r].sum()) / max(run.duration_s, 1e-9) for r in range(run.scenario.data_parallel_size)]


def _engines(key: str, run: Run, colour: str, most: float | None = None) -> None:
    means = _queues(run)
    charts.bars(t(f"diagnose.{key}"), [str(r) for r in range(len(means))], [charts.Part("", colour, means)], y_end=most, height=_height(), key=key)


# --- as page 7 shows them ----------------------------------------------------------------------------------------------


def _ms(line: tuple[Any, Any]) -> tuple[Any, Any]:
    return line[0], 1e3 * line[1]


def pauses(run: Run) -> tuple[Any, Any]:
    """The longest step, in s, in which somebody decoded: the pause between two tokens; in each window of `series`."""
    edges = series.windows(run)
    longest = np.zeros(len(edges))
    decoding = run.ticks.decode_seqs > 0
    ends = run.ticks.start[decoding] + run.ticks.duration[decoding]
    np.maximum.at(longest, np.minimum(np.searchsorted(edges, ends, side="right"), len(edges) - 1), run.ticks.duration[decoding])
    return (edges[:-1] + edges[1:]) / 2, longest[1:]


PICTURES: dict[str, tuple[Callable[[Run], tuple[Any, Any]], str, str]] = {
    "waiting": (lambda r: over_engines(r, series.waiting), "waiting", "count"),
    "running": (lambda r: over_engines(r, series.running), "decode", "count"),
    "kv": (lambda r: over_engines(r, series.kv, mean=True), "kv", "%"),
    "ttft": (series.latency, "prefill", "s"),
    "ttft_p50": (lambda r: series.latency(r, share=0.5), "prefill", "s"),
    "tpot": (lambda r: _ms(series.latency(r, "tpot")), "decode", "ms"),
    "itl": (lambda r: _ms(pauses(r)), "decode", "ms"),
    "gpu": (series.utilisation, "ink", "%"),
    "preempted": (series.preemptions, "preempted", "count"),
}
"""Pictures of a run: its line, the colour, what is measured. Titles: diagnose.title_<name>."""


def monitor(run: Run) -> None:
    """Small pictures in two rows, as a monitor shows them: no title gives the disease away."""
    end, several, cap = run.duration_s, run.scenario.data_parallel_size > 1, run.scenario.max_num_seqs
    requests = [charts.Line(*PICTURES[name][0](run), PICTURES[name][1], t(f"diagnose.{name}")) for name in ("running", "waiting")]
    if not several and cap < 2.5 * max(1, run.summary().running_max):
        requests.append(charts.Line((0.0, end), (cap, cap), "soft", f"max_num_seqs {cap:,}", dotted=True))
    upper = st.columns([4, 3, 3] if several else [3, 2], gap="small")
    with upper[0]:
        charts.timeline(t("diagnose.requests"), requests, x_end=end, height=_height())
    if several:
        with upper[2]:
            _engines("per_engine", run, "waiting")
    for place, name in zip([upper[1], *st.columns(3, gap="small")], ("kv", "ttft", "gpu", "preempted"), strict=True):
        with place:
            _picture(name, run, run, end)


def before_after(b: Run, a: Run, decisive: tuple[str, str], engines: bool) -> None:
    """B, and A dotted: six pictures, first the two by which it is decided; what each of several engines holds stands before them."""
    end, names = max(b.duration_s, a.duration_s), list(dict.fromkeys([*decisive, "waiting", "running", "kv", "ttft", "gpu", "preempted"]))
    first, rest = st.columns(2, gap="medium"), st.columns(4, gap="small")
    if engines:
        most = 1.1 * max(*_queues(a), *_queues(b), 1.0)
        for place, key, run, colour in zip(first, ("engines_before", "engines_after"), (a, b), ("idle", "waiting"), strict=True):
            with place:
                _engines(key, run, colour, most)
    for place, name in zip(rest if engines else [*first, *rest], names, strict=False):
        with place:
            _picture(name, b, a, end)


def _picture(name: str, b: Run, a: Run, end: float) -> None:
    """One of PICTURES, of B and, where it is another run, of A."""
    of, colour, what = PICTURES[name]
    lines = charts.both(of, b, a, colour, fill=name == "kv", steps=name == "preempted")
    few = what == "count" and max((float(np.max(line.y)) for line in lines if len(line.y)), default=0.0) < 4
    charts.timeline(
        t(f"diagnose.title_{name}"), lines, x_end=end, y_end=4.0 if few else None, percent=what == "%", height=_height(),
        key=f"picture_{name}",
    )


def _height() -> int:
    """Of a picture, px: two rows of them on a screen of 1280x720."""
    return 205 if frame.projector() else 175
