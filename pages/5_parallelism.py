"""Eight GPUs: one engine over all of them, or copies side by side [lesson 2.3.11]."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import streamlit as st

from sim import catalog, link
from sim.engine import simulate
from sim.results import Summary
from sim.scenario import Scenario, SimError
from ui import charts, controls, frame, lesson, state
from ui.text import count, percent, seconds, t

GPUS = 8
LAYOUTS = (1, 2, 4, 8)  # tensor_parallel_size; the cards that are left make copies
USERS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
MODELS = (("Llama-3.1-8B", "H100-SXM"), ("Qwen3-32B", "H100-SXM"), ("Llama-3.1-70B", "H200"), ("DeepSeek-V4-Flash", "H200"))
PARTS = {  # what a bar is made of: terms of the step time, colour
    "linear": (("linear", "head"), "#5E83C2"),
    "experts": (("experts",), "#9A76C4"),
    "attention": (("attention_prefill", "attention_decode"), "kv"),
    "all_reduce": (("all_reduce",), "#D27B2C"),
    "fixed": (("fixed", "host"), "idle"),
}
LINES = {1: "#6E9B3C", 2: "#5E83C2", 4: "#D27B2C", 8: "kv"}

BASE = Scenario(
    arrival="closed", lengths="fixed", prompt_tokens=512, output_tokens=128, duration_s=3600.0, model="Llama-3.1-8B",
    gpu="H100-SXM", max_model_len=4096, max_num_seqs=256, num_clients=256, num_requests=1024, tensor_parallel_size=2,
    data_parallel_size=4, enable_prefix_caching=False,
)
ONE = BASE.but(tensor_parallel_size=8, data_parallel_size=1)
SCENES = (
    lesson.Scene("layout", BASE, ONE, ("8x1", "4x2", "2x4", "1x8")),
    lesson.Scene("alone", ONE.but(num_clients=1, num_requests=4), BASE.but(num_clients=1, num_requests=4),
                 guess=lesson.Guess(1.0, 8.0, 0.5, "×")),
    lesson.Scene("kv", ONE, BASE.but(tensor_parallel_size=1, data_parallel_size=8), ("same", "eight", "more")),
)


@dataclass(frozen=True)
class Figures:
    """One layout under one load: the run's summary, its mean step by part (s), its pool (tokens)."""

    scenario: Scenario
    summary: Summary
    parts: dict[str, float]
    engine_tokens: int

    @property
    def all_tokens(self) -> int:
        return self.engine_tokens * self.scenario.data_parallel_size

    @property
    def step(self) -> float:
        return sum(self.parts.values())

    @property
    def cost(self) -> float:
        return catalog.cost_per_million(self.scenario, self.summary.output_tok_s)


def laid_out(scenario: Scenario, tp: int, users: int) -> Scenario:
    """The scenario on eight cards cut into engines of `tp`, with so many users and four requests of each."""
    return scenario.but(
        tensor_parallel_size=tp, data_parallel_size=GPUS // tp, num_clients=users, num_requests=4 * users
    )


@st.cache_resource(max_entries=400, show_spinner=False)
def measure(key: str, _scenario: Scenario) -> Figures | str:
    """The figures of a run; where it cannot start, why not. `key` says all of the scenario."""
    try:
        run = simulate(_scenario)
    except SimError as error:
        return state.message(error)
    terms = run.step_time.terms(run.ticks)
    steps = max(len(run.ticks), 1)
    parts = {p: sum(float(np.sum(terms[n])) for n in names if n in terms) / steps for p, (names, _) in PARTS.items()}
    return Figures(_scenario, run.summary(), parts, (run.num_gpu_blocks - 1) * _scenario.block_size)


def look(scenario: Scenario, tp: int, users: int) -> Figures | str:
    one = laid_out(scenario, tp, users)
    return measure("&".join(link.encode(one).values()) + frame_language(), one)


def frame_language() -> str:
    return state.language()  # a refusal is cached in the visitor's words


def name(tp: int) -> str:
    return t("parallelism.layout_one", tp=tp) if tp == GPUS else t("parallelism.layout", dp=GPUS // tp, tp=tp)


def crossings(users: Any, lines: dict[int, Any]) -> list[tuple[int, int, float]]:
    """Where two layouts' TPOT lines cross for the last time: (tp, tp, users), between neighbouring points on a log axis."""
    found = []
    tps = sorted(lines)
    for i, one in enumerate(tps):
        for other in tps[i + 1 :]:
            gap = np.log(np.asarray(lines[one])) - np.log(np.asarray(lines[other]))
            turn = np.flatnonzero(gap[:-1] * gap[1:] < 0)
            if len(turn):
                k = int(turn[-1])
                share = gap[k] / (gap[k] - gap[k + 1])
                found.append((one, other, float(np.exp(np.interp(share, [0, 1], np.log([users[k], users[k + 1]]))))))
    return found


def pick_model() -> None:
    b = state.current().b
    here = (b.model, b.gpu)
    options = list(MODELS) if here in MODELS else [*MODELS, here]
    st.session_state["w_parallel_model"] = here

    def commit() -> None:
        model, gpu = st.session_state["w_parallel_model"]
        state.change(model=model, gpu=gpu)

    st.selectbox(
        t("parallelism.knob_model"), options, format_func=lambda o: f"{o[0]} · {o[1]}", key="w_parallel_model",
        on_change=commit, filter_mode=None,
    )


frame.page("parallel")
flow = lesson.begin("parallelism", SCENES)
b, a = flow.s.b, flow.s.a
shape = catalog.model(b.model)

left, middle, right = st.columns([5, 3, 4], gap="medium")
with left:
    controls.knob("num_clients", list(USERS), label=t("parallelism.knob_users"))
with middle:
    controls.choice("link", label=t("parallelism.knob_link"))
with right:
    pick_model()

users = b.num_clients
seen = {tp: look(b, tp, users) for tp in LAYOUTS}
fit = {tp: f for tp, f in seen.items() if not isinstance(f, str)}
for tp, why in seen.items():
    if isinstance(why, str):
        st.caption(t("parallelism.refused", layout=name(tp), reason=why))
if not fit:
    state.publish()
    st.stop()

names = [name(tp) for tp in fit]
best = max(fit, key=lambda tp: fit[tp].summary.output_tok_s)
worst = min(fit, key=lambda tp: fit[tp].summary.output_tok_s)
fast = min(fit, key=lambda tp: fit[tp].summary.tpot_mean)
slow = max(fit, key=lambda tp: fit[tp].summary.tpot_mean)
roomy = max(fit, key=lambda tp: fit[tp].all_tokens)
widest = fit[max(fit)]


def draw_rate() -> None:
    charts.bars(
        t("parallelism.chart_cost"), names,
        [charts.Part("", "decode", [f.summary.output_tok_s for f in fit.values()])], words=lambda v: f"{v:,.0f}",
        alt=t("parallelism.alt_cost", users=users, best=name(best)), key="rate",
    )


def draw_steps() -> None:
    parts = [
        charts.Part(t(f"parallelism.part_{p}"), colour, [f.parts[p] * 1e3 for f in fit.values()])
        for p, (_, colour) in PARTS.items() if any(f.parts[p] > 0 for f in fit.values())
    ]
    charts.bars(
        t("parallelism.chart_step"), names, parts, key="steps",
        alt=t("parallelism.alt_step", slow_layout=name(min(fit)), slow=seconds(fit[min(fit)].step),
              fast_layout=name(max(fit)), fast=seconds(widest.step), comm=percent(widest.parts["all_reduce"] / widest.step)),
    )


def draw_kv() -> None:
    one = [f.engine_tokens / 1e3 for f in fit.values()]
    rest = [(f.all_tokens - f.engine_tokens) / 1e3 for f in fit.values()]
    charts.bars(
        t("parallelism.chart_kv"), names,
        [charts.Part(t("parallelism.kv_engine"), "kv", one), charts.Part(t("parallelism.kv_others"), "idle", rest)],
        words=lambda v: f"{v:,.0f}", alt=t("parallelism.alt_kv", best=name(roomy)), key="kv",
    )


def draw_tpot() -> list[tuple[int, int, float]]:
    lines = {}
    for tp in fit:
        row = [look(b, tp, n) for n in USERS]
        if not any(isinstance(f, str) for f in row):
            lines[tp] = [f.summary.tpot_mean * 1e3 for f in row]  # type: ignore[union-attr]
    cross = crossings(USERS, lines)
    words = "; ".join(t("parallelism.crossing", a=name(p), b=name(q), users=n) for p, q, n in cross)
    drawn = [charts.Line(USERS, y, LINES[tp], name(tp)) for tp, y in lines.items()]
    guess = flow.guess_line() if flow.name == "alone" else None
    limits = [(guess[1], lines[min(lines)][0] / guess[0])] if guess and lines else []
    charts.curve(
        t("parallelism.chart_tpot"), drawn, x_title=t("parallelism.axis_users"), log_x=True, x_start=1, x_end=256,
        marks=[(n, float(np.interp(np.log(n), np.log(USERS), lines[p])), count(round(n))) for p, q, n in cross if q == max(fit)],
        limits=limits,
        alt=t("parallelism.alt_tpot", crossings=words or t("parallelism.no_crossing")), key="tpot",
    )
    return cross


top, bottom = frame.columns(2), frame.columns(2)
cross: list[tuple[int, int, float]] = []
hidden = not flow.revealed
with top[0]:
    draw_kv() if flow.name == "layout" or not hidden else draw_steps() if flow.name == "kv" else lesson.covered(210)
with top[1]:
    draw_rate() if not hidden else lesson.covered(210)
if not hidden:
    with bottom[0]:
        draw_steps()
    with bottom[1]:
        cross = draw_tpot()

explain = []
if not hidden:
    if flow.name == "layout":
        frame.note(t(
            "parallelism.reveal", users=users, best=name(best), best_rate=fit[best].summary.output_tok_s,
            best_tpot=seconds(fit[best].summary.tpot_mean), best_cost=fit[best].cost, worst=name(worst),
            worst_rate=fit[worst].summary.output_tok_s, worst_tpot=seconds(fit[worst].summary.tpot_mean), worst_cost=fit[worst].cost,
        ))
        explain.append(t("parallelism.price", price=catalog.gpu(b.gpu).price).replace("$", r"\$"))
    elif flow.name == "alone":
        frame.note(t(
            "parallelism.fastest", users=users, fast=name(fast), fast_tpot=seconds(fit[fast].summary.tpot_mean), slow=name(slow),
            slow_tpot=seconds(fit[slow].summary.tpot_mean), gpus=GPUS,
            ratio=fit[slow].summary.tpot_mean / fit[fast].summary.tpot_mean,
        ))
        crowd = {tp: look(b, tp, USERS[-1]).summary.tpot_mean for tp in (min(fit), max(fit))}
        explain.append(t("parallelism.lesson_size", one=name(min(fit)), tp1=seconds(crowd[min(fit)]), all=name(max(fit)),
                         tp8=seconds(crowd[max(fit)])))
        explain.append(frame.badge("history") + " " + t("parallelism.history_host"))
    else:
        first, last = fit[min(fit)], widest
        frame.note(t(
            "parallelism.lesson_today", first=count(first.engine_tokens), last=count(last.engine_tokens), tp_first=min(fit), tp_last=max(fit),
            ratio=last.engine_tokens / max(first.engine_tokens, 1), cards=max(fit) // min(fit),
            card_first=count(first.engine_tokens / min(fit)), card_last=count(last.engine_tokens / max(fit)),
        ))
        explain.append(f"**{t('parallelism.lesson_says')}**")
        explain.append(
            t("parallelism.lesson_right_mla", model=shape.name) if shape.is_mla
            else t("parallelism.lesson_right_heads", model=shape.name, heads=shape.kv_heads)
        )
    explain.append(t("parallelism.comm", layout=name(max(fit)), comm=seconds(widest.parts["all_reduce"]), step=seconds(widest.step),
                     share=widest.parts["all_reduce"] / widest.step))
    explain += [t("parallelism.crossing_note", crossings="; ".join(
        t("parallelism.crossing", a=name(p), b=name(q), users=n) for p, q, n in cross))] if cross else []
    changed = [measure("&".join(link.encode(s).values()) + frame_language(), s) for s in (laid_out(x, x.tensor_parallel_size, x.num_clients) for x in (a, b))]
    if flow.s.compared and not any(isinstance(f, str) for f in changed):
        before, after = changed
        explain.append(t(
            "parallelism.changed_against", a=f"{a.data_parallel_size} × TP{a.tensor_parallel_size}", users_a=a.num_clients,
            b=f"{b.data_parallel_size} × TP{b.tensor_parallel_size}", users_b=users,
            rate=f"{count(before.summary.output_tok_s)} → {count(after.summary.output_tok_s)}",
            tpot=f"{seconds(before.summary.tpot_mean)} → {seconds(after.summary.tpot_mean)}",
            kv=f"{count(before.all_tokens)} → {count(after.all_tokens)}",
        ))


def more() -> None:
    lesson.presets([
        (t("parallelism.try_one"), {"num_clients": 1, "num_requests": 4}),
        (t("parallelism.try_many"), {"num_clients": 256, "num_requests": 1024}),
        (t("parallelism.try_pcie"), {"link": "pcie"}),
        (t("parallelism.try_nvlink"), {"link": "nvlink"}),
        (t("parallelism.try_mla"), {"model": "DeepSeek-V4-Flash", "gpu": "H200"}),
    ], key="parallel")


lesson.end(flow, explain="\n\n".join(explain))
if flow.step == "next":
    more()
state.publish()
