"""Experts: a skewed router, whole experts on ranks, weights shared by a batch [lesson 2.3.5]."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import streamlit as st

from sim import catalog, experts, memory
from sim.results import Ticks
from sim.scenario import Scenario, SimError
from sim.step_time import StepTime
from ui import charts, controls, frame, lesson, state
from ui.text import count, percent, seconds, t

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
SKEWS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 1.6)
REDUNDANT = 32
PLACES = {"tp": (False, 0), "ep": (True, 0), "eplb": (True, REDUNDANT)}  # enable_expert_parallel, num_redundant_experts
PARTS = {  # what a bar is made of: terms of the step time, colour
    "experts": (("experts",), "#9A76C4"),
    "linear": (("linear", "head"), "#5E83C2"),
    "attention": (("attention_prefill", "attention_decode"), "kv"),
    "all_reduce": (("all_reduce",), "#D27B2C"),
    "fixed": (("fixed", "host"), "idle"),
}

BASE = Scenario(
    arrival="closed", lengths="fixed", prompt_tokens=768, output_tokens=512, duration_s=600.0, model="Qwen3-235B-A22B",
    gpu="H100-SXM", weights="fp8", tensor_parallel_size=8, enable_expert_parallel=True, max_model_len=4096,
    max_num_seqs=32, num_clients=32, expert_skew=0.8,
)
BUDGETS = (512, 1024, 2048, 4096, 8192, 16384)
SCENES = (
    lesson.Scene("skew", BASE, BASE.but(expert_skew=0.4), ("double", "longer", "same", "shorter")),
    lesson.Scene("batch", BASE.but(max_num_seqs=256), BASE, guess=lesson.Guess(1.0, 8.0, 0.5, "×")),
    lesson.Scene("place", BASE, BASE.but(enable_expert_parallel=False),
                 ("quicker", "same", "slower")),
)


@dataclass(frozen=True)
class Step:
    """One step of a scenario, full to the brim: seconds by part, and what its experts do."""

    scenario: Scenario
    parts: dict[str, float]
    hot: float  # load of the hottest expert / mean
    ranks: Any  # load of each rank / mean
    touched: float  # experts of a layer that the batch touches
    per_token: Any  # s per token at each of BATCHES (nan past the pool)
    room: int  # sequences of this context that the pool holds
    context: int

    @property
    def seconds(self) -> float:
        return sum(self.parts.values())


def measure(s: Scenario, prefill: bool) -> Step:
    """The step of max_num_seqs sequences half-way through their answers, or of max_num_batched_tokens tokens of prompts.

    Raises SimError.
    """
    shape, clock = catalog.model(s.model), StepTime(s)
    context = s.prompt_tokens + s.output_tokens // 2
    ranks = s.tensor_parallel_size * s.data_parallel_size
    if s.enable_expert_parallel:
        load = experts.rank_load(shape, s.expert_skew, ranks, s.num_redundant_experts)
    else:
        load = np.ones(ranks)  # each rank holds a slice of every expert
    room = int((memory.plan(s).num_gpu_blocks - 1) * s.block_size // context)
    tokens = s.max_num_batched_tokens if prefill else s.max_num_seqs
    terms = clock.terms(prefill_tick(clock, tokens, s.prompt_tokens) if prefill else decode_tick(clock, tokens, context))
    per_token = []
    for n in BATCHES:
        fixed, slope, _ = clock.decode(n, n * context)
        per_token.append((fixed + slope * n * context) / n if n <= room else float("nan"))
    return Step(
        s, {p: sum(float(np.sum(terms[n])) for n in names if n in terms) for p, (names, _) in PARTS.items()},
        experts.hot_expert_ratio(shape, s.expert_skew), load / load.mean(),
        experts.distinct_experts(shape, s.expert_skew, tokens), np.array(per_token), room, context,
    )


def decode_tick(clock: StepTime, num_seqs: int, context: int) -> Ticks:
    """One tick in which so many sequences of that context decode and nothing else happens."""
    fixed, slope, _ = clock.decode(num_seqs, num_seqs * context)
    known = {"duration": fixed + slope * num_seqs * context, "running": num_seqs, "decode_seqs": num_seqs,
             "decode_context": num_seqs * context, "sampled": num_seqs}
    return one_tick(known)


def prefill_tick(clock: StepTime, tokens: int, prompt: int) -> Ticks:
    """One tick that reads so many tokens of prompts of that length, whole prompts each."""
    seqs, pairs = max(tokens // prompt, 1), tokens * (min(prompt, tokens) + 1) // 2
    known = {"duration": clock.seconds(0, 0, seqs, tokens, pairs, tokens, seqs), "running": seqs, "prefill_seqs": seqs,
             "prefill_tokens": tokens, "prefill_pairs": pairs, "prefill_context": tokens, "sampled": seqs}
    return one_tick(known)


def one_tick(known: dict[str, float]) -> Ticks:
    return Ticks(**{f.name: np.array([known.get(f.name, 0)]) for f in fields(Ticks)})


def place_of(s: Scenario) -> str:
    return "tp" if not s.enable_expert_parallel else "eplb" if s.num_redundant_experts else "ep"


def place_word(place: str) -> str:
    return t(f"experts.place_{place}", n=REDUNDANT)


def pick_place() -> None:
    key = "w_experts_place"
    st.session_state[key] = place_of(state.current().b)

    def commit() -> None:
        on, copies = PLACES[st.session_state[key]]
        state.change(enable_expert_parallel=on, num_redundant_experts=copies)

    st.segmented_control(
        t("experts.knob_place"), list(PLACES), format_func=place_word, key=key, on_change=commit, required=True,
        help=t("experts.place_help"),
    )


def signed(ratio: float) -> str:
    """A change in percent with its sign."""
    return f"{ratio - 1:+.0%}" if abs(ratio - 1) >= 0.0995 else f"{ratio - 1:+.1%}"


frame.page("experts")
flow = lesson.begin("experts", SCENES)
b, a = flow.s.b, flow.s.a
prefill = flow.name == "place"  # a decode step waits for memory, where a hot rank costs little

left, middle, right = st.columns([3, 3, 5], gap="medium")
with left:
    controls.knob("expert_skew", list(SKEWS), label=t("experts.knob_skew"))
with middle:
    if prefill:
        controls.knob("max_num_batched_tokens", list(BUDGETS), label=t("experts.knob_tokens"))
    else:
        controls.knob("max_num_seqs", list(BATCHES), label=t("experts.knob_batch"))
with right:
    pick_place()

try:
    now, before = measure(b, prefill), measure(a, prefill)
except SimError as error:
    state.explain(error, {})
    state.publish()
    st.stop()
shape = catalog.model(b.model)
names = ["A", "B"] if flow.s.compared else ["B"]
steps = [before, now] if flow.s.compared else [now]


def draw_load() -> None:
    order = np.arange(1, shape.experts + 1)
    lines = []
    for step, word in zip(steps, names, strict=True):
        load = experts.expert_load(shape, step.scenario.expert_skew)
        colour = "idle" if word == "A" and len(steps) > 1 else "decode"
        lines.append(charts.Line(order, load / load.mean(), colour, word, dotted=colour == "idle", fill=colour != "idle", steps=True))
    charts.curve(
        t("experts.chart_load"), lines, x_title=t("experts.axis_expert"), x_start=1, x_end=shape.experts,
        limits=[(t("experts.mean"), 1.0)], marks=[(3, now.hot, t("experts.hot", hot=now.hot))] if now.hot > 1.01 else [],
        alt=t("experts.alt_load", experts=shape.experts, hot=now.hot), key="load",
    )


def draw_ranks() -> None:
    charts.bars(
        t("experts.chart_rank"), [str(i) for i in range(len(now.ranks))],
        [charts.Part("", "decode", list(now.ranks))], limits=[(t("experts.mean"), 1.0)], words=lambda v: f"{v:.2f}",
        alt=t("experts.alt_rank", ranks=len(now.ranks), rank=float(now.ranks.max())), key="ranks",
    )


def draw_step() -> None:
    parts = [charts.Part(t(f"experts.part_{p}"), colour, [s.parts[p] * 1e3 for s in steps]) for p, (_, colour) in PARTS.items()]
    guess = flow.guess_line() if flow.name == "batch" else None
    charts.bars(
        t("experts.chart_prefill" if prefill else "experts.chart_step"), names, parts, words=lambda v: f"{v:.1f}" if v > 120 * max(s.seconds for s in steps) else "",
        limits=[(guess[1], guess[0] * before.seconds * 1e3)] if guess else [],
        alt=t("experts.alt_step", before=seconds(before.seconds), after=seconds(now.seconds)), key="step",
    )


def draw_amortised() -> None:
    lines = [charts.Line(BATCHES, step.per_token * 1e3, "idle" if word == "A" and len(steps) > 1 else "#9A76C4", word,
                         dotted=word == "A" and len(steps) > 1) for step, word in zip(steps, names, strict=True)]
    last = int(np.flatnonzero(np.isfinite(now.per_token))[-1])
    marks = [] if prefill else [(b.max_num_seqs, now.seconds / b.max_num_seqs * 1e3, "B")]
    if now.room <= BATCHES[-1]:  # marked where the line ends
        marks.append((BATCHES[last], now.per_token[last] * 1e3, t("experts.pool_full", n=count(now.room))))
    charts.curve(
        t("experts.chart_amortised"), lines, x_title=t("experts.axis_batch"), log_x=True, log_y=True, x_start=1,
        x_end=BATCHES[-1], marks=marks,
        alt=t("experts.alt_amortised", one=seconds(now.per_token[0]), many=seconds(float(np.nanmin(now.per_token))), n=BATCHES[int(np.nanargmin(now.per_token))]),
        key="amortised",
    )


top, bottom = frame.columns(2), frame.columns(2)
with top[0]:
    draw_load()
with top[1]:
    draw_step() if flow.revealed else lesson.covered(210)
if flow.revealed:
    with bottom[0]:
        draw_ranks()
    with bottom[1]:
        draw_amortised()

explain = []
if flow.revealed:
    ratio = now.seconds / before.seconds
    change = signed(ratio)
    verdict = "longer" if ratio > 1.03 else "shorter" if ratio < 0.97 else "same"
    told = dict(before=seconds(before.seconds), after=seconds(now.seconds), change=change, rank=float(now.ranks.max()),
                rank_before=float(before.ranks.max()), hot=now.hot, touched_before=before.touched, touched_after=now.touched,
                experts=shape.experts)
    if flow.name == "batch":
        frame.note(t(
            "experts.batch_reveal", n_before=a.max_num_seqs, n_after=b.max_num_seqs, tokens=b.max_num_seqs / a.max_num_seqs, ratio=ratio,
            token_before=seconds(before.seconds / a.max_num_seqs), token_after=seconds(now.seconds / b.max_num_seqs), **told,
        ))
    elif flow.name == "place":
        frame.note(t("experts.place_reveal", a=place_word(place_of(a)), b=place_word(place_of(b)), **told))
    else:
        frame.note(t(f"experts.reveal_{verdict}", low=a.expert_skew, high=b.expert_skew, **told))
    changes = {p: now.parts[p] - before.parts[p] for p in PARTS}
    most = max(changes, key=lambda p: abs(changes[p]))
    explain.append(t(
        "experts.changed_against", change=change, part=t(f"experts.part_{most}"), before=seconds(before.parts[most]),
        after=seconds(now.parts[most]), share=percent(now.parts["experts"] / now.seconds),
    ))
    if flow.name == "skew":
        explain.append(t("experts.two_forces"))
    if flow.name == "batch":
        gain = [k for k in range(1, len(BATCHES)) if now.per_token[k] > 0.9 * now.per_token[k - 1]]
        if gain:
            explain.append(t("experts.flat", n=BATCHES[gain[0] - 1]))
        explain.append(t("experts.bound_pool", pool=now.room * now.context, context=now.context, seqs=now.room))
        explain.append(t("experts.bound_fixed", fixed=seconds(now.parts["fixed"]), batch=b.max_num_seqs,
                         share=now.parts["fixed"] / now.seconds))
    if flow.name == "place":
        ranks = b.tensor_parallel_size * b.data_parallel_size
        explain.append(f"{t('experts.lesson_says')} " + t(
            "experts.lesson_but", n=REDUNDANT, ep=experts.rank_imbalance(shape, b.expert_skew, ranks),
            eplb=experts.rank_imbalance(shape, b.expert_skew, ranks, REDUNDANT),
        ))
    explain.append(frame.badge("today") + " " + t("experts.ep_today"))


def more() -> None:
    lesson.presets([
        *([] if prefill else [(t("experts.try_small_batch"), {"max_num_seqs": 8}), (t("experts.try_big_batch"), {"max_num_seqs": 512})]),
        (t("experts.try_skew"), {"expert_skew": 1.6}),
        (t("experts.try_ep"), {"enable_expert_parallel": True, "num_redundant_experts": 0}),
        (t("experts.try_eplb"), {"enable_expert_parallel": True, "num_redundant_experts": REDUNDANT}),
    ], key="experts")


lesson.end(flow, explain="\n\n".join(explain))
if flow.step == "next":
    more()
state.publish()
