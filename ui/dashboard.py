"""The six pictures of a run beside its baseline, as the playground shows them."""

from __future__ import annotations

import streamlit as st

from sim.results import Run
from ui import charts, series
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
    limit = {"ttft": [("SLO (s)", scenario.slo_ttft_s)], "tpot": [("SLO (s)", scenario.slo_tpot_s)]}.get(what, [])
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
