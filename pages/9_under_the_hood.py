"""Under the hood: what is exact, fitted, assumed; errors against silicon; limits. From the committed validation results."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import streamlit as st

from sim import catalog
from sim.conformance import replay
from sim.evidence import evidence
from sim.scenario import Scenario
from ui import charts, controls, frame, state
from ui.text import percent, seconds, t

ROOT = Path(__file__).parent.parent
RECORDED = sorted((ROOT / "tests" / "data" / "oracle").glob("*.json.gz"))
TABS = ("how", "decisions", "silicon", "runs", "headlines", "status")


def results() -> dict[str, Any]:
    """The committed evidence, in the shape that the pictures take."""
    held = evidence()
    table, served = held["steps"]["results"], [r for r in held["served"]["results"] if r["our_tpot"] is not None]
    groups = [g for g in table["groups"] if g["phase"] == "all"]
    points = table["points"][:: max(len(table["points"]) // 1200, 1)]
    by_run: dict[str, Any] = {
        name: {"curves": {m: c for m, c in curves.items() if m in ("ttft", "e2e")}, "metrics": []}
        for name, curves in held["curves"]["results"].items()
    }
    for c in held["runs"]["results"]:
        row = {"name": f"{c['metric'].upper()} {c['statistic']}", "real": c["real"], "simulated": c["simulated"]}
        by_run[c["run"]]["metrics"].append(row)
    return {
        "date": min(part["date"] for part in held.values()),
        "steps": {
            **groups[-1], "systems": {g["system"]: g for g in groups[:-1]}, "held_out": catalog.calibration()["held_out"],
            "sample": {"measured_ms": [q[3] for q in points], "predicted_ms": [q[4] for q in points]},
        },
        "runs": by_run,
        "served": {"rows": len(served)} | {
            f"{name}_median": float(np.median([abs(r[f"our_{name}"] / r[name] - 1.0) for r in served])) for name in ("tpot", "ttft")
        },
        "headlines": held["headlines"]["results"],
        "decisions": held["conformance"]["results"],
    }


@st.cache_resource(max_entries=1, show_spinner=False)
def compared() -> list[Any]:
    """Every recorded run of vLLM's scheduler through the engine of this app, here and now."""
    return [replay(path) for path in RECORDED]


def table(columns: dict[str, list[Any]]) -> None:
    st.dataframe(columns, hide_index=True, width="stretch")


def how(known: dict[str, Any]) -> None:
    steps, found, cases = known["steps"], known["headlines"], known["decisions"]
    off = [abs(m["simulated"] / m["real"] - 1) for run in known["runs"].values() for m in run["metrics"]]
    told = {
        "decisions": dict(equal=sum(not c["difference"] for c in cases), cases=len(cases), steps=sum(c["steps"] for c in cases)),
        "steps": dict(median=steps["median"], p90=steps["p90"], rows=steps["rows"], systems=len(steps["systems"])),
        "servers": dict(worst=max(off), runs=len(known["runs"]), figures=len(off)),
        "figures": dict(holds=sum(h["verdict"] == "holds" for h in found), total=len(found)),
    }
    frame.plain_tiles([
        (t(f"under_the_hood.tile_{name}"), t(f"under_the_hood.tile_{name}_is", **of), t(f"under_the_hood.tile_{name}_tip", **of))
        for name, of in told.items()
    ])
    left, right = frame.columns(2)
    with left:
        scatter(steps)
    with right:
        name, run = next(iter(known["runs"].items()))
        server(name, "e2e", run["curves"]["e2e"])
    for place, status in zip(frame.columns(3), ("exact", "fitted", "assumed"), strict=True):
        place.markdown(f"**{t(f'under_the_hood.{status}')}.** " + t(f"under_the_hood.{status}_text", cases=len(cases)))


def decisions(known: dict[str, Any]) -> None:
    cases, word = known["decisions"], "recorded"
    if st.session_state.get("hood_compare"):
        with st.spinner(t("under_the_hood.comparing")):
            cases, word = [asdict(case) for case in compared()], "now"
    equal = [c for c in cases if not c["difference"]]
    said = f"equal_{word}" if len(equal) == len(cases) else "not_all_equal"
    frame.note(t(f"under_the_hood.{said}", equal=len(equal), cases=len(cases), steps=sum(c["steps"] for c in cases)))
    if RECORDED and word == "recorded":  # some seconds of work: only when asked
        st.button(t("under_the_hood.compare", n=len(RECORDED)), icon=":material/fact_check:", key="hood_ask",
                  on_click=lambda: st.session_state.update(hood_compare=True))
    table({
        t("under_the_hood.col_case"): [c["name"] for c in cases],
        t("under_the_hood.col_steps"): [c["steps"] for c in cases],
        t("under_the_hood.col_values"): [c["values"] for c in cases],
        t("under_the_hood.col_equal"): [c["difference"] or t("under_the_hood.yes") for c in cases],
    })


def silicon(known: dict[str, Any]) -> None:
    steps = known["steps"]
    by = steps["systems"]  # name -> {median, p90, rows}
    worst = max(by, key=lambda name: by[name]["median"])
    told = dict(median=steps["median"], p90=steps["p90"], rows=steps["rows"], systems=len(by), worst=worst, worst_median=by[worst]["median"])
    frame.note(t("under_the_hood.reveal", **told))
    left, right = frame.columns(2)
    with left:
        scatter(steps)
    with right:
        error = (np.array(steps["sample"]["predicted_ms"]) / np.array(steps["sample"]["measured_ms"]) - 1) * 100
        edges = np.linspace(-40, 40, 41)
        share = np.histogram(np.clip(error, -40, 40), edges)[0] / len(error)
        charts.curve(t("under_the_hood.chart_histogram"), [charts.Line(edges, np.append(share, 0), "prefill", fill=True, steps=True)],
                     x_start=-40, x_end=40, percent=True, x_title=t("under_the_hood.axis_error"),
                     alt=t("under_the_hood.alt_histogram", median=steps["median"], p90=steps["p90"]), key="hood_hist")
    left, right = frame.columns(2)
    with left:
        charts.bars(t("under_the_hood.chart_gpus"), list(by), [charts.Part(t("under_the_hood.median"), "prefill", [v["median"] for v in by.values()]),
                    charts.Part(t("under_the_hood.p90"), "idle", [v["p90"] - v["median"] for v in by.values()])], percent=True,
                    alt=t("under_the_hood.alt_gpus", worst=worst, worst_median=by[worst]["median"]), key="hood_gpus")
    with right:
        table({t("under_the_hood.knob_gpu"): list(by), t("under_the_hood.median"): [percent(v["median"]) for v in by.values()],
               t("under_the_hood.p90"): [percent(v["p90"]) for v in by.values()]})
    st.markdown(t("under_the_hood.held_out"))
    out = steps["held_out"]
    table({t("under_the_hood.knob_model"): list(out), t("under_the_hood.rows"): [v["rows"] for v in out.values()],
           t("under_the_hood.median"): [percent(v["median"]) for v in out.values()], t("under_the_hood.p90"): [percent(v["p90"]) for v in out.values()]})


def scatter(steps: dict[str, Any]) -> None:
    measured = steps["sample"]["measured_ms"]
    charts.diagonal(t("under_the_hood.chart_scatter"), measured, steps["sample"]["predicted_ms"], x_title=t("under_the_hood.axis_measured"),
                    alt=t("under_the_hood.alt_scatter", n=len(measured), median=steps["median"]), key="hood_scatter")


def server(name: str, metric: str, curve: dict[str, list[float]]) -> None:
    """Share of a real server's requests done within a time, and of ours with the same engine arguments."""
    real, ours = np.sort(curve["real"]), np.sort(curve["simulated"])
    charts.curve(
        t("under_the_hood.chart_run", metric=metric.upper()),
        [charts.Line(real, np.linspace(0, 1, len(real)), "idle", t("under_the_hood.real"), dotted=True),
         charts.Line(ours, np.linspace(0, 1, len(ours)), "decode", t("under_the_hood.simulated"))],
        x_title="s", percent=True, y_end=1.0, key=f"hood_{name}_{metric}",
        alt=t("under_the_hood.alt_run", metric=metric.upper(), real=seconds(float(np.median(real))), simulated=seconds(float(np.median(ours)))),
    )


def runs(known: dict[str, Any]) -> None:
    found = known["runs"]
    st.caption(t("under_the_hood.runs_lead"))
    for name, run in found.items():  # name -> {"curves": {metric: {"real", "simulated"}}, "metrics": [{name, real, simulated}]}
        st.markdown(f"**{name}**")
        for place, (metric, curve) in zip(frame.columns(2), run["curves"].items(), strict=True):
            with place:
                server(name, metric, curve)
        rows = run["metrics"]
        table({t("under_the_hood.col_metric"): [r["name"] for r in rows], t("under_the_hood.col_real"): [seconds(r["real"]) for r in rows],
               t("under_the_hood.col_sim"): [seconds(r["simulated"]) for r in rows],
               t("under_the_hood.col_off"): [f"{r['simulated'] / r['real'] - 1:+.1%}" if r["real"] else "–" for r in rows]})
    served = known["served"]
    st.markdown(t("under_the_hood.served", tpot=served["tpot_median"], ttft=served["ttft_median"], rows=served["rows"]))


def headlines(known: dict[str, Any]) -> None:
    found = known["headlines"]
    frame.note(t("under_the_hood.headlines_lead", holds=sum(h["verdict"] == "holds" for h in found), total=len(found)))
    table({t("under_the_hood.col_id"): [h["id"] for h in found], t("under_the_hood.col_figure"): [h["title"] for h in found],
           t("under_the_hood.col_published"): [str(h.get("published", "")) for h in found],
           t("under_the_hood.col_result"): [str(h.get("ours", "")) for h in found],
           t("under_the_hood.col_verdict"): [t(f"under_the_hood.verdict_{h['verdict']}") for h in found],
           t("under_the_hood.col_note"): [h.get("note", "") for h in found]})


def status() -> None:
    for one in ("today", "history", "what if"):
        st.markdown(f"{frame.badge(one)} {t('under_the_hood.status_' + one.replace(' ', '') + '_text')}")
    st.subheader(t("under_the_hood.lesson_differs"), anchor=False)
    topics = ("swap", "victim", "metric", "tp")
    st.table({t("under_the_hood.col_lesson"): [t(f"under_the_hood.differs_{x}") for x in topics],
              t("under_the_hood.col_now"): [t(f"under_the_hood.differs_{x}_now") for x in topics]})
    st.subheader(t("under_the_hood.limits"), anchor=False)
    st.markdown("\n".join(f"- {t(f'under_the_hood.limit_{i}')}" for i in range(1, 5)))


frame.page("hood")
state.load(Scenario(), extra={"part": TABS[0]})
state.notices()
frame.lead(t("under_the_hood.lead"))
part = controls.extra_choice("part", TABS, words=lambda x: t(f"under_the_hood.tab_{x}"))
if part == "status":
    status()
else:
    known = results()
    {"how": how, "decisions": decisions, "silicon": silicon, "runs": runs, "headlines": headlines}[part](known)
    st.caption(t("under_the_hood.dated", date=known["date"]))
st.markdown(f":material/push_pin: **{t('lesson.takeaway')}** {t('under_the_hood.takeaway')}")
state.publish()
