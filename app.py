"""Start here: static against continuous batching, and where the second gains nothing. Lesson 2.3.1, 2.3.2, 2.3.10."""

import numpy as np
import streamlit as st

from sim.results import Run
from sim.scenario import Scenario
from sim.workload import Requests
from ui import frame, gantt, lesson, series, state, terms
from ui.lesson import Flow, Guess, Scene
from ui.text import change, count, percent, seconds, t

EIGHT = Scenario(
    request_rate=1000, duration_s=1, lengths="fixed", prompt_tokens=64, output_tokens=2000, num_requests=32,
    max_num_seqs=8, max_num_batched_tokens=2048, max_model_len=8192,
)  # output_tokens is what the long one wants
STREAM = Scenario(
    request_rate=6, duration_s=60, prompt_tokens=256, output_tokens=200, output_cv=1.2, max_num_seqs=32,
    max_num_batched_tokens=2048,
)
FEW = Scenario(
    arrival="closed", num_clients=1, duration_s=20, prompt_tokens=256, prompt_cv=0.5, output_tokens=200,
    output_cv=1.0, max_num_seqs=64, max_num_batched_tokens=2048, static_timeout_s=0.0,
)
USERS = (1, 2, 4, 8, 16, 32, 64)
SHORT, LONG_ONE = 100, 7
SCENES = [
    Scene("eight", EIGHT, EIGHT.but(batching="static"), guess=Guess(0.0, 20.0, 0.5, "s")),
    Scene("stream", STREAM, STREAM.but(batching="static"), answers=("same", "half", "quarter")),
    Scene("few", FEW, FEW.but(batching="static"), answers=("none", "bit", "much")),
]


def eight(s: Scenario) -> Run:
    """The lesson's eight and the 24 that wait behind them, all there from the start."""
    output = np.full(max(s.num_requests, LONG_ONE + 1), SHORT)
    output[LONG_ONE] = s.output_tokens
    n = len(output)
    return state.run(s, Requests.of(np.zeros(n), np.full(n, s.prompt_tokens), output), upload="eight")


def last_short(run: Run) -> float:
    """When the last of the short answers is home, s."""
    return float(np.delete(run.finish, LONG_ONE).max())


def pair(b: Scenario) -> tuple[Scenario, Scenario]:
    """B and the same traffic under static batching."""
    return b.but(batching="continuous"), b.but(batching="static")


def draw_eight(flow: Flow) -> None:
    b, a = pair(flow.s.b)
    continuous, static = eight(b), eight(a)
    end_c, end_s = last_short(continuous), last_short(static)
    lesson.bench(flow, claims=[(t(f"start.eight_preset_{k}"), {"output_tokens": n}) for k, n in (
        ("same", 100), ("some", 500), ("lesson", 2000), ("extreme", 4000))])
    if flow.step == "ask":
        st.caption(t("start.eight_lesson"))
    numbers = {"long": f"{b.output_tokens:,}", "static": seconds(end_s), "continuous": seconds(end_c)}
    gains = end_s > 1.3 * end_c
    lanes = [
        gantt.lane(static, t("start.eight_static"), marks=[(end_s, t("start.eight_mark", at=seconds(end_s)))]),
        gantt.lane(
            continuous, t("start.eight_continuous"), cover="" if flow.revealed else t("start.eight_cover"),
            marks=[(end_c, t("start.eight_mark", at=seconds(end_c)))],
        ),
    ]
    gantt.draw(
        lanes, key="gantt", guess=flow.guess_line(), step_s=static.duration_s / (b.output_tokens + 3 * SHORT),
        alt=t("start.eight_alt_hidden" if not flow.revealed else "start.eight_alt" if gains else "start.eight_alt_same", **numbers),
    )
    held = sum(seg.end - seg.start for seg in lanes[0].segments)
    idle = sum(seg.end - seg.start for seg in lanes[0].segments if seg.phase == "idle")
    lesson.end(flow, explain=t(
        "start.eight_explain" if gains else "start.eight_explain_same", ratio=count(end_s / end_c),
        done7=seconds(float(gantt.spoken(static)[1][0])), home7=seconds(float(static.finish[0])), idle=percent(idle / held),
        long_c=seconds(float(continuous.finish[LONG_ONE])),
        long_s=seconds(float(static.finish[LONG_ONE])), **numbers,
    ), then=(t("start.eight_then"), {"output_tokens": SHORT}))


def at_work(run: Run) -> float:
    """Seats that computed something, on average over the run."""
    ticks = run.ticks
    return float(((ticks.decode_seqs + ticks.prefill_seqs) * ticks.duration).sum()) / run.duration_s


def e2e(run: Run) -> np.ndarray:
    """From arrival until the answer is home, s, in ascending order."""
    return np.sort(run.latencies()["e2e"])


def draw_stream(flow: Flow) -> None:
    from ui import charts

    lesson.bench(flow, {"request_rate": [1, 2, 3, 4, 5, 6, 7, 8, 10, 12]}, [
        (t(f"start.stream_preset_{k}"), {"request_rate": r}) for k, r in (("quiet", 1.0), ("busy", 6.0), ("flood", 12.0))])
    b, a = pair(flow.s.b)
    continuous, static = state.run(b), state.run(a)
    took_c, took_s = e2e(continuous), e2e(static)
    p = {name: float(np.quantile(took, share)) for name, took, share in (
        ("p50_s", took_s, 0.5), ("p50_c", took_c, 0.5), ("p99_s", took_s, 0.99), ("p99_c", took_c, 0.99))}
    words = {name: seconds(value) for name, value in p.items()} | {"seats": count(b.max_num_seqs)}
    hidden = "" if flow.revealed else "?"
    left, right = frame.columns(2)
    with left:
        lines = [charts.Line(took_s, np.arange(1, len(took_s) + 1) / len(took_s), "idle", t("start.static"), dotted=True)]
        if flow.revealed:
            share = np.arange(1, len(took_c) + 1) / len(took_c)
            lines.append(charts.Line(took_c, share, "decode", t("start.continuous")))
        charts.curve(
            t("start.stream_done"), lines, x_title=t("start.stream_x"), x_end=float(took_s[-1]) * 1.02, percent=True,
            y_end=1.0, height=lesson.PICTURE, alt=t("start.stream_alt_done", **{**words, **({"p99_c": "?"} if hidden else {})}),
        )
    with right:
        lines = [charts.Line(static.ticks.start, static.ticks.decode_seqs + static.ticks.prefill_seqs, "idle",
                             t("start.static"), dotted=True)]
        if flow.revealed:
            lines.append(charts.Line(continuous.ticks.start, continuous.ticks.decode_seqs + continuous.ticks.prefill_seqs,
                                     "decode", t("start.continuous")))
        charts.timeline(
            t("start.stream_seats", **words), lines, limits=[("max_num_seqs", b.max_num_seqs)], y_end=b.max_num_seqs * 1.1,
            x_end=max(static.duration_s, continuous.duration_s), height=lesson.PICTURE,
            alt=t("start.stream_alt_seats", work_s=count(at_work(static)), work_c=hidden or count(at_work(continuous)), **words),
        )
    lesson.end(flow, explain=t(
        "start.stream_explain", ratio=count(p["p99_s"] / p["p99_c"]), ratio50=count(p["p50_s"] / p["p50_c"]),
        work_s=count(at_work(static)), queue_s=seconds(static.summary().queue_p50), queue_c=seconds(continuous.summary().queue_p50),
        n=count(len(took_c)), end_s=seconds(static.duration_s), end_c=seconds(continuous.duration_s), **words,
    ), then=(t("start.stream_then"), {"request_rate": 1.0}))


def fullest_step(run: Run) -> tuple[int, dict[str, float]]:
    """Of the decode-only steps those with most sequences: how many these are, and what such a step consists of, s by term.

    0 sequences if there is no such step: every answer is a single token, which the prefill gives.
    """
    ticks = run.ticks
    decoding = np.where(ticks.prefill_seqs == 0, ticks.decode_seqs, 0)
    fullest = decoding == decoding.max()
    return int(decoding.max()), {name: float(values[fullest].mean()) for name, values in run.step_time.terms(ticks).items()}


def draw_few(flow: Flow) -> None:
    from ui import charts

    many = {"num_clients": USERS[-1], "output_cv": FEW.output_cv}
    lesson.bench(flow, {"num_clients": USERS}, [
        (t("start.few_preset_1"), many | {"num_clients": 1}), (t("start.few_preset_2"), many | {"num_clients": 2}),
        (t("start.few_preset_64"), many), (t("start.few_preset_equal"), many | {"output_cv": 0.0})])
    now = flow.s.b.num_clients
    users = sorted({*USERS, now})  # a link may bring another number
    at = users.index(now)
    continuous, static = ([state.run(s.but(num_clients=n)) for n in users] for s in pair(flow.s.b))
    qps_c, qps_s = ([run.summary().qps for run in runs] for runs in (continuous, static))
    left, right = frame.columns(2)
    lines = [charts.Line(users, qps_s, "idle", t("start.static"), dotted=True)]
    if flow.revealed:
        lines.append(charts.Line(users, qps_c, "decode", t("start.continuous")))
    with left:
        charts.curve(
            t("start.few_rate"), lines, x_title=t("start.few_x"), x_start=1, x_end=users[-1], log_x=True, y_end=qps_c[-1] * 1.1,
            height=lesson.PICTURE, marks=[(now, (qps_c if flow.revealed else qps_s)[at], "")],
            alt=t("start.few_alt_rate" if flow.revealed else "start.few_alt_static", most=users[-1],
                  gain1=change(qps_c[0], qps_s[0]), gain64=change(qps_c[-1], qps_s[-1])),
        )
    if not flow.revealed:
        with right:
            lesson.covered(lesson.PICTURE)
        return
    steps = [fullest_step(run) for run in continuous]
    if not steps[-1][0]:
        lesson.end(flow, explain=t("start.few_explain_prefill"))
        return
    parts = [("fixed", "idle", ("fixed", "host", "all_reduce")), ("weights", series.STEP_PARTS["linear"][1], ("linear", "experts", "head")),
             ("kv", "kv", ("attention_decode", "attention_prefill"))]
    values = {name: [sum(1e3 * terms.get(k, 0.0) for k in keys) for _, terms in steps] for name, _, keys in parts}
    with right:
        charts.bars(
            t("start.few_step"), [count(n) for n in users],
            [charts.Part(t(f"start.few_{name}"), colour, values[name]) for name, colour, _ in parts], height=lesson.PICTURE,
            alt=t("start.few_alt_step", most=users[-1]),
        )
    alone, crowd = (sum(values[name][i] for name in values) / 1e3 for i in (0, -1))
    draw, most = qps_c[at] < 1.05 * qps_s[at], steps[-1][0]
    lesson.end(flow, explain=t(
        "start.few_explain" if draw else "start.few_explain_gain", users=now, most=most, qps_s=count(qps_s[at]),
        qps_c=count(qps_c[at]), gain=change(qps_c[at], qps_s[at]),
        fixed=seconds(values["fixed"][0] / 1e3), weights=seconds(values["weights"][0] / 1e3), step=seconds(alone),
        step64=seconds(crowd), per64=seconds(crowd / most),
    ), note=lesson.says(t("start.few_honest")) if draw else "", then=(t("start.few_then"), many))


def numbers(scene: str, s: state.State) -> dict[str, str]:
    seats = count(s.b.max_num_seqs)
    if scene == "eight":
        static = eight(s.b.but(batching="static"))
        return {"long": f"{s.b.output_tokens:,}", "static": seconds(last_short(static)), "all": count(len(static.finish)), "seats": seats}
    return {"rate": f"{s.b.request_rate:g}", "users": str(s.b.num_clients), "output": count(s.b.output_tokens), "seats": seats}


with frame.page("start"):
    terms.explain("step", "static_batching", "head_of_line", "seat", "prefill", "e2e", "p99", "max_num_seqs", "cuda_graph", "lesson")
flow = lesson.begin("start", SCENES, numbers)
{"eight": draw_eight, "stream": draw_stream, "few": draw_few}[flow.name](flow)
state.publish()
