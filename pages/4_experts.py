"""Experts: a skewed router, whole experts on cards, weights shared by a batch [lesson 2.3.5]."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import numpy as np
import streamlit as st

from sim import catalog, experts, memory
from sim.results import Ticks
from sim.scenario import Scenario, SimError
from sim.step_time import StepTime
from ui import charts, controls, frame, lesson, series, state, terms
from ui.text import change, count, joined, percent, seconds, t

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
BUDGETS = (512, 1024, 2048, 4096, 8192, 16384)
SKEWS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 1.6)
REDUNDANT = 32
PLACES = {"tp": (False, 0), "ep": (True, 0), "eplb": (True, REDUNDANT)}  # enable_expert_parallel, num_redundant_experts
HOTTEST, BRICKS = "#C2410C", ("#9A76C4", "#B79CD6")
EVEN = 1.05  # load of the fullest card over the mean up to which no card waits for another
MOST_BRICKS = 24  # experts of a card drawn one by one; what lies above is one brick

BASE = Scenario(
    arrival="closed", lengths="fixed", prompt_tokens=768, output_tokens=512, duration_s=600.0, model="Qwen3-235B-A22B",
    gpu="H100-SXM", weights="fp8", tensor_parallel_size=8, enable_expert_parallel=True, max_model_len=4096,
    max_num_seqs=32, num_clients=32, expert_skew=0.8,
)
ONE_CARD = {"model": "Qwen3-30B-A3B", "weights": "bf16", "tensor_parallel_size": 1, "enable_expert_parallel": False}
SCENES = (
    lesson.Scene("skew", BASE, BASE.but(expert_skew=0.4), ("double", "longer", "same", "shorter")),
    lesson.Scene("batch", BASE.but(max_num_seqs=256), BASE, guess=lesson.Guess(1.0, 8.0, 0.5, "×")),
    lesson.Scene("place", BASE, BASE.but(enable_expert_parallel=False), ("quicker", "same", "slower"), about=("num_redundant_experts",)),
)


@dataclass(frozen=True)
class Step:
    """Steps of a scenario: the one that it is about, and decode steps of every size in BATCHES.

    Decoding sequences are half-way through their answers; a prefill step reads whole prompts.
    """

    scenario: Scenario
    parts: dict[str, float]  # s of series.STEP_PARTS
    by_batch: dict[str, Any]  # the same for each of BATCHES
    touched: float  # experts of a layer that the step reads
    card_reads: float  # and of them the card that reads most, copies included
    room: int  # sequences that the pool holds
    context: int  # tokens of each

    @property
    def seconds(self) -> float:
        return sum(self.parts.values())

    def decode_s(self) -> Any:
        """s of the decode step of each of BATCHES."""
        return sum(self.by_batch.values())

    def speed(self) -> Any:
        """Tokens per s with each of BATCHES allowed: what the pool does not hold only waits."""
        in_pool = np.interp(self.room, BATCHES, self.decode_s())
        return np.where(np.array(BATCHES) <= self.room, BATCHES / self.decode_s(), self.room / in_pool)

    def cards(self) -> list[Any]:
        """For each card the loads of its experts (mean of the cards' sums: 1): the hottest one's (0: not here), the others'."""
        s, shape = self.scenario, catalog.model(self.scenario.model)
        ranks = s.tensor_parallel_size * s.data_parallel_size
        if s.enable_expert_parallel:
            held = zip(
                experts.holders(shape, s.expert_skew, ranks, s.num_redundant_experts),
                experts.placed(shape, s.expert_skew, ranks, s.num_redundant_experts), strict=True,
            )
        else:  # every card holds a slice of each expert
            held = zip([np.arange(shape.experts)] * ranks, [experts.expert_load(shape, s.expert_skew) / ranks] * ranks, strict=True)
        unit = shape.experts_per_token / ranks
        return [np.append(load[who == 0].sum(), np.sort(load[who > 0])[::-1]) / unit for who, load in held]

    def fullest(self) -> float:
        """Load of the fullest card over the mean."""
        return max(float(card.sum()) for card in self.cards())


def measure(s: Scenario, prefill: bool) -> Step:
    """The step of max_num_seqs sequences, or of max_num_batched_tokens tokens of prompts. Raises SimError."""
    shape, clock, ranks = catalog.model(s.model), StepTime(s), s.tensor_parallel_size * s.data_parallel_size
    context = s.prompt_tokens + s.output_tokens // 2
    tokens = s.max_num_batched_tokens if prefill else s.max_num_seqs
    one = prefill_ticks(tokens, s.prompt_tokens) if prefill else decode_ticks([tokens], context)
    return Step(
        s, {part: float(values[0]) for part, values in series.step_parts(clock, one).items()},
        series.step_parts(clock, decode_ticks(BATCHES, context)), experts.distinct_experts(shape, s.expert_skew, tokens),
        float(experts.rank_distinct(shape, s.expert_skew, tokens, ranks, s.num_redundant_experts).max()),
        int((memory.plan(s).num_gpu_blocks - 1) * s.block_size // context), context,
    )


def decode_ticks(sizes: Any, context: int) -> Ticks:
    """Ticks in which so many sequences of that context decode and nothing else happens."""
    n = np.asarray(sizes)
    return ticks(decode_seqs=n, decode_context=n * context, sampled=n)


def prefill_ticks(tokens: int, prompt: int) -> Ticks:
    """One tick that reads so many tokens of prompts of that length."""
    seqs, pairs = max(tokens // prompt, 1), tokens * (min(prompt, tokens) + 1) // 2
    known = {"prefill_seqs": seqs, "prefill_tokens": tokens, "prefill_pairs": pairs, "prefill_context": tokens, "sampled": seqs}
    return ticks(**{name: np.array([value]) for name, value in known.items()})


def ticks(**known: Any) -> Ticks:
    nothing = np.zeros_like(known["sampled"])
    return Ticks(**{f.name: known.get(f.name, nothing) for f in fields(Ticks)})


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


def arrow(before: float, after: float, digits: int) -> str:
    """"1.12 → 1.61"; the figure alone where it stays."""
    return " → ".join(dict.fromkeys(f"{v:.{digits}f}" for v in (before, after)))


with frame.page("experts"):
    terms.explain("expert", "hot_expert", "expert_skew", "enable_expert_parallel", "num_redundant_experts", "step", "prefill", "seat",
                  "kv_pool", "max_num_seqs", "max_num_batched_tokens", "async_scheduling", "cuda_graph")
flow = lesson.begin("experts", SCENES, isolate=True)
b, a = flow.s.b, flow.s.a
prefill = flow.name == "place"  # a decode step waits for memory, where a hot rank costs little

whole, copies = ({"enable_expert_parallel": on, "num_redundant_experts": n} for on, n in (PLACES["ep"], PLACES["eplb"]))
size = ("max_num_batched_tokens", BUDGETS, "tokens") if prefill else ("max_num_seqs", BATCHES, "batch")
small, big = (t("experts.try_small_batch"), {"max_num_seqs": 8}), (t("experts.try_big_batch"), {"max_num_seqs": 1024})
skewed = (t("experts.try_skew"), {"expert_skew": 1.6})
lesson.bench(flow, {
    "expert_skew": partial(controls.knob, "expert_skew", SKEWS, label=t("experts.knob_skew")),
    size[0]: partial(controls.knob, size[0], size[1], label=t(f"experts.knob_{size[2]}")), "num_redundant_experts": pick_place,
}, {
    "skew": [skewed, big, (t("experts.try_eplb"), copies)],
    "batch": [small, big, (t("experts.try_sync"), {"async_scheduling": False}), (t("experts.try_one_card"), ONE_CARD)],
    "place": [(t("experts.try_even"), {"expert_skew": 0.0}), skewed, (t("experts.try_ep"), whole), (t("experts.try_eplb"), copies)],
}[flow.name])

try:
    now, before = measure(b, prefill), measure(a, prefill)
except SimError as error:
    state.explain(error, {})
    state.publish()
    st.stop()
shape = catalog.model(b.model)
if not shape.experts:
    st.info(t("playground.dense"))
    state.publish()
    st.stop()
names, shown = (["A", "B"], [before, now]) if flow.s.compared else (["B"], [now])


def draw_load() -> None:
    order = np.arange(1, shape.experts + 1)
    lines = []
    for step, word in zip(shown, names, strict=True) if flow.revealed else [(before, "A")]:
        mine = word == "B" or not flow.revealed
        if not mine and step.scenario.expert_skew == b.expert_skew:
            continue
        load = experts.expert_load(shape, step.scenario.expert_skew)
        lines.append(charts.Line(order, load / load.mean(), BRICKS[0] if mine else "idle", word, dotted=not mine, fill=mine, steps=True))
    hot = experts.hot_expert_ratio(shape, (b if flow.revealed else a).expert_skew)
    charts.curve(
        t("experts.chart_load"), lines, x_title=t("experts.axis_expert"), x_start=1, x_end=shape.experts, log_x=True,
        limits=[(t("experts.mean"), 1.0)], height=lesson.PICTURE,
        alt=t("experts.alt_load", experts=shape.experts, hot=hot), key="load",
    )


def draw_cards(step: Step) -> None:
    cards = [np.append(c[:MOST_BRICKS], c[MOST_BRICKS:].sum()) for c in step.cards()]
    stack = np.zeros((len(cards), max(map(len, cards))))
    for row, card in zip(stack, cards, strict=True):
        row[: len(card)] = card
    parts = [charts.Part("", HOTTEST if k == 0 else BRICKS[k % 2], stack[:, k]) for k in range(stack.shape[1])]
    full = step.fullest()
    limits = [(t("experts.mean"), 1.0), *([(t("experts.fullest"), full)] if full > 1.15 else [])]
    charts.bars(
        t("experts.chart_cards"), [str(n) for n in range(len(cards))], parts, limits=limits, height=lesson.PICTURE,
        alt=t("experts.alt_cards", ranks=len(cards), rank=full, holders=int((stack[:, 0] > 0).sum())), key="cards",
    )


def draw_step() -> None:
    alone = not flow.revealed
    bars_of = [before] if alone else shown
    slowest = max(step.seconds for step in bars_of)
    charts.bars(
        t("experts.chart_prefill" if prefill else "experts.chart_step"), ["A"] if alone else names,
        [charts.Part(t(f"settings.term.{p}"), colour, [step.parts[p] * 1e3 for step in bars_of]) for p, (_, colour) in series.STEP_PARTS.items()],
        words=lambda v: f"{v:.1f}" if v > 170 * slowest else "", height=lesson.PICTURE, key="step",
        alt=t("experts.alt_step", before=seconds(before.seconds), after=seconds(bars_of[-1].seconds)),
    )


def draw_by_batch() -> None:
    guess = flow.guess_line()
    sizes = BATCHES[: BATCHES.index(512) + 1]
    charts.stacked(
        t("experts.chart_batch"),
        [charts.Line(sizes, now.by_batch[p][: len(sizes)] * 1e3, colour, t(f"settings.term.{p}"))
         for p, (_, colour) in series.STEP_PARTS.items()],
        x_title=t("experts.axis_batch"), log_x=True, x_start=1, x_end=sizes[-1], height=lesson.PICTURE,
        marks=[(step.scenario.max_num_seqs, step.seconds * 1e3, word) for step, word in zip(shown, names, strict=True)
               if step.scenario.max_num_seqs <= sizes[-1]],
        limits=[(guess[1], guess[0] * before.seconds * 1e3)] if guess else [],
        alt=t("experts.alt_batch", one=seconds(now.decode_s()[0]), many=seconds(now.decode_s()[len(sizes) - 1]), n=sizes[-1]),
        key="by_batch",
    )


def draw_speed() -> None:
    batch = flow.name == "batch"  # there A and B are two places on one line
    lines = [charts.Line(BATCHES, step.speed(), "idle" if word == "A" else "decode", "" if batch else word, dotted=word == "A")
             for step, word in zip(shown, names, strict=True) if not batch or step is now]
    marks = [(step.scenario.max_num_seqs, speed(step), word)
             for step, word in zip(shown, names, strict=True)]
    full = [(t("experts.pool_full", n=count(now.room)), float(now.speed()[-1]))] if now.room <= BATCHES[-1] else []
    charts.curve(
        t("experts.chart_speed"), lines, x_title=t("experts.axis_seats"), log_x=True, x_start=1, x_end=BATCHES[-1], height=lesson.PICTURE,
        marks=marks if batch else [], limits=full,
        alt=t("experts.alt_speed", one=count(now.speed()[0]), many=count(now.speed()[-1]), room=now.room), key="speed",
    )


def ask() -> None:
    """The picture before the answer: how things stand."""
    with top[0]:
        draw_step() if flow.name == "batch" else draw_load()
    with top[1]:
        lesson.covered() if flow.name == "batch" else draw_cards(before)


def told() -> str:
    """What happened to the step against A, and why."""
    if not flow.s.compared:
        return t("lesson.same")
    ratio = now.seconds / before.seconds
    said = [t(
        f"experts.{flow.name}_reveal", before=seconds(before.seconds), after=seconds(now.seconds), change=change(now.seconds, before.seconds),
        low=a.expert_skew, high=b.expert_skew, a=place_word(place_of(a)), b=place_word(place_of(b)), ratio=ratio,
        n_before=a.max_num_seqs, n_after=b.max_num_seqs, tokens=b.max_num_seqs / a.max_num_seqs, speed_before=count(speed(before)),
        speed_after=count(speed(now)), touched=arrow(before.touched, now.touched, 0), experts=shape.experts,
        rank=arrow(before.fullest(), now.fullest(), 2),
    )]
    if flow.name == "skew":
        fuller, fewer = now.fullest() > 1.01 * before.fullest(), now.touched < 0.99 * before.touched
        why = ("even" if max(now.fullest(), before.fullest()) < EVEN else "hot" if ratio > 1.03 and fuller else
               "fewer" if ratio < 0.97 and fewer else "neither" if 0.97 <= ratio <= 1.03 else "")
        said.append(t(f"experts.why_{why}") if why else "")
    elif flow.name == "place":
        even = now.seconds if now.fullest() < EVEN else measure(b.but(expert_skew=0.0), prefill).seconds
        if even < 0.97 * before.seconds:
            said.append(t(f"experts.why_{'whole' if even < now.seconds else 'whole_even'}", even=seconds(even), rank=now.fullest()))
    if not prefill and b.max_num_seqs > now.room:
        said.append(t("experts.pool_short", room=now.room))
    return joined([*said, copied() if b.num_redundant_experts else ""])


def speed(step: Step) -> float:
    """Tokens per s with the scenario's own max_num_seqs."""
    return float(np.interp(step.scenario.max_num_seqs, BATCHES, step.speed()))


def copied() -> str:
    """What the copies of hot experts give in this step and what they cost."""
    bare = measure(b.but(num_redundant_experts=0), prefill)
    return t(
        "experts.copied", before=seconds(bare.seconds), after=seconds(now.seconds), change=change(now.seconds, bare.seconds),
        reads=arrow(bare.card_reads, now.card_reads, 1), room=arrow(bare.room, now.room, 0),
    )


def hot_cost() -> str:
    """What the skew costs a decode step and a prefill step, against a router without favourites."""
    if now.fullest() < EVEN:
        return t("experts.hot_even")
    ratio, words = {}, {}
    for what in ("decode", "prefill"):
        even, skewed = (measure(s, what == "prefill").seconds for s in (b.but(expert_skew=0.0), b))
        ratio[what] = skewed / even
        words |= {f"{what}_even": seconds(even), f"{what}_skewed": seconds(skewed), f"{what}_change": change(skewed, even)}
    where = "prefill" if ratio["decode"] < 1.03 < ratio["prefill"] else "both" if min(ratio.values()) > 1.03 else ""
    figures = t("experts.hot_figures", skew=b.expert_skew, seqs=b.max_num_seqs, tokens=b.max_num_batched_tokens, **words)
    return joined([figures, t(f"experts.hot_{where}") if where else ""])


def explain() -> str:
    changes = {p: now.parts[p] - before.parts[p] for p in now.parts}
    most = max(changes, key=lambda p: abs(changes[p]))
    said = [joined([
        t("experts.changed_most", part=t(f"settings.term.{most}"), before=seconds(before.parts[most]), after=seconds(now.parts[most]))
        if abs(now.seconds / before.seconds - 1) >= 0.005 else "",
        t("experts.share", share=percent(now.parts["experts"] / now.seconds)),
    ])]
    if flow.name == "batch":
        alone = now.by_batch["fixed"][0]
        said += [
            t("experts.bound_pool", pool=now.room * now.context, context=now.context, seqs=now.room, full=count(now.speed()[-1])),
            t("experts.bound_fixed", fixed=seconds(now.parts["fixed"]), batch=b.max_num_seqs, share=percent(now.parts["fixed"] / now.seconds),
              alone=percent(alone / now.decode_s()[0])),
        ]
    elif b.expert_skew:
        said.append(hot_cost())
    if flow.name == "place":
        said.append(lesson.says(t("experts.lesson_says")))
    return "\n\n".join([*said, frame.badge("today") + " " + t("experts.ep_today")])


top = frame.columns(2)
if not flow.revealed:
    ask()
else:
    with top[0]:
        draw_by_batch() if flow.name == "batch" else draw_step()
    with top[1]:
        draw_speed() if flow.name == "batch" else draw_cards(now)
    tried = {"skew": {"expert_skew": 1.6, "max_num_seqs": 1024}, "batch": {"max_num_seqs": 8}, "place": copies}[flow.name]
    lesson.end(flow, explain=told(), note=explain(), then=(t(f"experts.{flow.name}_then"), tried))
    bottom = frame.columns(2)
    with bottom[0]:
        draw_load()
    with bottom[1]:
        draw_cards(now) if flow.name == "batch" else draw_speed()
state.publish()
