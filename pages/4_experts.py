"""Experts: a skewed router, whole experts on cards, weights shared by a batch [lesson 2.3.5]."""

from __future__ import annotations

from bisect import bisect_left
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


@dataclass
class Step:
    """A step of a scenario: its max_num_seqs decode, as far as the pool holds them, or max_num_batched_tokens of prompts are read.

    Decoding sequences are half-way through their answers; a prefill step reads whole prompts. Raises SimError where the
    scenario cannot start.
    """

    scenario: Scenario
    prefill: bool

    def __post_init__(self) -> None:
        s = self.scenario
        self.shape, self.clock, self.cards = catalog.model(s.model), StepTime(s), s.tensor_parallel_size * s.data_parallel_size
        self.context = s.prompt_tokens + s.output_tokens // 2  # tokens of a sequence
        self.room = int((memory.plan(s).num_gpu_blocks - 1) * s.block_size // self.context)  # sequences that the pool holds
        if not self.room:  # the pool holds at least one of max_model_len, or plan() had refused
            raise SimError("prompt_too_long", f"a sequence of {self.context} tokens is longer than max_model_len ({s.max_model_len})",
                           field="max_model_len", value=self.context, high=s.max_model_len)
        self.size = s.max_num_batched_tokens if self.prefill else min(s.max_num_seqs, self.room)
        parts = self.reading(self.size) if self.prefill else self.by_batch([self.size])
        self.parts = {part: float(values[0]) for part, values in parts.items()}  # s
        self.seconds = sum(self.parts.values())

    def but(self, **changes: Any) -> Step:
        """This step with other settings."""
        return Step(self.scenario.but(**changes), self.prefill)

    def by_batch(self, sizes: Any) -> dict[str, Any]:
        """s of each part of decode steps of so many sequences."""
        n = np.asarray(sizes)
        return self._of(decode_seqs=n, decode_context=n * self.context, sampled=n)

    def reading(self, tokens: int) -> dict[str, Any]:
        """s of each part of a step that reads so many tokens of whole prompts."""
        prompt = min(self.scenario.prompt_tokens, tokens)
        seqs, pairs = np.array([tokens // prompt]), tokens * (prompt + 1) // 2
        return self._of(prefill_seqs=seqs, prefill_tokens=tokens, prefill_pairs=pairs, prefill_context=tokens, sampled=seqs)

    def _of(self, **known: Any) -> dict[str, Any]:
        """s of each part of ticks in which that happens and nothing else."""
        nothing = np.zeros_like(known["sampled"])
        return series.step_parts(self.clock, Ticks(**{f.name: known.get(f.name, 0) + nothing for f in fields(Ticks)}))

    def speed(self, seats: Any) -> Any:
        """Tokens per s with so many seats: what the pool does not hold only waits."""
        taken = np.minimum(seats, self.room)
        return taken / sum(self.by_batch(taken).values())

    @property
    def touched(self) -> float:
        """Experts of a layer that the step reads."""
        return experts.distinct_experts(self.shape, self.scenario.expert_skew, self.size)

    @property
    def card_reads(self) -> float:
        """And of them the card that reads most, copies included."""
        s = self.scenario
        return float(experts.rank_distinct(self.shape, s.expert_skew, self.size, self.cards, s.num_redundant_experts).max())

    def loads(self) -> list[Any]:
        """For each card the loads of its experts (mean of the cards' sums: 1): the hottest one's (0: not here), the others'."""
        s, shape, cards = self.scenario, self.shape, self.cards
        if s.enable_expert_parallel:
            held = zip(*(of(shape, s.expert_skew, cards, s.num_redundant_experts) for of in (experts.holders, experts.placed)), strict=True)
        else:  # every card holds a slice of each expert
            held = zip([np.arange(shape.experts)] * cards, [experts.expert_load(shape, s.expert_skew) / cards] * cards, strict=True)
        unit = shape.experts_per_token / cards
        return [np.append(load[who == 0].sum(), np.sort(load[who > 0])[::-1]) / unit for who, load in held]

    def fullest(self) -> float:
        """Load of the fullest card over the mean."""
        return max(float(card.sum()) for card in self.loads())


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


def arrow(*figures: str) -> str:
    """"1.12 → 1.61"; the figure alone where it stays."""
    return " → ".join(dict.fromkeys(figures))


def took(before: Step, after: Step) -> str:
    """"19 ms → 18 ms (−5.7%)"."""
    return t("experts.took", times=times(before, after), change=change(after.seconds, before.seconds))


def times(before: Step, after: Step) -> str:
    return arrow(seconds(before.seconds), seconds(after.seconds))


def made(s: Scenario, prefill: bool) -> Step:
    """A step of this scenario; one that cannot start is explained, and ends the page."""
    try:
        return Step(s, prefill)
    except SimError as error:
        state.end(error, s)


with frame.page("experts"):
    terms.explain("expert", "hot_expert", "expert_skew", "enable_expert_parallel", "num_redundant_experts", "step", "prefill", "seat",
                  "kv_pool", "max_num_seqs", "max_num_batched_tokens", "async_scheduling", "cuda_graph",
                  "tensor_parallel_size", "lesson")
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

shape = catalog.model(b.model)
now, before = (made(s, prefill) for s in (b, a))
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
    cards = [np.append(c[:MOST_BRICKS], c[MOST_BRICKS:].sum()) for c in step.loads()]
    stack = np.zeros((len(cards), max(map(len, cards))))
    for row, card in zip(stack, cards, strict=True):
        row[: len(card)] = card
    parts = [charts.Part("", HOTTEST if k == 0 else BRICKS[k % 2], stack[:, k]) for k in range(stack.shape[1])]
    full = step.fullest()
    charts.bars(
        t("experts.chart_cards"), [str(n) for n in range(len(cards))], parts, height=lesson.PICTURE, key="cards",
        limits=[(t("experts.mean"), 1.0), *([(t("experts.fullest"), full)] if full > 1.15 else [])],
        alt=t("experts.alt_cards", cards=len(cards), full=full, holders=int((stack[:, 0] > 0).sum())),
    )


def draw_step() -> None:
    words, steps = (names, shown) if flow.revealed else (["A"], [before])
    slowest = max(step.seconds for step in steps)
    charts.bars(
        t("experts.chart_prefill" if prefill else "experts.chart_step"), words,
        [charts.Part(t(f"settings.term.{p}"), colour, [step.parts[p] * 1e3 for step in steps]) for p, (_, colour) in series.STEP_PARTS.items()],
        words=lambda v: f"{v:.1f}" if v > 170 * slowest else "", height=lesson.PICTURE, key="step",
        alt=t("experts.alt_step", steps=" → ".join(seconds(step.seconds) for step in steps)),
    )


def draw_by_batch() -> None:
    guess = flow.guess_line()
    sizes = BATCHES[: bisect_left(BATCHES, max(512, now.size)) + 1]
    by_batch = now.by_batch(sizes)
    total = sum(by_batch.values())
    charts.stacked(
        t("experts.chart_batch"),
        [charts.Line(sizes, by_batch[p] * 1e3, colour, t(f"settings.term.{p}")) for p, (_, colour) in series.STEP_PARTS.items()],
        x_title=t("experts.axis_batch"), log_x=True, x_start=1, x_end=sizes[-1], height=lesson.PICTURE,
        marks=[(step.size, step.seconds * 1e3, word) for step, word in zip(shown, names, strict=True)],
        limits=[(guess[1], guess[0] * before.seconds * 1e3)] if guess else [],
        alt=t("experts.alt_batch", one=seconds(total[0]), many=seconds(total[-1]), n=sizes[-1]), key="by_batch",
    )


def draw_speed() -> None:
    batch = flow.name == "batch"  # there A and B are two places on one line
    full = min(now.room, BATCHES[-1])
    lines = []
    for step, word in [(now, "")] if batch else zip(shown, names, strict=True):
        seats = np.unique([*BATCHES, min(step.room, BATCHES[-1])])
        lines.append(charts.Line(seats, step.speed(seats), "idle" if word == "A" else "decode", word, dotted=word == "A"))
    one, many = now.speed([1, full])
    charts.curve(
        t("experts.chart_speed"), lines, x_title=t("experts.axis_seats"), log_x=True, x_start=1, x_end=BATCHES[-1], height=lesson.PICTURE,
        marks=[(n, step.speed([n])[0], word) for step, word in zip(shown, names, strict=True) if batch for n in [step.scenario.max_num_seqs]],
        limits=[(t("experts.pool_full", n=count(now.room)), many)] if now.room <= BATCHES[-1] else [],
        alt=t("experts.alt_speed", one=count(one), many=count(many), n=full), key="speed",
    )


def told() -> str:
    """What happened to the step against A, and why."""
    if not flow.s.compared:
        return t("lesson.same")
    ratio = now.seconds / before.seconds
    said = [t(
        f"experts.{flow.name}_reveal", took=took(before, now), times=times(before, now), low=a.expert_skew, high=b.expert_skew, a=place_word(place_of(a)),
        b=place_word(place_of(b)), ratio=f"{ratio:.2g}", n_before=before.size, n_after=now.size, tokens=f"{now.size / before.size:.2g}",
        speed_before=count(before.size / before.seconds), speed_after=count(now.size / now.seconds), experts=shape.experts,
        touched=arrow(f"{before.touched:.0f}", f"{now.touched:.0f}"), full=arrow(f"{before.fullest():.2f}", f"{now.fullest():.2f}"),
    )]
    if flow.name == "skew" and (why := why_skew(ratio)):
        said.append(t(f"experts.why_{why}"))
    if flow.name == "place" and not b.num_redundant_experts:
        even = now.but(expert_skew=0.0).seconds
        if even < 0.97 * before.seconds:
            said.append(t("experts.why_whole" if now.fullest() > EVEN else "experts.why_whole_even", even=seconds(even)))
    if now.size < b.max_num_seqs and not prefill:
        said.append(t("experts.pool_short", room=now.room, seats=b.max_num_seqs))
    return joined([*said, copied() if b.num_redundant_experts else ""])


def why_skew(ratio: float) -> str:
    """Which of the two forces made the step `ratio` times as long as A's; "" if neither did."""
    fuller, fewer = now.fullest() > 1.01 * before.fullest(), now.touched < 0.99 * before.touched
    if max(now.fullest(), before.fullest()) < EVEN:
        return "even"
    if 0.97 <= ratio <= 1.03:
        return "neither" if fewer and fuller else "weights"
    return "hot" if ratio > 1 and fuller else "fewer" if ratio < 1 and fewer else ""


def copied() -> str:
    """What the copies of hot experts change, in a decode step and in a prefill step, and why."""
    decode, read = Step(b, False), Step(b, True)
    bare, bare_read = (step.but(num_redundant_experts=0) for step in (decode, read))
    return t(
        "experts.copied", n=b.num_redundant_experts, seqs=decode.size, tokens=read.size, decode=took(bare, decode), prefill=took(bare_read, read),
        read=t("experts.copied_read") if decode.seconds > 1.005 * bare.seconds else "",
        even=t("experts.copied_even") if read.seconds < 0.995 * bare_read.seconds else "")


def hot_cost() -> str:
    """What the skew costs a decode step and a prefill step, against a router without favourites."""
    decode, read = (Step(b, kind) for kind in (False, True))
    even, even_read = (step.but(expert_skew=0.0) for step in (decode, read))
    slower = decode.seconds > 1.03 * even.seconds
    where = "" if read.seconds < 1.03 * even_read.seconds else "prefill" if not slower else "both" if decode.touched > 0.95 * shape.experts else ""
    return joined([
        t("experts.hot_figures", skew=b.expert_skew, seqs=decode.size, tokens=read.size, decode=took(even, decode), prefill=took(even_read, read)),
        t(f"experts.hot_{where}") if where else "",
    ])


def cooler() -> str:
    """Why the fullest card is not as full as with less skew, if so."""
    at = max((skew for skew in SKEWS if skew < b.expert_skew), key=lambda skew: now.but(expert_skew=skew).fullest(), default=0.0)
    always, more = int((experts.expert_load(shape, b.expert_skew) > 0.999).sum()), now.but(expert_skew=at).fullest()
    return t("experts.cooler", at=at, more=more, always=always) if always and more > now.fullest() else ""


def lesson_says() -> str:
    """What the lesson says of experts on cards, and what comes out here."""
    sliced, whole, copied = (now.but(enable_expert_parallel=on, num_redundant_experts=n).fullest() for on, n in PLACES.values())
    here = t("experts.lesson_here", sliced=sliced, whole=whole, copied=copied) if whole > EVEN else ""
    return lesson.says(joined([t("experts.lesson_says"), here]))


def explain() -> str:
    changes = {p: now.parts[p] - before.parts[p] for p in now.parts}
    most = max(changes, key=lambda p: abs(changes[p]))
    said = [t("experts.changed_most", part=t(f"settings.term.{most}"), change=arrow(seconds(before.parts[most]), seconds(now.parts[most])))
            if abs(now.seconds / before.seconds - 1) >= 0.005 else ""]
    if flow.name == "batch":
        one = now.by_batch([1])
        said += [
            t("experts.bound_pool", seqs=arrow(count(before.room), count(now.room)), context=now.context, full=count(now.speed([now.room])[0])),
            t("experts.bound_fixed", fixed=seconds(now.parts["fixed"]), batch=now.size, share=percent(now.parts["fixed"] / now.seconds),
              alone=percent(one["fixed"][0] / sum(one.values())[0])),
        ]
    elif flow.name == "place":
        said.append(lesson_says())
    elif now.fullest() > EVEN:
        said += [hot_cost(), cooler()]
    if b.num_redundant_experts:
        decode = Step(b, False)
        bare = decode.but(num_redundant_experts=0)
        said.append(t("experts.copied_cost", reads=arrow(f"{bare.card_reads:.1f}", f"{decode.card_reads:.1f}"), seqs=decode.size,
                      room=arrow(count(bare.room), count(decode.room))))
    return "\n\n".join(filter(None, [*said, frame.badge("today") + " " + t("experts.ep_today")]))


top = frame.columns(2)
if not flow.revealed:
    with top[0]:
        draw_step() if flow.name == "batch" else draw_load()
    with top[1]:
        lesson.covered() if flow.name == "batch" else draw_cards(before)
else:
    with top[0]:
        draw_by_batch() if flow.name == "batch" else draw_step()
    with top[1]:
        draw_speed() if flow.name == "batch" else draw_cards(now)
    tried = {"skew": {"expert_skew": 1.6, "max_num_seqs": 1024}, "batch": {"max_num_seqs": 8}, "place": copies}[flow.name]
    lesson.end(flow, explain=told(), note=explain(), then=(t(f"experts.{flow.name}_then"), tried))
    if flow.name == "skew":
        for column, draw in zip(frame.columns(2), (draw_load, draw_speed), strict=True):
            with column:
                draw()
state.publish()
