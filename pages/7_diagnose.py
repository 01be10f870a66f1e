"""From symptoms to the right knob: paste what you have, meet incidents, take the checklist and the card along."""

import html
import json

import streamlit as st

from sim import advice as desk
from sim.results import Run
from sim.scenario import Scenario, SimError
from sim.sentences import Blanks, Note
from sim.vllm import export
from sim.vllm.clean import scrub
from sim.vllm.paste import Report, diagnose
from ui import charts, controls, dashboard, frame, incidents, narration, state, terms, text, traffic
from ui.incidents import named, say
from ui.text import has, percent, seconds, t

DEFAULT = Scenario(duration_s=30.0, max_num_seqs=64)
PARTS = ("incidents", "paste", "checklist", "card")
END = "end"  # the case after the last
UNANSWERED = {"cause": "", "act": ""}
SHOWN_TO = "shown"  # the cause of a visitor who named none and was told
SHOWN = ("running", "waiting", "waiting_deferred", "swapped", "kv_usage", "preemptions_total", "prefix_hit_rate", "gen_tok_s",
         "prompt_tok_s", "ttft_mean_s", "queue_mean_s", "itl_mean_s")
"""Of each engine in a paste, in this order."""
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
.dd-seen{margin:0;padding-left:1.6rem}.dd-seen li{font-size:.92rem;line-height:1.45}.dd-large li,.dd-large p{font-size:.76rem;line-height:1.4;margin:.2rem 0}.dd-seen small{color:var(--if-soft)}
.dd-card{border:2px solid var(--if-accent);border-radius:8px;padding:.8rem 1.2rem;break-inside:avoid}
.dd-card h3{margin:0 0 .6rem;padding:0;font-size:1.2rem}.dd-card p{margin:.4rem 0;line-height:1.45}.dd-card p b{display:block}
.dd-card .new{border-left:4px solid var(--if-bad);padding-left:.7rem}.dd-card i{font-style:normal;font-size:.8rem;color:var(--if-bad)}
.dd-card small{color:var(--if-soft);line-height:1.5;display:block;margin-top:.8rem}
@media (max-width:640px){.stColumn:has([class*=st-key-cause_],[class*=st-key-act_]){order:-1}.dd-table thead{display:none}.dd-table tr{display:block;border-bottom:1px solid var(--if-line);padding:.5rem 0}
.dd-table td{display:block;border:0;padding:.12rem 0}.dd-table td:empty{display:none}
.dd-verdict dl{grid-template-columns:1fr}.dd-verdict dd{margin-bottom:.35rem}}
.st-key-part .if-question{padding-right:4rem}[class*=st-key-cause_] button p,[class*=st-key-act_] button p{white-space:normal}
@media print{.stSidebar,.stAppHeader,.st-key-part,.st-key-card_tools,.if-question{display:none!important}}
</style>"""

with frame.page("diagnose"):
    terms.explain("waiting", "running", "kv", "kv_pool", "preemption", "recompute", "swap", "ttft", "itl", "queue", "p99", "sweet_spot",
                  "max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization",
                  "tpot")
s = state.load(DEFAULT, extra={"part": "incidents", "case": "cap", "n": 1, "cause": "", "act": "", "sim": False})
st.html(CSS)


# --- paste ------------------------------------------------------------------------------------------------------------


def paste() -> None:
    if "paste" not in st.session_state:
        st.session_state["paste"] = st.session_state.get("paste_kept", "")
    st.text_area(t("diagnose.paste_label"), key="paste", height=150, placeholder=t("diagnose.paste_placeholder"), on_change=read)
    given = st.session_state["paste_kept"] = st.session_state["paste"]
    with st.container(horizontal=True, vertical_alignment="center"):
        st.button(t("diagnose.paste_read"), type="primary", on_click=read, key="paste_read")
        if given:
            st.button(t("diagnose.paste_clear"), on_click=fill, args=("",), key="paste_clear")
        else:
            st.markdown(t("diagnose.sample"), width="content")
            for what in ("metrics", "log", "serve"):
                st.button(t(f"diagnose.sample_{what}"), on_click=fill, args=(what,), key=f"sample_{what}", type="tertiary")
    if not given:
        st.caption(t("diagnose.paste_private"))
        return
    report = diagnose(given)
    if report.parse is None and not report.errors:
        key = f"diagnose.nothing_{report.what}"
        st.info(t(key if has(key) else "diagnose.nothing_other"))
        return
    if report.advice:
        verdict(report.advice[0])
    else:
        st.info(t("diagnose.no_diagnosis"))
    simulation(report)
    details(report)


def read() -> None:
    """What is in the box, read anew; a simulation of what was there before goes."""
    state.change(sim=False)


def fill(what: str) -> None:
    """One of the examples into the box. The page of metrics is a run's own, with the lesson's disease."""
    if what == "metrics":
        st.session_state["paste"] = export.metrics_text(state.run(DEFAULT.but(request_rate=40.0, prompt_tokens=300)), until=18.0)
    else:
        st.session_state["paste"] = {"log": incidents.SAMPLE_LOG, "serve": incidents.SAMPLE_SERVE, "": ""}[what]
    read()


def verdict(advice: desk.Advice) -> None:
    """The diagnosis: what, why, what to do."""
    e = html.escape
    st.html(
        f"<div class='dd-verdict' role='status' data-code='{advice.code}'><h3>{e(named(advice.code))}"
        f"<span class='dd-sure'>{e(t(f'diagnose.confidence_{advice.confidence}'))}</span></h3>"
        f"<code title='{e(t('diagnose.code_help'), quote=True)}'>{e(t('diagnose.code'))} {advice.code}</code>"
        f"<dl><dt>{e(t('diagnose.why'))}</dt><dd>{e(say(advice.why_key, advice))}</dd>"
        f"<dt>{e(t('diagnose.action'))}</dt><dd class='do'>{e(say(advice.action_key, advice))}</dd></dl></div>"
    )


def details(report: Report) -> None:
    """What was recognised, what else it could be, what to measure, what could not be known."""
    first = report.advice[0] if report.advice else None
    kind = t("diagnose.pair", name=t(f"diagnose.kind_{report.kind}"), what=report.what.rsplit(" ", 1)[-1])
    kind += f" · {report.format}" if report.format else ""
    hidden = [t("diagnose.secrets", names=", ".join(report.redact))] if report.redact else []
    left, middle, right = frame.columns(3)
    with left:
        lists(recognised=[kind, *([str(report.image)] if report.image else [])])
        was_read(report)
    with middle:
        lists(
            also=[t("diagnose.pair", name=named(a.code), what=say(a.action_key, a)) for a in report.advice[1:]],
            else_title=[named(c) for c in first.alternatives] if first else [],
            measure_title=[t(f"advice.measure_{m}") for m in first.measure] if first else [],
            errors_title=noted(report.errors),
        )
    with right:
        lists(unknown_title=noted(report.unknown), warnings_title=noted(report.warnings + report.notes) + hidden, ignored_title=noted(report.ignored))


def lists(**lists: list[str]) -> None:
    """Short lists below each other, each under the title diagnose.<name>; an empty one is left out."""
    body = ""
    for title, entries in lists.items():
        shown = "".join(f"<li>{html.escape(entry)}</li>" for entry in [*entries[:8], *(["…"] if len(entries) > 8 else [])])
        body += f"<b>{html.escape(t(f'diagnose.{title}'))}</b><ul>{shown}</ul>" if entries else ""
    st.html(f"<div class='dd-small'>{body}</div>")


def noted(notes: list[Note]) -> list[str]:
    """What the readers noted, in the visitor's language."""
    return [t(f"note.{n.code}").format_map(Blanks(n.params)) for n in notes]


def was_read(report: Report) -> None:
    """The figures or settings that were read, as a table: a column an engine."""
    parse = scrub(report.parse or {})
    engines = dict([*(parse.get("engines") or ({"0": parse["last"]} if parse.get("last") else {})).items()][:6])
    if engines:
        rows = [(n, [figure(n, e.get(n)) for e in engines.values()]) for n in SHOWN if any(n in e for e in engines.values())]
    else:
        rows = [(k, [json.dumps(v) if isinstance(v, (dict, list)) else figure(k, v)]) for k, v in parse.items()
                if not isinstance(v, dict) or k.endswith("config")][:16]
    head = "".join(f"<th>{html.escape(str(who)[:24])}</th>" for who in ("", *engines)) if len(engines) > 1 else ""
    body = "".join(
        f"<tr><td><code>{html.escape(name)}</code></td>{''.join(f'<td>{html.escape(cell)}</td>' for cell in cells)}</tr>" for name, cells in rows
    )
    st.html(f"<table class='dd-figs'>{head and f'<thead><tr>{head}</tr></thead>'}<tbody>{body}</tbody></table>")


def figure(name: str, value: object) -> str:
    """A figure that was read, as the table shows it."""
    if value is None:
        return "?"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    if name in ("kv_usage", "prefix_hit_rate", "cpu_kv_usage"):
        return percent(value)
    return seconds(value) if name.endswith("_s") and not name.endswith("tok_s") else f"{value:,.10g}"


def simulation(report: Report) -> None:
    """The pasted server as a scenario, before and after the advised change."""
    if report.kind == "unknown" or (report.kind == "log" and report.parse and report.parse.get("error")):
        return
    read_figures = report.parse if report.kind in ("metrics", "log") else None
    refused, change = None, {}
    try:
        scenario, notes = export.scenario_of(read_figures, report.settings, DEFAULT.but(gpu=s.b.gpu), report.image)
        if report.advice:
            first = report.advice[0]
        else:  # a command line alone: what the simulator itself would say of it
            if isinstance(run := state.attempt(scenario), SimError):
                raise run.with_traceback(None)
            first = incidents.verdict(run)
        change = desk.changes(first, scenario)
    except SimError as error:
        st.warning(state.message(error))
        refused = error
    with st.container(horizontal=True, vertical_alignment="bottom"):
        controls.pick("gpu", traffic.gpus(), label=t("diagnose.gpu_pick"))
        if not refused:
            st.button(
                t("diagnose.run"), type="primary", icon=":material/play_arrow:", key="simulate", help=t("diagnose.run_help"),
                on_click=state.replace, args=(scenario.but(**change), scenario), kwargs={"sim": True},
            )
    if refused or not s.extra["sim"]:
        return
    if s.a.gpu != scenario.gpu:  # another card was picked: the pasted server stands on it too
        state.replace(scenario.but(**change), scenario)
    st.subheader(t("diagnose.sim_title"), anchor=False)
    if not report.advice:
        verdict(first)
    if not change:
        st.caption(t("diagnose.run_none"))
    b, a = state.runs(s)
    if report.advice and (here := incidents.verdict(a).code) != first.code:
        st.info(t("diagnose.sim_differs", here=named(here)))
    if b is not a:
        frame.note(narration.changed(b.summary(), a.summary(), b.scenario, a.scenario))
    before_after(b, a, first)
    if notes:
        st.caption(t("diagnose.assumed", what=t("diagnose.between").join(noted(notes))))
    command = export.command_line(s.b)
    with st.expander(t("diagnose.sim_command")):
        st.code(str(command), language="bash", wrap_lines=True)
        if command.not_expressible:
            st.caption(t("diagnose.sim_lost", names=", ".join(f"{k} = {v}" for k, v in command.not_expressible)))
        st.download_button(t("diagnose.sim_metrics"), lambda: export.metrics_text(b), "metrics.txt", "text/plain", key="metrics_file")


def before_after(b: Run, a: Run, advice: desk.Advice) -> None:
    """Figures and pictures of B, with A's: those first by which this diagnosis is decided."""
    frame.tiles([(n, getattr(b.summary(), n), getattr(a.summary(), n), *kind) for n, kind in incidents.figures(advice).items()], was=True)
    several = b.scenario.data_parallel_size > 1 and advice.code == "DP_IMBALANCE"
    dashboard.before_after(b, a, incidents.DECIDE.get(advice.code, ("waiting", "kv")), engines=several)


# --- incidents --------------------------------------------------------------------------------------------------------

ORDER = [*(incident.key for incident in incidents.INCIDENTS), END]


def cases() -> None:
    """One patient: the monitor and what could be wrong, then what to do about it, then what came of it."""
    if s.extra["case"] == END:
        farewell()
        return
    if s.extra["case"] not in ORDER:
        s.extra["case"] = ORDER[0]
    incident = incidents.INCIDENTS[ORDER.index(str(s.extra["case"]))]
    number = max(1, min(incidents.INSTANCES, int(s.extra["n"])))
    scenario = incidents.instance(incident, number)
    run = state.run(scenario)
    advice = incidents.verdict(run)
    best = incidents.RIGHT[advice.code]
    cause = str(s.extra["cause"]) if s.extra["cause"] in (*incident.causes, SHOWN_TO) else ""
    action = str(s.extra["act"]) if cause and s.extra["act"] in incident.actions else ""
    with st.container(horizontal=True, vertical_alignment="center", key="case_row"):
        st.session_state["w_case"] = incident.key
        st.selectbox(
            t("diagnose.case_label"), ORDER[:-1], format_func=lambda k: f"{t('diagnose.case_label')} {ORDER.index(k) + 1} / {len(ORDER) - 1}",
            key="w_case", label_visibility="collapsed", width=270, filter_mode=None,
            on_change=lambda: state.change(case=st.session_state["w_case"], n=1, **UNANSWERED),
        )
        if action:
            onwards(incident, "" if action == best else best)
        st.button(
            t("diagnose.another"), icon=":material/casino:", key="another", type="tertiary" if action else "secondary",
            on_click=state.change, kwargs={"n": number % incidents.INSTANCES + 1, **UNANSWERED},
        )
        if cause:
            st.button(t("diagnose.start_over"), type="tertiary", key="over", on_click=state.change, kwargs=UNANSWERED)
    if action:
        before_after(treated(run, advice, action), run, advice)
        history(incident)
        return
    known_facts(run)
    left, right = st.columns([2, 1], gap="medium")
    with left:
        dashboard.monitor(run)
    with right:
        if not cause:
            frame.question(t("diagnose.cause_question"))
            for code in incident.causes:
                answer(f"cause_{code}", named(code), cause=code)
            reveal(cause=SHOWN_TO)
            return
        guessed = "" if cause == SHOWN_TO else t(f"diagnose.{'right' if cause == advice.code else 'wrong'}_cause", cause=named(cause))
        st.markdown(text.joined([guessed, "" if cause == advice.code else t("diagnose.truth", cause=named(advice.code))]))
        frame.question(t("diagnose.action_question"))
        for name in incident.actions:
            answer(f"act_{name}", incidents.action_name(name), act=name)
        reveal(act=best)


def answer(key: str, words: str, **chosen: str) -> None:
    st.button(words, key=key, width="stretch", on_click=state.change, kwargs=chosen)


def reveal(**answer: str) -> None:
    """Whoever only presses PageDown, as a clicker in class does, is told and goes on."""
    st.button(t("lesson.reveal"), key="reveal", shortcut="PageDown", type="tertiary", on_click=state.change, kwargs=answer)


def known_facts(run: Run) -> None:
    """What whoever is on call knows without a dashboard."""
    scenario, summary = run.scenario, run.summary()
    facts = [t("diagnose.settings_known", seqs=f"{scenario.max_num_seqs:,}", tokens=f"{scenario.max_num_batched_tokens:,}",
               replicas=scenario.data_parallel_size, gpu=scenario.gpu)]
    if summary.refused:
        facts.append(t("diagnose.refused_known", n=summary.refused, total=len(run.requests.prompt)))
    if scenario.arrival == "closed":
        facts.append(t("diagnose.client_known"))
    if scenario.host == "v0":
        facts.append(t("diagnose.host_known"))
    elif not scenario.scheduler_reserve_full_isl and scenario.preemption_mode == "recompute":
        facts.append(t("diagnose.gate_known"))
    if scenario.preemption_mode == "swap":
        facts.append(t("diagnose.swap_known", pcie=scenario.pcie_gb_s))
    facts.append(t("diagnose.itl_known", itl=seconds(summary.itl_p99)))
    st.caption(text.joined(facts))


def treated(run: Run, advice: desk.Advice, action: str) -> Run:
    """The run after an action, told of: what was wrong, what was done, what it did and at what price."""
    change = incidents.act(action, run.scenario, advice)
    after = tried(run, change)
    if isinstance(after, SimError):
        st.warning(state.message(after))
        after = run
    advised = tried(run, incidents.act(incidents.RIGHT[advice.code], run.scenario, advice))
    done = t("diagnose.applied", what=narration.settings(run.scenario.but(**change), run.scenario)) if change else t(f"diagnose.unchanged.{action}")
    came_of_it = incidents.outcome(run, after, advised if isinstance(advised, Run) else run, advice, action)
    with st.container(key="told"):
        st.markdown(f"{t('diagnose.was', name=named(advice.code), why=say(advice.why_key, advice))}  \n{text.joined([done, came_of_it])}")
    return after


def tried(run: Run, change: dict[str, object]) -> Run | SimError:
    """A run again with other settings; the same one where there are none."""
    return state.attempt(run.scenario.but(**change)) if change else run


def onwards(incident: incidents.Incident, better: str) -> None:
    """To the next patient, or the end; where there was a better action, to that."""
    following = ORDER[ORDER.index(incident.key) + 1]

    def follow() -> None:
        state.change(case=following, n=1, **UNANSWERED)
        st.session_state["to_top"] = True

    if better:
        st.button(t("diagnose.try_right"), type="primary", key="right", on_click=state.change, kwargs={"act": better})
    st.button(
        t("diagnose.to_end" if following == END else "diagnose.next_case"), type="secondary" if better else "primary",
        key="next", shortcut="PageDown", on_click=follow,
    )


def history(incident: incidents.Incident) -> None:
    """The story behind the incident, and where it can be read."""
    title, source = t("diagnose.remember"), ""
    if incident.case:
        title, source = t("diagnose.real"), f"  \n:small[{t('diagnose.source_case', case=incident.case, source=incident.source)}]"
    with st.container(border=True):
        st.markdown(f":material/history_edu: **{title}** {t(f'diagnose.case.{incident.key}')}{source}")


def farewell() -> None:
    """After the last patient: what was seen, the card to carry away, and the way on."""
    frame.question(t("diagnose.end", n=len(incidents.INCIDENTS)))
    with st.container(horizontal=True, vertical_alignment="center"):
        if st.button(t("lesson.next_page"), type="primary", key="next_page", shortcut="PageDown"):  # a key of its own: "next" was just pressed
            st.switch_page(frame.PAGES["playground"])
        st.button(t("diagnose.begin_anew"), key="anew", on_click=state.change, kwargs={"case": ORDER[0], "n": 1, **UNANSWERED})
        card_button()
    seen = "".join(
        f"<li>{html.escape(named(i.code))} <small>→ {html.escape(t(f'diagnose.act.{incidents.RIGHT[i.code]}'))}</small></li>"
        for i in incidents.INCIDENTS
    )
    size = "dd-large" if frame.projector() else ""  # the letters are large: what was seen and the card are to be seen at once
    for place, words in zip(frame.columns(2), (f"<ol class='dd-seen'>{seen}</ol>", card_html(text.language())), strict=True):
        with place:
            st.html(f"<div class='{size}'>{words}</div>")


# --- checklist and card -----------------------------------------------------------------------------------------------


def checklist() -> None:
    st.markdown(t("diagnose.check_intro"))
    with st.container(horizontal=True):
        st.download_button(
            t("diagnose.grafana"), lambda: json.dumps(export.grafana(), indent=1), "vllm-scheduler.json", "application/json", key="grafana",
        )
        st.download_button(t("diagnose.rules"), export.alert_rules, "vllm-alerts.yaml", "text/yaml", key="rules")
    st.caption(t("diagnose.dashboard_note"))
    heads = [t(f"diagnose.check_{k}") for k in ("metric", "type", "trap", "query")]
    body = ""
    for panel in export.PANELS:
        counts = f"diagnose.counts.{panel.counts}"
        names = "<br>".join(f"<code>{html.escape(n)}</code>" for n in panel.metrics.split(", "))
        old = f"<br><small>{html.escape(t('diagnose.check_before'))}{html.escape(panel.before)}</small>" if panel.before else ""
        rule = f"<br><small>{html.escape(t('diagnose.check_alert'))}{panel.alert}</small>" if panel.alert else ""
        body += (
            f"<tr><td>{names}{old}</td><td>{panel.type}<br><small>{t(counts) if has(counts) else panel.counts}</small></td>"
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
    left, _ = frame.columns(2)
    with left:
        st.html(card_html(text.language()))


with st.container(key="part"):
    frame.question(t("diagnose.question"))
    part = controls.extra_choice("part", PARTS, words=lambda p: t(f"diagnose.part.{p}"), title=t("diagnose.question"))
state.notices()
{"paste": paste, "incidents": cases, "checklist": checklist, "card": card}.get(part, cases)()
state.publish()
