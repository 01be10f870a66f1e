"""The sweet spot: both experiments, the tuning path, a map, and the curve that sums it up [lesson 2.3.6, 2.3.7]."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import streamlit as st

from sim import link
from sim.engine import simulate
from sim.results import Run, Summary
from sim.scenario import Scenario, SimError
from sim.vllm import export
from ui import charts, controls, frame, lesson, series, state
from ui.text import count, percent, seconds, t

LADDER = (32, 64, 128, 256, 384, 512)  # max_num_seqs, step by step
MAP_SEQS = (32, 64, 128, 192, 256, 320, 384, 512)
MAP_TOKENS = (512, 1024, 2048, 4096, 8192)
LOADS = (0.1, 0.2, 0.35, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2)  # of what continuous batching completes when flooded
KNEE = 3.0  # a curve has its knee where P99 passes this multiple of P99 at the lightest load

FIRST_A = Scenario(  # 200 waiting for 250 ms are 800 requests a second: very short ones
    arrival="closed", num_clients=320, think_time_s=0.02, duration_s=10.0, lengths="fixed", prompt_tokens=6, output_tokens=4,
    model="Llama-3.1-8B", gpu="A100-80GB", max_model_len=2048, gpu_memory_utilization=0.85, max_num_seqs=64,
    max_num_batched_tokens=8192, enable_prefix_caching=False,
)
FIRST_B = FIRST_A.but(max_num_seqs=256)
SECOND_A = Scenario(  # 512 users, a pool for about 360 of them when their answers have grown
    arrival="closed", num_clients=512, num_requests=3000, duration_s=3600.0, lengths="fixed", prompt_tokens=64, output_tokens=128,
    model="Llama-3.1-8B", gpu="A100-80GB", max_model_len=4096, gpu_memory_utilization=0.85, num_gpu_blocks_override=4300,
    max_num_seqs=256, max_num_batched_tokens=2048, preemption_mode="swap", enable_prefix_caching=False,
)
SECOND_B = SECOND_A.but(max_num_seqs=512)
STREAM = Scenario(
    duration_s=60.0, prompt_tokens=256, output_tokens=128, prompt_cv=0.5, output_cv=1.0, max_num_seqs=64,
    max_num_batched_tokens=2048, max_model_len=8192, static_timeout_s=0.5,
)
SCENES = (
    lesson.Scene("climb", SECOND_A.but(max_num_seqs=LADDER[0]), None, ("s128", "s256", "s384", "s512")),
    lesson.Scene("first", FIRST_B, FIRST_A, guess=lesson.Guess(1.0, 4.0, 0.1, "×")),
    lesson.Scene("second", SECOND_B, SECOND_A, ("better", "same", "worse")),
    lesson.Scene("map", SECOND_A, None, ("low", "middle", "high")),
    lesson.Scene("knee", STREAM, None, guess=lesson.Guess(1.0, 8.0, 0.5, "×")),
)


@st.cache_data(max_entries=600, show_spinner=False)
def figures(key: str, _scenario: Scenario) -> Summary | None:
    """The summary of a run; None if it cannot start. `key` says all of the scenario."""
    try:
        return simulate(_scenario).summary()
    except SimError:
        return None


def measure(scenario: Scenario) -> Summary | None:
    return figures("&".join(link.encode(scenario).values()), scenario)


def signed(ratio: float) -> str:
    """A change in percent with its sign."""
    return f"{ratio - 1:+.0%}"


def two_columns() -> list[Any]:
    return [*frame.columns(2), *frame.columns(2)]


def serve(scenario: Scenario) -> None:
    """The command that makes this scenario's server."""
    st.caption(t("sweet_spot.serve_line"))
    st.code(str(export.command_line(scenario)), language="bash", wrap_lines=True)


# --- the climb ------------------------------------------------------------------------------------------------------


def climb(flow: lesson.Flow) -> None:
    b = flow.s.b
    at = max((i for i, n in enumerate(LADDER) if n <= b.max_num_seqs), default=0)
    seen = {n: measure(b.but(max_num_seqs=n)) for n in (LADDER if flow.revealed else LADDER[: at + 1])}
    walked = {n: s for n, s in seen.items() if s is not None and (flow.revealed or n <= LADDER[at])}
    now = walked.get(LADDER[at])
    if now is None:
        return
    best = max((n for n, s in walked.items() if not s.preemptions), key=lambda n: walked[n].qps, default=0)
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        st.button(t("sweet_spot.knob_raise"), icon=":material/stairs:", key="climb_up", disabled=at + 1 >= len(LADDER),
                  on_click=state.change, kwargs={"max_num_seqs": LADDER[min(at + 1, len(LADDER) - 1)]})
        st.button(t("sweet_spot.knob_back"), icon=":material/undo:", key="climb_down", disabled=at == 0,
                  on_click=state.change, kwargs={"max_num_seqs": LADDER[max(at - 1, 0)]})
        controls.choice("preemption_mode")
    frame.note(verdict(b, LADDER[at], now, walked))
    steps = [n for n in LADDER if n in walked]
    runs = [walked[n] for n in steps]
    places = two_columns()
    with places[0]:
        charts.curve(
            t("sweet_spot.chart_climb"), [charts.Line([s.qps for s in runs], [s.e2e_p99 for s in runs], "decode")],
            x_title=t("sweet_spot.axis_qps"), marks=named(steps, runs),
            x_end=max(s.qps for s in runs) * 1.15,
            alt=t("sweet_spot.alt_climb", points=", ".join(map(str, steps)), best=best), key="climb",
        )
    for place, (title, colour, values, share) in zip(places[1:], (
        ("chart_queue", "waiting", [s.waiting_mean for s in runs], False),
        ("chart_gpu", "decode", [s.gpu_compute for s in runs], True),
        ("chart_preemptions", "preempted", [float(s.preemptions) for s in runs], False),
    ), strict=True):
        with place:
            charts.bars(t(f"sweet_spot.{title}"), [str(n) for n in steps], [charts.Part("", colour, values)], percent=share,
                        words=(lambda v: percent(v)) if share else count, key=title, alt=t(f"sweet_spot.{title}"))
    explain = [t("sweet_spot.hint_budget", tokens=b.max_num_batched_tokens, blocks=now.num_gpu_blocks)]
    if flow.revealed and best:
        explain.insert(0, searched(b, walked, best))
    if b.preemption_mode == "swap":
        explain.append(frame.badge("history") + " " + t("sweet_spot.swap_history"))
    lesson.end(flow, explain="\n\n".join(explain))
    if flow.step == "next":
        serve(b.but(max_num_seqs=best or b.max_num_seqs))
        path(b)


def named(steps: list[int], runs: list[Summary]) -> list[tuple[float, float, str]]:
    """The points of the path; those that would write over each other share a name."""
    marks: list[tuple[float, float, str]] = []
    wide, high = max(s.qps for s in runs), max(s.e2e_p99 for s in runs)
    for n, s in zip(steps, runs, strict=True):
        if marks and abs(marks[-1][0] - s.qps) < 0.05 * wide and abs(marks[-1][1] - s.e2e_p99) < 0.06 * high:
            x, y, word = marks.pop()
            marks += [(x, y, ""), (s.qps, s.e2e_p99, f"{word}, {n}")]
        else:
            marks.append((s.qps, s.e2e_p99, str(n)))
    return marks


def verdict(b: Scenario, n: int, now: Summary, walked: dict[int, Summary]) -> str:
    """What the rule says at this step: raise, or stop and why."""
    here = t("sweet_spot.step_now", value=n, qps=now.qps, p99=seconds(now.e2e_p99), waiting=now.waiting_mean, gpu=now.gpu_compute,
             preemptions=now.preemptions)
    below = [m for m in walked if m < n and not walked[m].preemptions]
    if now.preemptions and below:
        back = walked[max(below)]
        told = dict(value=n, preemptions=now.preemptions, best=max(below), best_qps=back.qps, best_p99=seconds(back.e2e_p99), p99=seconds(now.e2e_p99))
        if b.preemption_mode == "swap":
            return here + " " + t("sweet_spot.stop_swapped", swapped=now.swapped_blocks, **told)
        return here + " " + t("sweet_spot.stop_preempted", recomputed=now.recomputed_tokens, **told)
    if now.preemptions:
        return here + " " + t("sweet_spot.preempts_at_first", value=n)
    if now.waiting_mean < 1:
        return here + " " + t("sweet_spot.stop_empty", value=n)
    if n == LADDER[-1]:
        return here + " " + t("sweet_spot.stop_top")
    return here + " " + t("sweet_spot.go_on", waiting=now.waiting_mean)


def searched(b: Scenario, seen: dict[int, Summary], climbed: int) -> str:
    """What halving the steps around the climb's answer finds: the largest throughput that never preempts."""
    known = dict(seen)
    low, high = climbed, min((n for n in known if n > climbed), default=climbed)
    while high - low > 8:
        middle = (low + high) // 2 // 8 * 8
        if middle in (low, high):
            break
        found = measure(b.but(max_num_seqs=middle))
        if found is None:
            break
        known[middle] = found
        low, high = (middle, high) if not found.preemptions else (low, middle)
    best = max((n for n in known if not known[n].preemptions), key=lambda n: (round(known[n].qps, 2), -n))
    above, below = min((n for n in known if n > best), default=best), max((n for n in known if n < best), default=best)
    return t(
        "sweet_spot.search_says", best=best, qps=known[best].qps, p99=seconds(known[best].e2e_p99), climb=climbed, runs=len(known),
        below=below, below_qps=known[below].qps, above=above, above_preemptions=known[above].preemptions,
        above_p99=seconds(known[above].e2e_p99),
    )


def path(b: Scenario) -> None:
    st.markdown("\n".join(f"{i}. {t(f'sweet_spot.path_{i}', memory=b.gpu_memory_utilization)}" for i in range(1, 5)))


# --- the two experiments --------------------------------------------------------------------------------------------


def experiment(flow: lesson.Flow) -> None:
    b, a = flow.s.b, flow.s.a
    left, right = st.columns([6, 5], gap="medium")
    with left:
        controls.knob("max_num_seqs", list(LADDER))
    with right:
        if flow.name == "second":
            controls.choice("preemption_mode")
        else:
            controls.knob("num_clients", [100, 200, 300, 400, 600])
    run_b, run_a = state.runs(flow.s)
    sb, sa = run_b.summary(), run_a.summary()
    top = frame.columns(2)
    if not flow.revealed:
        with top[0]:
            charts.timeline(t("sweet_spot.chart_waiting"), [charts.Line(*series.waiting(run_a), "idle", "A", dotted=True)], key="w",
                            alt=t("sweet_spot.alt_waiting", a=sa.waiting_mean, b=sa.waiting_mean))
        with top[1]:
            lesson.covered(210)
        lesson.end(flow)
        return
    with top[0]:
        charts.timeline(t("sweet_spot.chart_waiting"), charts.both(series.waiting, run_b, run_a, "waiting"), key="w",
                        alt=t("sweet_spot.alt_waiting", a=sa.waiting_mean, b=sb.waiting_mean))
    with top[1]:
        if flow.name == "first":
            charts.timeline(t("sweet_spot.chart_gpu"), charts.both(series.utilisation, run_b, run_a, "decode"), percent=True, key="g",
                            alt=t("sweet_spot.alt_gpu", a=sa.gpu_compute, b=sb.gpu_compute))
        else:
            first = series.first_preemption(run_b)
            charts.timeline(
                t("sweet_spot.chart_kv"), charts.both(series.kv, run_b, run_a, "kv"), percent=True, key="k",
                events=[(first, t("sweet_spot.first_preemption"))], alt=t("sweet_spot.alt_kv", a=sa.kv_max, b=sb.kv_max, n=sb.preemptions),
            )
    rows, explain = first_rows(b, run_b, run_a) if flow.name == "first" else second_rows(b, a, sb, sa)
    frame.note(t(
        "sweet_spot.changed_against", a=a.max_num_seqs, b=b.max_num_seqs, qps=f"{count(sa.qps)} → {count(sb.qps)}",
        p99=f"{seconds(sa.e2e_p99)} → {seconds(sb.e2e_p99)}", waiting_a=sa.waiting_mean, waiting_b=sb.waiting_mean,
        preempt_a=sa.preemptions, preempt_b=sb.preemptions,
    ))
    st.table({t("sweet_spot.col_what"): [r[0] for r in rows], t("sweet_spot.col_lesson"): [r[1] for r in rows],
              t("sweet_spot.col_run"): [r[2] for r in rows]})

    lesson.end(flow, explain="\n\n".join(explain), run=run_b)
    if flow.step == "next":
        lesson.presets([(t("sweet_spot.try_swap"), {"preemption_mode": "swap"}), (t("sweet_spot.try_recompute"), {"preemption_mode": "recompute"})]
                       if flow.name == "second" else
                       [(f"max_num_seqs {n}", {"max_num_seqs": n}) for n in (64, 128, 256)], key=flow.name)


def queue(run: Run) -> float:
    """Mean of the gauge num_requests_waiting over the run: without those who only wait for the step in progress."""
    return float(run.ticks.waiting @ run.ticks.duration) / run.duration_s


def first_rows(b: Scenario, run_b: Run, run_a: Run) -> tuple[list[tuple[str, str, str]], list[str]]:
    sb, sa = run_b.summary(), run_a.summary()

    def arrow(x: str, y: str) -> str:
        return t("sweet_spot.arrow", a=x, b=y)

    rows = [
        (t("sweet_spot.row_waiting"), t("sweet_spot.lesson_waiting"), arrow(f"{queue(run_a):.0f}", f"{queue(run_b):.0f}")),
        (t("sweet_spot.row_gpu"), t("sweet_spot.lesson_gpu"), arrow(percent(sa.gpu_compute), percent(sb.gpu_compute))),
        (t("sweet_spot.row_qps"), t("sweet_spot.lesson_qps"), f"× {sb.qps / sa.qps:.2f}"),
        (t("sweet_spot.row_queue"), t("sweet_spot.lesson_queue"), arrow(seconds(sa.queue_mean), seconds(sb.queue_mean))),
    ]
    return rows, [t("sweet_spot.why_gpu"), t("sweet_spot.why_1", clients=b.num_clients, think=seconds(b.think_time_s), prompt=b.prompt_tokens, output=b.output_tokens)]


def second_rows(b: Scenario, a: Scenario, sb: Summary, sa: Summary) -> tuple[list[tuple[str, str, str]], list[str]]:
    modes = {m: (measure(a.but(preemption_mode=m)), measure(b.but(preemption_mode=m))) for m in ("swap", "recompute")}
    said = {m: signed(y.e2e_p99 / x.e2e_p99) if x and y else "–" for m, (x, y) in modes.items()}
    rows = [
        (t("sweet_spot.row_p99_swap"), t("sweet_spot.lesson_p99"), said["swap"]),
        (t("sweet_spot.row_p99_recompute"), t("sweet_spot.lesson_none"), said["recompute"]),
        (t("sweet_spot.row_preemptions"), t("sweet_spot.lesson_frequent"), t("sweet_spot.arrow", a=count(sa.preemptions), b=count(sb.preemptions))),
        (t("sweet_spot.row_swapped"), t("sweet_spot.lesson_frequent"), count(sb.swapped_blocks)),
    ]
    return rows, [t("sweet_spot.why_2"), frame.badge("history") + " " + t("sweet_spot.swap_history")]


# --- the map --------------------------------------------------------------------------------------------------------

COLOURINGS = {"qps": ("decode", 1), "e2e_p99": ("waiting", -1), "preemptions": ("preempted", -1), "gpu_compute": ("prefill", 1),
              "goodput_qps": ("decode", 1)}


def atlas(flow: lesson.Flow) -> None:
    b = flow.s.b
    cells = [(n, m) for m in MAP_TOKENS for n in MAP_SEQS if n <= m]
    base = b.but(max_num_seqs=32, max_num_batched_tokens=8192)
    slot = "&".join(link.encode(base).values())
    held = st.session_state.get("sweet_map")
    if held is None or held["of"] != slot:
        held = st.session_state["sweet_map"] = {"of": slot, "done": {}, "running": False}
    done: dict[tuple[int, int], Summary] = held["done"]
    if flow.revealed and not held.setdefault("started", False):
        held["started"] = held["running"] = True  # the first time one needs not ask for it

    def start(running: bool) -> None:
        st.session_state["sweet_map"]["running"] = running

    left, middle, right = st.columns([4, 3, 3], vertical_alignment="bottom", gap="medium")
    with left:
        st.session_state.setdefault("sweet_colour", "qps")
        colouring = st.selectbox(t("sweet_spot.map_colour"), list(COLOURINGS), key="sweet_colour",
                                 format_func=lambda c: t(f"sweet_spot.map_{c}"), filter_mode=None)
    with middle:
        controls.choice("preemption_mode")
    missing = [c for c in cells if c not in done]
    with right:
        if held["running"]:
            st.button(t("sweet_spot.map_stop"), icon=":material/stop:", key="map_stop", on_click=start, args=(False,))
        else:
            st.button(t("sweet_spot.map_run", n=len(missing)), icon=":material/grid_on:", key="map_run", disabled=not missing,
                      on_click=start, args=(True,))
    picture, progress = st.empty(), st.empty()
    if held["running"] and missing:
        begun = time.perf_counter()
        for i, (n, m) in enumerate(missing):
            left_s = (time.perf_counter() - begun) / i * (len(missing) - i) if i else float("nan")
            progress.progress(len(done) / len(cells), t("sweet_spot.map_progress", done=len(done), total=len(cells), left=seconds(left_s)))
            found = measure(base.but(max_num_seqs=n, max_num_batched_tokens=m))
            if found:
                done[n, m] = found
        held["running"] = False
        st.rerun()
    free = {c: s for c, s in done.items() if not s.preemptions and s.drained}
    best = max(free, key=lambda c: (round(free[c].qps, 1), -free[c].e2e_p99)) if free else None
    with picture.container():
        if done and flow.revealed:
            draw_map(done, free, colouring, b, best)
        else:
            lesson.covered(330)
    if 0 < len(done) < len(cells):
        st.caption(t("sweet_spot.map_partial", done=len(done), total=len(cells)))
    if best and flow.revealed:
        frame.note(t("sweet_spot.map_best", seqs=best[0], tokens=best[1], qps=free[best].qps, p99=seconds(free[best].e2e_p99)))
        here = measure(b)
        explain = [t("sweet_spot.map_lead")]
        if here:
            explain.append(t("sweet_spot.map_taken", seqs=b.max_num_seqs, tokens=b.max_num_batched_tokens, qps=here.qps,
                             p99=seconds(here.e2e_p99), preemptions=here.preemptions))
        lesson.end(flow, explain="\n\n".join(explain))
        if flow.step == "next":
            serve(b.but(max_num_seqs=best[0], max_num_batched_tokens=best[1]))
    else:
        lesson.end(flow)


def draw_map(done: dict[tuple[int, int], Summary], free: dict[tuple[int, int], Summary], colouring: str, b: Scenario,
             best: tuple[int, int] | None) -> None:
    """Squares that can be clicked (a Plotly heatmap cannot), those that never preempt outlined."""
    colours = charts.COLOURS[frame.theme()]
    scale = frame.scale()
    order = sorted(done)
    values = [getattr(done[c], colouring) * (100 if colouring == "gpu_compute" else 1) for c in order]
    words = [count(v) if colouring != "e2e_p99" else f"{v:.1f}" for v in values]
    here = [c == (b.max_num_seqs, b.max_num_batched_tokens) for c in order]
    axis = {"type": "category", "showgrid": False, "zeroline": False, "tickfont": {"size": 13 * scale}, "fixedrange": True}
    figure = {
        "data": [{
            "type": "scatter", "mode": "markers+text", "x": [str(n) for n, _ in order], "y": [str(m) for _, m in order],
            "text": words, "textfont": {"size": 12 * scale, "color": colours["ink"]}, "customdata": [list(c) for c in order],
            "hovertemplate": "max_num_seqs %{x}<br>max_num_batched_tokens %{y}<br>%{text}<extra></extra>",
            "marker": {
                "symbol": "square", "size": 40, "opacity": 1, "color": values,
                "colorscale": [[0, colours["grid"]], [1, colours[COLOURINGS[colouring][0]]]],
                "line": {"color": [colours["ink"] if c in free else colours["grid"] for c in order],
                         "width": [4 if h else 2 if c in free else 0 for c, h in zip(order, here, strict=True)]},
            },
        }],
        "layout": {
            "height": 330, "font": {"family": charts.FONT, "size": 13 * scale, "color": colours["ink"]},
            "paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)", "showlegend": False, "clickmode": "event+select",
            "dragmode": False, "margin": {"l": 80 * scale, "r": 12, "t": 36, "b": 44},
            "title": {"text": t(f"sweet_spot.map_{colouring}"), "x": 0, "xanchor": "left", "y": 1, "yanchor": "top",
                      "pad": {"t": 4, "l": 2}, "font": {"size": 15 * scale, "color": colours["ink"]}},
            "xaxis": {**axis, "title": {"text": "max_num_seqs"}, "categoryorder": "array", "categoryarray": [str(n) for n in MAP_SEQS]},
            "yaxis": {**axis, "title": {"text": "max_num_batched_tokens"}, "categoryorder": "array",
                      "categoryarray": [str(m) for m in MAP_TOKENS]},
        },
    }
    def picked() -> None:
        points = st.session_state["sweet_cells"].selection.points
        if points:
            n, m = points[0]["customdata"][:2]
            state.change(max_num_seqs=int(n), max_num_batched_tokens=int(m))

    st.plotly_chart(
        figure, width="stretch", height=330, theme=None, key="sweet_cells", config=charts.CONFIG, on_select=picked,
        selection_mode="points",
        alt=t("sweet_spot.alt_map", colour=t(f"sweet_spot.map_{colouring}"), seqs=best[0] if best else "–", tokens=best[1] if best else "–"),
    )


# --- the knee -------------------------------------------------------------------------------------------------------


def knee_of(runs: Iterable[Summary]) -> float:
    """Completed req/s at the last load before P99 passes KNEE times its value at the lightest."""
    runs = list(runs)
    last = runs[0]
    for s in runs:
        if s.e2e_p99 > KNEE * runs[0].e2e_p99:
            break
        last = s
    return last.qps


def sums_up(flow: lesson.Flow) -> None:
    b = flow.s.b
    left, right = st.columns(2, gap="medium")
    with left:
        controls.knob("max_num_seqs", [16, 32, 64, 128, 256])
    with right:
        controls.knob("output_cv", [0.0, 0.5, 1.0, 1.5, 2.0])
    if not flow.revealed:
        lesson.covered(300)
        lesson.end(flow)
        return
    flood = measure(b.but(batching="continuous", arrival="closed", num_clients=2 * b.max_num_seqs, num_requests=40 * b.max_num_seqs, duration_s=3600.0))
    capacity = flood.qps if flood else 10.0
    curves = {}
    for kind in ("static", "continuous"):
        runs = [measure(b.but(batching=kind, request_rate=round(capacity * load, 2))) for load in LOADS]
        curves[kind] = [s for s in runs if s]
    bend = {kind: knee_of(runs) for kind, runs in curves.items()}
    guess = flow.guess_line()
    colours = {"static": "idle", "continuous": "decode"}
    top = 8 * curves["continuous"][0].e2e_p99
    charts.curve(
        t("sweet_spot.chart_knee"),
        [charts.Line([s.qps for s in runs], [s.e2e_p99 for s in runs], colours[k], t(f"sweet_spot.knee_{k}"), dotted=k == "static")
         for k, runs in curves.items()],
        x_title=t("sweet_spot.axis_done"), x_end=capacity * 1.1, y_end=max(top, 3 * curves["static"][0].e2e_p99), height=320,
        events=[(bend[k], t("sweet_spot.knee_mark", qps=bend[k])) for k in curves]
        + ([(bend["static"] * guess[0], guess[1])] if guess else []),
        alt=t("sweet_spot.alt_knee", **bend), key="knee",
    )
    frame.note(t("sweet_spot.knee_says", **bend, ratio=bend["continuous"] / bend["static"]))
    lesson.end(flow, explain=t("sweet_spot.knee_lead", factor=KNEE))


frame.page("sweet")
flow = lesson.begin("sweet_spot", SCENES)
{"climb": climb, "first": experiment, "second": experiment, "map": atlas, "knee": sums_up}[flow.name](flow)
state.publish()
