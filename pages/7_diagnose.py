"""From symptoms to the right knob: paste what you have, meet incidents, take the checklist and the card along."""

import html
import json
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import streamlit as st

from sim import advice as desk
from sim.results import Run
from sim.scenario import Scenario, SimError
from sim.sentences import Blanks, Note
from sim.vllm import export
from sim.vllm.clean import scrub
from sim.vllm.paste import Report, diagnose
from ui import charts, controls, frame, incidents, narration, series, state, terms, text, traffic
from ui.text import has, percent, seconds, t

DEFAULT = Scenario(duration_s=30.0, max_num_seqs=64)
PARTS = ("incidents", "paste", "checklist", "card")
END = "end"  # the case after the last
UNANSWERED = {"cause": "", "act": ""}
SHOWN_TO = "shown"  # the cause of a visitor who named none and was told
SECONDS = ("ttft", "itl", "queue", "tpot", "e2e")
SHOWN = (
    "running",
    "waiting",
    "waiting_deferred",
    "swapped",
    "kv_usage",
    "preemptions_total",
    "prefix_hit_rate",
    "gen_tok_s",
    "prompt_tok_s",
    "ttft_mean_s",
    "queue_mean_s",
    "itl_mean_s",
)
CSS = """<style>
.dd-verdict{border:1px solid var(--if-line);border-left:4px solid var(--if-accent);border-radius:6px;padding:.7rem 1rem .8rem}
.dd-verdict h3{font-size:1.25rem;margin:0 0 .1rem;padding:0;font-weight:650}.dd-verdict code{font-size:.8rem;color:var(--if-soft)}
.dd-verdict dl{display:grid;grid-template-columns:max-content 1fr;gap:.35rem .9rem;margin:.5rem 0 0;padding:0}
.dd-verdict dt,.dd-verdict dd{margin:0;padding:0}.dd-verdict dt{color:var(--if-soft);font-weight:400}.dd-verdict dd{line-height:1.5}.dd-verdict dd.do{font-weight:600}
.dd-sure{font-size:.8rem;border:1px solid var(--if-line);border-radius:99px;padding:.05rem .55rem;margin-left:.5rem;color:var(--if-soft);white-space:nowrap}
.dd-small{font-size:.875rem;line-height:1.5}.dd-small b{display:block;color:var(--if-soft);font-weight:600;margin-bottom:.1rem}
.dd-small ul{margin:0 0 .6rem;padding-left:1.1rem}.dd-small li{margin:0;font-size:inherit;overflow-wrap:anywhere}
.dd-figs{border-collapse:collapse;font-size:.84rem}.dd-figs td,.dd-figs th{border-bottom:1px solid var(--if-line);padding:.18rem .9rem .18rem 0;text-align:left;vertical-align:top}
.dd-figs td{overflow-wrap:anywhere}.dd-figs code{font-size:.8rem;background:none;padding:0;color:inherit;white-space:nowrap}
.dd-table{width:100%;border-collapse:collapse;font-size:.84rem;line-height:1.45}.dd-table th{text-align:left;color:var(--if-soft);font-weight:600}
.dd-table td,.dd-table th{border-bottom:1px solid var(--if-line);padding:.4rem .6rem .4rem 0;vertical-align:top}
.dd-table code{font-size:.8rem;overflow-wrap:anywhere;background:none;padding:0;color:inherit}
.dd-table td:first-child code{font-weight:600}.dd-table small{color:var(--if-soft);overflow-wrap:anywhere}.dd-table .q code{font-size:.78rem}
.dd-table th:nth-child(1){width:27%}.dd-table th:nth-child(2){width:7.5rem}.dd-table th:nth-child(4){width:30%}
.dd-seen{margin:0;padding-left:1.6rem}.dd-seen li{font-size:1rem;line-height:1.6}.dd-seen small{color:var(--if-soft)}
.dd-card{border:2px solid var(--if-accent);border-radius:8px;padding:1.1rem 1.4rem 1rem;break-inside:avoid}
.dd-card h3{margin:0 0 .6rem;padding:0;font-size:1.2rem}.dd-card p{margin:.45rem 0;line-height:1.5}.dd-card p b{display:block}
.dd-card .new{border-left:4px solid var(--if-bad);padding-left:.7rem}.dd-card i{font-style:normal;font-size:.8rem;color:var(--if-bad)}
.dd-card small{color:var(--if-soft);line-height:1.5;display:block;margin-top:.8rem}
@media (max-width:640px){.stColumn:has([class*=st-key-cause_],[class*=st-key-act_]){order:-1}.dd-table thead{display:none}.dd-table tr{display:block;border-bottom:1px solid var(--if-line);padding:.5rem 0}
.dd-table td{display:block;border:0;padding:.12rem 0}.dd-table td:empty{display:none}.dd-table td[data-h]::before{content:attr(data-h) ": ";color:var(--if-soft)}
.dd-verdict dl{grid-template-columns:1fr}.dd-verdict dd{margin-bottom:.35rem}}
[class*=st-key-cause_] button p,[class*=st-key-act_] button p{white-space:normal}
@media print{.stSidebar,.stAppHeader,.st-key-part,.st-key-card_tools,.if-question{display:none!important}}
</style>"""

with frame.page("diagnose"):
    terms.explain("waiting", "running", "kv", "kv_pool", "preemption", "recompute", "swap", "ttft", "itl", "queue", "p99", "sweet_spot",
                  "max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization")
s = state.load(DEFAULT, extra={"part": "incidents", "case": "cap", "n": 1, "cause": "", "act": "", "sim": False})
st.html(CSS)


# --- paste ------------------------------------------------------------------------------------------------------------


def fill(what: str) -> None:
    """One of the examples into the box. The page of metrics is a run's own, with the lesson's disease."""
    if what == "metrics":
        run = state.run(DEFAULT.but(request_rate=40.0, prompt_tokens=300))
        st.session_state["paste"] = export.metrics_text(run, until=18.0)
    else:
        st.session_state["paste"] = {"log": incidents.SAMPLE_LOG, "serve": incidents.SAMPLE_SERVE, "": ""}[what]
    read()


def read() -> None:
    """What is in the box, read anew; a simulation of what was there before goes."""
    state.change(sim=False)


def paste() -> None:
    if "paste" not in st.session_state:
        st.session_state["paste"] = st.session_state.get("paste_kept", "")
    st.text_area(
        t("diagnose.paste_label"), key="paste", height=150, placeholder=t("diagnose.paste_placeholder"), on_change=read
    )
    st.session_state["paste_kept"] = st.session_state["paste"]
    with st.container(horizontal=True, vertical_alignment="center"):
        st.button(t("diagnose.paste_read"), type="primary", on_click=read, key="paste_read")
        if st.session_state["paste"]:
            st.button(t("diagnose.paste_clear"), on_click=fill, args=("",), key="paste_clear")
        else:
            st.markdown(t("diagnose.sample"), width="content")
            for what in ("metrics", "log", "serve"):
                st.button(
                    t(f"diagnose.sample_{what}"), on_click=fill, args=(what,), key=f"sample_{what}", type="tertiary"
                )
    given = st.session_state["paste"]
    if not given:
        st.caption(t("diagnose.paste_private"))
        return
    report = diagnose(given)
    if report.parse is None and not report.errors:
        st.info(
            t(f"diagnose.nothing_{report.what}")
            if has(f"diagnose.nothing_{report.what}")
            else t("diagnose.nothing_other")
        )
        return
    for advice in report.advice[:1]:
        verdict(advice)
    if not report.advice:
        st.info(t("diagnose.no_diagnosis"))
    simulation(report)
    show(report)


def named(code: str) -> str:
    """A diagnosis in words."""
    return capital(t(f"advice.name_{code.lower()}"))


def capital(words: str) -> str:
    """A sentence's beginning; names of settings stay as vLLM writes them."""
    return words if words.startswith(("max_num", "--")) else words[:1].upper() + words[1:]


def say(key: str, advice: desk.Advice) -> str:
    """A sentence of an Advice in the visitor's language; what is unknown is a question mark."""
    return capital(t(f"advice.{key}").format_map(Blanks(advice.params)))


def verdict(advice: desk.Advice) -> None:
    """The diagnosis: what, why, what to do."""
    e = html.escape
    st.html(
        f"<div class='dd-verdict' role='status' data-code='{advice.code}'><h3>{e(named(advice.code))}"
        f"<span class='dd-sure'>{e(t(f'diagnose.confidence_{advice.confidence}'))}</span></h3><code title='{e(t('diagnose.code_help'), quote=True)}'>{e(t('diagnose.code'))} {advice.code}</code>"
        f"<dl><dt>{e(t('diagnose.why'))}</dt><dd>{e(say(advice.why_key, advice))}</dd>"
        f"<dt>{e(t('diagnose.action'))}</dt><dd class='do'>{e(say(advice.action_key, advice))}</dd></dl></div>"
    )


def small(title: str, entries: list[str]) -> str:
    """A short list as HTML; "" if there is nothing in it."""
    if not entries:
        return ""
    shown = [html.escape(e) for e in entries[:8]] + (["…"] if len(entries) > 8 else [])
    return f"<b>{html.escape(title)}</b><ul>{''.join(f'<li>{e}</li>' for e in shown)}</ul>"


def noted(notes: list[Note]) -> list[str]:
    """What the readers noted, in the visitor's language."""
    return [t(f"note.{n.code}").format_map(Blanks(n.params)) for n in notes]


def figure(name: str, value: object) -> str:
    """A figure that was read, as the table shows it."""
    if value is None:
        return "?"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    if name in ("kv_usage", "prefix_hit_rate", "cpu_kv_usage"):
        return percent(value)
    return seconds(value) if name.endswith("_s") and not name.endswith("tok_s") else f"{value:,.10g}"


def show(report: Report) -> None:
    """What was recognised, what else it could be, what to measure, what could not be known."""
    parse = scrub(report.parse or {})
    engines = parse.get("engines") or ({"0": parse["last"]} if parse.get("last") else {})
    left, middle, right = frame.columns(3)
    with left:
        kind = f"{t(f'diagnose.kind_{report.kind}')}: {report.what.rsplit(' ', 1)[-1]}" + (
            f" · {report.format}" if report.format else ""
        )
        lines = [kind, *([str(report.image)] if report.image else [])]
        st.html(f"<div class='dd-small'>{small(t('diagnose.recognised'), lines)}</div>")
        if engines:
            names = [n for n in SHOWN if any(n in e for e in engines.values())]
            head = (
                "".join(f"<th>{html.escape(str(who))[:24]}</th>" for who in list(engines)[:6])
                if len(engines) > 1
                else ""
            )
            body = "".join(
                f"<tr><td><code>{n}</code></td>"
                + "".join(f"<td>{html.escape(figure(n, e.get(n)))}</td>" for e in list(engines.values())[:6])
                + "</tr>"
                for n in names
            )
            st.html(
                f"<table class='dd-figs'>{f'<thead><tr><th></th>{head}</tr></thead>' if head else ''}<tbody>{body}</tbody></table>"
            )
        else:
            pairs = [(k, v) for k, v in parse.items() if not isinstance(v, dict) or k.endswith("config")][:16]
            body = "".join(
                f"<tr><td><code>{html.escape(k)}</code></td><td>{html.escape(json.dumps(v) if isinstance(v, (dict, list)) else figure(k, v))}</td></tr>"
                for k, v in pairs
            )
            st.html(f"<table class='dd-figs'><tbody>{body}</tbody></table>")
    with middle:
        first = report.advice[0] if report.advice else None
        also = [f"{named(a.code)}: {say(a.action_key, a)}" for a in report.advice[1:]]
        st.html(
            "<div class='dd-small'>"
            + small(t("diagnose.also"), also)
            + small(t("diagnose.else_title"), [named(c) for c in first.alternatives] if first else [])
            + small(t("diagnose.measure_title"), [t(f"advice.measure_{m}") for m in first.measure] if first else [])
            + small(t("diagnose.errors_title"), noted(report.errors))
            + "</div>"
        )
    with right:
        hidden = [t("diagnose.secrets", names=", ".join(report.redact))] if report.redact else []
        st.html(
            "<div class='dd-small'>"
            + small(t("diagnose.unknown_title"), noted(report.unknown))
            + small(t("diagnose.warnings_title"), noted(report.warnings + report.notes) + hidden)
            + small(t("diagnose.ignored_title"), noted(report.ignored))
            + "</div>"
        )


def simulation(report: Report) -> None:
    """The pasted server as a scenario, before and after the advised change."""
    if report.kind == "unknown" or (report.kind == "log" and report.parse and report.parse.get("error")):
        return
    figures = report.parse if report.kind in ("metrics", "log") else None
    try:
        base = DEFAULT.but(gpu=s.b.gpu)
        scenario, notes = export.scenario_of(figures, report.settings, base, report.image)
        first = report.advice[0] if report.advice else None
        if first is None:  # a command line alone: what the simulator itself would say of it
            if isinstance(run := state.attempt(scenario), SimError):
                raise run.with_traceback(None)
            first = incidents.verdict(run)
        change = desk.changes(first, scenario)
        ready = True
    except SimError as error:
        st.warning(state.message(error))
        ready, notes, change, scenario, first = False, [], {}, DEFAULT, None
    with st.container(horizontal=True, vertical_alignment="bottom"):
        controls.pick("gpu", traffic.gpus(), label=t("diagnose.gpu_pick"))
        if ready:
            st.button(
                t("diagnose.run"),
                type="primary",
                icon=":material/play_arrow:",
                key="simulate",
                help=t("diagnose.run_help"),
                on_click=state.replace,
                args=(scenario.but(**change), scenario),
                kwargs={"sim": True},
            )
    if not (ready and s.extra["sim"]):
        return
    st.subheader(t("diagnose.sim_title"), anchor=False)
    if first is not None and not report.advice:
        verdict(first)
    if not change:
        st.caption(t("diagnose.run_none"))
    b, a = state.runs(s)
    if b is not a:
        frame.note(narration.changed(b.summary(), a.summary(), b.scenario, a.scenario))
    before_after(b, a, first)
    if notes:
        st.caption(f"{t('diagnose.assumed')}: " + "; ".join(noted(notes)))
    command = export.command_line(s.b)
    with st.expander(t("diagnose.sim_command")):
        st.code(str(command), language="bash", wrap_lines=True)
        if command.not_expressible:
            st.caption(t("diagnose.sim_lost", names=", ".join(f"{k} = {v}" for k, v in command.not_expressible)))
        st.download_button(
            t("diagnose.sim_metrics"), lambda: export.metrics_text(b), "metrics.txt", "text/plain", key="metrics_file"
        )


def before_after(b: Run, a: Run, advice: desk.Advice) -> None:
    """Figures and pictures of B, with A dotted: those first by which this diagnosis is decided."""
    frame.tiles([(n, getattr(b.summary(), n), getattr(a.summary(), n), *kind) for n, kind in figures(advice).items()], was=True)
    end, first = max(b.duration_s, a.duration_s), incidents.DECIDE.get(advice.code, ("waiting", "kv"))
    engines = b.scenario.data_parallel_size > 1 and advice.code == "DP_IMBALANCE"
    if engines:
        most = 1.1 * max(*by_engine(a), *by_engine(b), 1.0)
        for place, what, run in zip(frame.columns(2), ("before", "after"), (a, b), strict=True):
            with place:
                draw_engines(t(f"diagnose.engines_{what}"), run, what, most)
    rest = [n for n in ("waiting", "running", "kv", "ttft", "gpu", "preempted") if n not in first]
    for places, names in ((frame.columns(2), () if engines else first), (frame.columns(3) * 2, [*(first if engines else ()), *rest])):
        for place, name in zip(places, names, strict=False):
            with place:
                of, colour, options = PICTURES[name]
                charts.timeline(t(f"diagnose.title_{name}"), charts.both(of, b, a, colour), x_end=end, height=height(), key=f"after_{name}", **options)


def figures(advice: desk.Advice) -> dict[str, tuple[str, int]]:
    """The five figures that tell what a change did, the promised one first: unit, and whether more (+1) or less (-1) is better."""
    known = {"qps": ("req/s", 1), "ttft_p99": ("s", -1), "itl_p99": ("s", -1), "preemptions": ("", -1), "kv_max": ("%", 0)}
    name = promised(advice)
    return dict(list(({name: (unit(name), known.get(name, ("", -1))[1] or -1)} | known).items())[:5])


def by_engine(run: Run) -> list[float]:
    """Mean queue of each engine."""
    ticks, spent = run.ticks, run.ticks.waiting * run.ticks.duration
    return [float(spent[ticks.replica == r].sum()) / max(run.duration_s, 1e-9) for r in range(run.scenario.data_parallel_size)]


def draw_engines(title: str, run: Run, key: str, most: float | None = None) -> None:
    means = by_engine(run)
    charts.bars(
        title, [str(r) for r in range(len(means))], [charts.Part("", "idle" if key == "before" else "waiting", means)],
        y_end=most, height=height(), key=f"engines_{key}",
    )


def height() -> int:
    """Of a picture, px: two rows of them on a screen of 1280x720."""
    return 205 if frame.projector() else 175


def total(run: Run, of: Callable[[Run], tuple[Any, Any]], mean: bool = False) -> tuple[Any, Any]:
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


PICTURES: dict[str, tuple[Callable[[Run], tuple[Any, Any]], str, dict[str, Any]]] = {
    "waiting": (lambda r: total(r, series.waiting), "waiting", {}),
    "running": (lambda r: total(r, series.running), "decode", {}),
    "kv": (lambda r: total(r, series.kv, mean=True), "kv", {"percent": True}),
    "ttft": (series.latency, "prefill", {}),
    "ttft_p50": (lambda r: series.latency(r, share=0.5), "prefill", {}),
    "tpot": (lambda r: series.latency(r, "tpot"), "decode", {}),
    "gpu": (series.utilisation, "ink", {"percent": True}),
    "preempted": (series.preemptions, "preempted", {}),
}
"""Pictures of a run: its line, the colour, options. Titles: diagnose.title_<name>."""


# --- incidents --------------------------------------------------------------------------------------------------------


def cases() -> None:
    known = {i.key: i for i in incidents.INCIDENTS}
    order = list(known)
    if s.extra["case"] == END:
        farewell()
        return
    if s.extra["case"] not in known:
        s.extra["case"] = order[0]
    incident = known[str(s.extra["case"])]
    number = max(1, min(9999, int(s.extra["n"])))
    scenario = incidents.instance(incident, number)
    run = state.run(scenario)
    advice = incidents.verdict(run)
    cause, action = str(s.extra["cause"]), str(s.extra["act"])
    cause = cause if cause in (*incident.causes, SHOWN_TO) else ""
    action = action if cause and action in incident.actions else ""
    with st.container(horizontal=True, vertical_alignment="center", key="case_row"):
        st.session_state["w_case"] = incident.key
        st.selectbox(
            t("diagnose.case_label"),
            order,
            format_func=lambda k: f"{t('diagnose.case_label')} {order.index(k) + 1} / {len(order)}",
            key="w_case",
            label_visibility="collapsed",
            width=200,
            filter_mode=None,
            on_change=lambda: state.change(case=st.session_state["w_case"], n=1, **UNANSWERED),
        )
        if action:
            onwards(incident, incidents.RIGHT[advice.code] if action != incidents.RIGHT[advice.code] else "")
        st.button(
            t("diagnose.another"),
            icon=":material/casino:",
            key="another",
            type="tertiary" if action else "secondary",
            on_click=state.change,
            kwargs={"n": number + 1, **UNANSWERED},
        )
        if cause:
            st.button(t("diagnose.start_over"), type="tertiary", key="over", on_click=state.change, kwargs=UNANSWERED)
    if action:
        after = outcome(scenario, run, advice, action)
        before_after(after, run, advice)
        history(incident)
        return
    known_facts(incident, scenario, run)
    left, right = st.columns([2, 1], gap="medium")
    with left:
        dashboard(run)
    with right:
        if not cause:
            frame.question(t("diagnose.cause_question"))
            for code in incident.causes:
                answer(f"cause_{code}", named(code), cause=code)
            reveal(cause=SHOWN_TO)
            return
        if cause != SHOWN_TO:
            right_one = "right_cause" if cause == advice.code else "wrong_cause"
            st.markdown(f"{t('diagnose.your_cause', cause=named(cause))}  \n**{t(f'diagnose.{right_one}')}**")
        if cause != advice.code:
            st.markdown(t("diagnose.truth", cause=f"**{named(advice.code)}**"))
        frame.question(t("diagnose.action_question"))
        for name in incident.actions:
            answer(f"act_{name}", capital(t(f"diagnose.act.{name}")), act=name)
        reveal(act=incidents.RIGHT[advice.code])


def answer(key: str, words: str, **chosen: str) -> None:
    st.button(words, key=key, width="stretch", on_click=state.change, kwargs=chosen)


def reveal(**answer: str) -> None:
    """Whoever only presses PageDown, as a clicker in class does, is told and goes on."""
    st.button(t("lesson.reveal"), key="reveal", shortcut="PageDown", type="tertiary", on_click=state.change, kwargs=answer)


def known_facts(incident: incidents.Incident, scenario: Scenario, run: Run) -> None:
    """What whoever is on call knows without a dashboard."""
    facts = [
        t(
            "diagnose.settings_known",
            seqs=f"{scenario.max_num_seqs:,}",
            tokens=f"{scenario.max_num_batched_tokens:,}",
            replicas=scenario.data_parallel_size,
            gpu=scenario.gpu,
        )
    ]
    summary = run.summary()
    if summary.refused:
        facts.append(t("diagnose.refused_known", n=summary.refused, total=len(run.requests.prompt)))
    if scenario.arrival == "closed":
        facts.append(t("diagnose.client_known"))
    if scenario.host == "v0":
        facts.append(t("diagnose.host_known"))
    facts.append(t("diagnose.itl_known", itl=seconds(summary.itl_p99)))
    st.caption(text.joined(facts))


def dashboard(run: Run) -> None:
    """Small pictures in two rows, as a monitor shows them: no title gives the disease away."""
    end, replicas, cap = run.duration_s, run.scenario.data_parallel_size, run.scenario.max_num_seqs
    lines = [
        charts.Line(*total(run, series.running), "decode", t("diagnose.running")),
        charts.Line(*total(run, series.waiting), "waiting", t("diagnose.waiting")),
    ]
    if replicas == 1 and cap < 2.5 * max(1, run.summary().running_max):
        lines.append(charts.Line((0.0, end), (cap, cap), "soft", f"max_num_seqs {cap:,}", dotted=True))
    upper = [
        partial(charts.timeline, t("diagnose.requests"), lines),
        partial(charts.timeline, t("diagnose.title_kv"), [charts.Line(*total(run, series.kv, mean=True), "kv", fill=True)], percent=True),
    ]
    lower = [
        partial(charts.timeline, t("diagnose.title_ttft"), [charts.Line(*series.latency(run), "prefill")]),
        partial(charts.timeline, t("diagnose.title_gpu"), [charts.Line(*series.utilisation(run), "ink")], percent=True),
        partial(charts.timeline, t("diagnose.title_preempted"), [charts.Line(*series.preemptions(run), "preempted", steps=True)],
                y_end=None if run.summary().preemptions else 10.0),
    ]
    if replicas > 1:
        upper.append(lambda x_end, height: draw_engines(t("diagnose.per_engine"), run, "now"))
    places = [*st.columns([4, 3, 3] if replicas > 1 else [3, 2], gap="small"), *st.columns(3, gap="small")]
    for place, picture in zip(places, upper + lower, strict=True):
        with place:
            picture(x_end=end, height=height())


def outcome(scenario: Scenario, run: Run, advice: desk.Advice, action: str) -> Run:
    """What it was, what the chosen action did and at what price. Returns the run after it."""
    best, change = incidents.RIGHT[advice.code], incidents.act(action, scenario, advice)
    after = state.attempt(scenario.but(**change))
    if isinstance(after, SimError):
        st.warning(state.message(after))
        after = run
    what = narration.settings(scenario.but(**change), scenario) if change else ""
    said = [f"**{t('diagnose.applied', what=what) if what else t('diagnose.applied_nothing')}**", effect(run, after, advice), price(run, after, advice)]
    if after is not run:
        now = incidents.verdict(after).code
        said.append(t("diagnose.now_same") if now == advice.code else t("diagnose.now", cause=named(now)))
    advised = run if action == best else state.attempt(scenario.but(**incidents.act(best, scenario, advice)))
    if isinstance(advised, Run) and advised is not run:
        said.append(t("diagnose.advised_gives", figure=promise(advised, advice)))
    with st.container(key="told"):
        st.markdown(t("diagnose.was", name=named(advice.code), why=say(advice.why_key, advice)) + "  \n" + text.joined(said))
    return after


def onwards(incident: incidents.Incident, better: str) -> None:
    """To the next patient, or the end; where there was a better action, to that."""
    order = [*(i.key for i in incidents.INCIDENTS), END]

    def follow() -> None:
        state.change(case=order[order.index(incident.key) + 1], n=1, **UNANSWERED)
        st.session_state["to_top"] = True

    if better:
        st.button(t("diagnose.try_right"), type="primary", key="right", on_click=state.change, kwargs={"act": better})
    st.button(
        t("diagnose.next_case" if incident.key != order[-2] else "diagnose.to_end"), type="secondary" if better else "primary",
        key="next", shortcut="PageDown", on_click=follow,
    )


def farewell() -> None:
    """After the last patient: what was seen, the card to carry away, and the way on."""
    frame.question(t("diagnose.end", n=len(incidents.INCIDENTS)))
    with st.container(horizontal=True, vertical_alignment="center"):
        if st.button(t("lesson.next_page"), type="primary", key="next", shortcut="PageDown"):
            st.switch_page(frame.PAGES["playground"])
        st.button(t("diagnose.begin_anew"), key="anew", on_click=state.change, kwargs={"case": incidents.INCIDENTS[0].key, "n": 1, **UNANSWERED})
        card_button()
    seen = "".join(
        f"<li>{html.escape(named(i.code))} <small>→ {html.escape(t(f'diagnose.act.{incidents.RIGHT[i.code]}'))}</small></li>"
        for i in incidents.INCIDENTS
    )
    for place, words in zip(frame.columns(2), (f"<ol class='dd-seen'>{seen}</ol>", card_html(text.language())), strict=True):
        with place:
            st.html(words)


def history(incident: incidents.Incident) -> None:
    """The story behind the incident, and where it can be read."""
    source = (
        t("diagnose.source_case", case=incident.case, source=incident.source)
        if incident.case
        else t("diagnose.source_lesson")
    )
    with st.container(border=True):
        st.markdown(
            f":material/history_edu: **{t('diagnose.real')}** {t(f'diagnose.case.{incident.key}')}  \n:small[{source}]"
        )


def promised(advice: desk.Advice) -> str:
    """The field of a Summary that the advice is about."""
    return advice.promise.lstrip("+") or "qps"


def unit(name: str) -> str:
    """Of a figure, as `ui.text.value` takes it."""
    return "s" if name.partition("_")[0] in SECONDS else "%" if name.startswith("kv") else "req/s" if name == "qps" else ""


def promise(run: Run, advice: desk.Advice) -> str:
    """What that figure is in a run, in words."""
    return text.value(getattr(run.summary(), promised(advice)), unit(promised(advice)))


def effect(before: Run, after: Run, advice: desk.Advice) -> str:
    """Whether the figure that the advice is about moved the right way."""
    name = promised(advice)
    a, b = (getattr(r.summary(), name) for r in (before, after))
    words = {"name": narration.figure(name), "before": promise(before, advice), "after": promise(after, advice)}
    if a != a or b != b or abs(a - b) <= 0.01 * max(abs(a), abs(b)):
        return t("diagnose.same", **words)
    better = (b > a) == advice.promise.startswith("+")
    return t("diagnose.helped" if better else "diagnose.hurt", **words)


def price(before: Run, after: Run, advice: desk.Advice) -> str:
    """What became worse of the figures shown, and how many GPUs it takes; "" if nothing did."""
    worse = []
    for name, (_, sense) in figures(advice).items():
        a, b = (getattr(r.summary(), name) for r in (before, after))
        was, now = text.value(a, unit(name)), text.value(b, unit(name))
        if name != promised(advice) and (b - a) * sense < -0.005 * abs(a) and was != now:
            worse.append(f"{narration.figure(name).strip()} {was} → {now}")
    if after.scenario.data_parallel_size > before.scenario.data_parallel_size:
        worse.append(t("diagnose.more_gpus", n=after.scenario.data_parallel_size / before.scenario.data_parallel_size))
    return t("diagnose.price", what=t("narration.comma").join(worse)) if worse else ""


# --- checklist and card -----------------------------------------------------------------------------------------------


def checklist() -> None:
    st.markdown(t("diagnose.check_intro"))
    with st.container(horizontal=True):
        st.download_button(
            t("diagnose.grafana"),
            lambda: json.dumps(export.grafana(), indent=1),
            "vllm-scheduler.json",
            "application/json",
            key="grafana",
        )
        st.download_button(t("diagnose.rules"), export.alert_rules, "vllm-alerts.yaml", "text/yaml", key="rules")
    st.caption(t("diagnose.dashboard_note"))
    heads = [t(f"diagnose.check_{k}") for k in ("metric", "type", "trap", "query")]
    body = ""
    for panel in export.PANELS:
        names = "<br>".join(f"<code>{html.escape(n)}</code>" for n in panel.metrics.split(", "))
        old = f"<br><small>{html.escape(t('diagnose.check_before'))}: {html.escape(panel.before)}</small>" if panel.before else ""
        rule = f"<br><small>{html.escape(t('diagnose.check_alert'))}: {panel.alert}</small>" if panel.alert else ""
        body += (
            f"<tr><td>{names}{old}</td><td>{panel.type}<br><small>{panel.counts}</small></td>"
            f"<td>{html.escape(t(f'diagnose.trap.{panel.key}'))}</td><td class='q'><code>{html.escape(panel.query)}</code>{rule}</td></tr>"
        )
    st.html(
        f"<table class='dd-table'><thead><tr>{''.join(f'<th>{html.escape(h)}</th>' for h in heads)}</tr></thead><tbody>{body}</tbody></table>"
    )
    with st.expander(t("diagnose.rules_title")):
        st.code(export.alert_rules(), language="yaml")


def card_html(language: str) -> str:
    """The card in one language."""
    words = {k: html.escape(v) for k, v in text.texts(language).items() if k.startswith("diagnose.card_")}
    lines = "".join(f"<p><b>{words[f'diagnose.card_{i}']}</b>{words[f'diagnose.card_{i}a']}</p>" for i in (1, 2, 3))
    fourth = f"<p class='new'><b>{words['diagnose.card_4']}</b>{words['diagnose.card_4a']}<br><i>{words['diagnose.card_new']}</i></p>"
    return f"<div class='dd-card' lang='{language}'><h3>{words['diagnose.card_title']}</h3>{lines}{fourth}<small>{words['diagnose.card_foot']}</small></div>"


def card_file() -> str:
    """Both cards as a page of their own, for the printer."""
    rules = CSS.removeprefix("<style>").removesuffix("</style>")
    return (
        f"<!doctype html><meta charset=utf-8><title>Inflight</title><style>:root{{{frame.LOOK['light']}}}body{{font:16px/1.5 {charts.FONT};max-width:46rem;"
        f"margin:2rem auto}}.dd-card{{margin-bottom:1.5rem}}{rules}</style>{card_html('zh')}{card_html('en')}"
    )


def card_button() -> None:
    st.download_button(t("diagnose.card_download"), card_file, "inflight-card.html", "text/html", key="card_file")


def card() -> None:
    with st.container(key="card_tools"):
        st.markdown(t("diagnose.card_intro"))
        card_button()
    order = ["zh", "en"] if text.language() == "zh" else ["en", "zh"]
    for column, language in zip(frame.columns(2), order, strict=True):
        with column:
            st.html(card_html(language))


frame.question(t("diagnose.question"))
with st.container(key="part"):
    part = controls.extra_choice("part", PARTS, words=lambda p: t(f"diagnose.part.{p}"), title=t("diagnose.question"))
state.notices()
{"paste": paste, "incidents": cases, "checklist": checklist, "card": card}.get(part, cases)()
state.publish()
