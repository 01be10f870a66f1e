"""Eight GPUs: one engine over all of them, or copies side by side [lesson 2.3.11]."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np
import streamlit as st

from sim import catalog
from sim.engine import simulate
from sim.memory import plan
from sim.results import Summary
from sim.scenario import Scenario, SimError
from ui import charts, controls, frame, lesson, narration, series, state, terms
from ui.text import BLANK, count, joined, percent, seconds, t

GPUS, GIB = 8, 2**30
MOST_USD = 1000.0  # a card and hour
LAYOUTS = (1, 2, 4, 8)  # tensor_parallel_size; the cards that are left make copies
USERS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
TOLD = (1, 8, 64, 256)  # users whose TPOT is written out
MODELS = (
    ("Llama-3.1-8B", "H100-SXM"), ("Qwen3-32B", "H100-SXM"), ("Qwen3-30B-A3B", "H100-SXM"), ("Llama-3.1-70B", "H200"),
    ("DeepSeek-V4-Flash", "H200"),
)
MEMORY = {"weights": "#5E83C2", "rest": "idle", "kv": "kv"}  # what fills a card, and its colour
SPOKEN = {"layout": ("rate", "step", "tpot"), "alone": ("step", "tpot", "rate"), "kv": ("card", "kv", "rate")}  # as the pictures show
LINES = {1: "#6E9B3C", 2: "#5E83C2", 4: "#D27B2C", 8: "kv"}

BASE = Scenario(
    arrival="closed", lengths="fixed", prompt_tokens=512, output_tokens=128, duration_s=3600.0, model="Llama-3.1-8B",
    gpu="H100-SXM", max_model_len=4096, max_num_seqs=256, num_clients=256, num_requests=1024, tensor_parallel_size=2,
    data_parallel_size=4, enable_prefix_caching=False,
)
ONE = BASE.but(tensor_parallel_size=8, data_parallel_size=1)
SCENES = (
    lesson.Scene("layout", BASE, ONE, ("8x1", "4x2", "2x4", "1x8")),
    lesson.Scene("alone", ONE.but(num_clients=1, num_requests=4),
                 BASE.but(tensor_parallel_size=1, data_parallel_size=8, num_clients=1, num_requests=4), guess=lesson.Guess(1.0, 8.0, 0.5, "×")),
    lesson.Scene("kv", ONE.but(model="Qwen3-32B"), BASE.but(model="Qwen3-32B", tensor_parallel_size=1, data_parallel_size=8),
                 ("same", "eight", "more")),
)


@dataclass(frozen=True)
class Figures:
    """One layout under one load: the run's summary, its mean step by part (s), the memory of a card (bytes), its pools."""

    scenario: Scenario
    summary: Summary
    parts: dict[str, float]
    memory: dict[str, float]
    engine_tokens: int

    @property
    def all_tokens(self) -> int:
        return self.engine_tokens * self.scenario.data_parallel_size

    @property
    def card_tokens(self) -> float:
        """A card's share of its engine's pool."""
        return self.engine_tokens / self.scenario.tensor_parallel_size

    @property
    def step(self) -> float:
        return sum(self.parts.values())


@st.cache_resource(max_entries=400, show_spinner=False)
def measure(key: str, _scenario: Scenario) -> Figures | SimError:
    """The figures of a run; where it cannot start, why not. `key` says all of the scenario."""
    try:
        run, card = simulate(_scenario), plan(_scenario)
    except SimError as error:
        return error
    parts = {p: float(np.mean(values)) for p, values in series.step_parts(run.step_time, run.ticks).items()}
    memory = {"weights": card.weights, "rest": card.activation + card.graphs + card.other, "kv": card.kv}
    return Figures(_scenario, run.summary(), parts, memory, (run.num_gpu_blocks - 1) * _scenario.block_size)


def look(scenario: Scenario, tp: int, users: int) -> Figures | SimError:
    """The scenario on eight cards cut into engines of `tp`, with so many users and four requests of each."""
    one = scenario.but(tensor_parallel_size=tp, data_parallel_size=GPUS // tp, num_clients=users, num_requests=4 * users)
    return measure(state.run_key(one), one)


def name(tp: int) -> str:
    return t("parallelism.layout_one", tp=tp) if tp == GPUS else t("parallelism.layout", dp=GPUS // tp, tp=tp)


def crossings(users: Any, lines: dict[int, Any]) -> list[tuple[int, int, float]]:
    """Where two layouts' TPOT lines cross for the last time: (tp, tp, users), between neighbouring points on a log axis."""
    found = []
    for one, other in combinations(sorted(lines), 2):
        gap = np.log(np.asarray(lines[one])) - np.log(np.asarray(lines[other]))
        if len(turn := np.flatnonzero(gap[:-1] * gap[1:] < 0)):
            k = int(turn[-1])
            share = gap[k] / (gap[k] - gap[k + 1])
            found.append((one, other, float(users[k] * (users[k + 1] / users[k]) ** share)))
    return found


def pick_price() -> None:
    """What a card costs an hour: the catalogue's default until the visitor says something else."""
    st.session_state["w_parallel_usd"] = price
    st.number_input(
        t("parallelism.knob_price"), 0.01, MOST_USD, step=0.1, format="%.2f", key="w_parallel_usd", width=220,
        on_change=lambda: state.change(usd=st.session_state["w_parallel_usd"]),
    )


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


with frame.page("parallel"):
    terms.explain("tensor_parallel_size", "data_parallel_size", "all_reduce", "link", "kv_pool", "tpot", "output_tok_s", "step", "expert",
                  "gpu_memory_utilization")
flow = lesson.begin("parallelism", SCENES, extra={"usd": 0.0}, isolate=True, numbers=lambda scene, s: {"users": str(s.b.num_clients)})
b, a = flow.s.b, flow.s.a
usd = float(flow.s.extra["usd"])
price = usd if 0.0 < usd <= MOST_USD else catalog.gpu(b.gpu).price
shape, users = catalog.model(b.model), b.num_clients
alone, crowd = ((t(f"parallelism.try_{n}"), {"num_clients": k, "num_requests": 4 * k}) for n, k in (("one", 1), ("many", 256)))
models = [(t(f"parallelism.try_{key}"), {"model": model, "gpu": gpu}) for key, (model, gpu) in (
    ("small", MODELS[0]), ("large", MODELS[1]), ("heads", MODELS[2]), ("mla", MODELS[4]))]
prompts = [(t(f"parallelism.try_{key}"), {"prompt_tokens": n, "max_model_len": longest, "num_clients": k, "num_requests": 4 * k})
           for key, n, longest, k in (("short", BASE.prompt_tokens, BASE.max_model_len, 256), ("long", 8000, 16_384, 64))]
links = {link: (t(f"parallelism.try_{link}"), {"link": link}) for link in ("nvlink", "pcie")}
load = {} if flow.name == "kv" else {  # a pool does not ask for it
    "num_clients": partial(controls.knob, "num_clients", USERS, label=t("parallelism.knob_users")),
    "link": partial(controls.choice, "link", label=t("parallelism.knob_link")),
}
other_prompts = [prompts[b.prompt_tokens == BASE.prompt_tokens]] if flow.name == "layout" else []
lesson.bench(flow, load | {"model": pick_model}, [
    *other_prompts, alone if users > 1 else crowd, links["pcie" if b.link == "nvlink" else "nvlink"], models[-1]] if load else models)

seen = {tp: look(b, tp, users) for tp in (LAYOUTS if flow.revealed else [a.tensor_parallel_size])}
fit = {tp: f for tp, f in seen.items() if not isinstance(f, SimError)}
for tp, why in seen.items():
    if isinstance(why, SimError):
        st.caption(t("parallelism.refused", layout=name(tp), reason=state.message(why)))
if not fit:
    state.publish()
    st.stop()

names = [name(tp).replace(f"×{BLANK}", "×<br>") for tp in fit]  # a phone has no room for them in a line
first, last = min(fit), max(fit)  # the smallest and the largest TP that starts


def draw_rate() -> None:
    best = max(fit, key=lambda tp: fit[tp].summary.output_tok_s)
    charts.bars(
        t("parallelism.chart_rate"), names, [charts.Part("", "decode", [f.summary.output_tok_s for f in fit.values()])],
        words=lambda v: f"{v:,.0f}", height=lesson.PICTURE, alt=t("parallelism.alt_rate", users=users, best=name(best)), key="rate",
    )


def draw_steps() -> None:
    parts = [
        charts.Part(t(f"settings.term.{p}"), colour, [f.parts[p] * 1e3 for f in fit.values()])
        for p, (_, colour) in series.STEP_PARTS.items() if any(f.parts[p] > 0 for f in fit.values())
    ]
    highest = max(f.step for f in fit.values()) * 1e3
    charts.bars(
        t("parallelism.chart_step"), names, parts, height=lesson.PICTURE, key="steps", words=lambda v: f"{v:.1f}" if v > 0.17 * highest else "",
        alt="" if first == last else t("parallelism.alt_step", slow_layout=name(first), slow=seconds(fit[first].step), fast_layout=name(last),
              fast=seconds(fit[last].step), comm=percent(fit[last].parts["all_reduce"] / fit[last].step)),
    )


def draw_pools() -> None:
    one = [f.engine_tokens / 1e3 for f in fit.values()]
    rest = [(f.all_tokens - f.engine_tokens) / 1e3 for f in fit.values()]
    largest = max(f.all_tokens for f in fit.values()) / 1e3
    charts.bars(
        t("parallelism.chart_pools"), names,
        [charts.Part(t("parallelism.kv_engine"), "kv", one), charts.Part(t("parallelism.kv_others"), "idle", rest)],
        words=lambda v: f"{v:,.0f}" if v > 0.09 * largest else "", height=lesson.PICTURE,
        alt=t("parallelism.alt_pools", best=name(max(fit, key=lambda tp: fit[tp].all_tokens))), key="pools",
    )


def draw_memory() -> None:
    parts = [charts.Part(t(f"parallelism.memory_{p}"), colour, [f.memory[p] / GIB for f in fit.values()]) for p, colour in MEMORY.items()]
    whole = sum(fit[first].memory.values()) / GIB
    charts.bars(
        t("parallelism.chart_memory"), names, parts, words=lambda v: f"{v:.0f}" if v > 0.11 * whole else "", height=lesson.PICTURE, key="memory",
        alt="" if first == last else t("parallelism.alt_memory", first=name(first), kv_first=fit[first].memory["kv"] / GIB, last=name(last),
              kv_last=fit[last].memory["kv"] / GIB),
    )


def draw_card_tokens() -> None:
    values = [f.card_tokens / 1e3 for f in fit.values()]
    charts.bars(
        t("parallelism.chart_card"), names, [charts.Part("", "kv", values)], words=lambda v: f"{v:,.0f}", height=lesson.PICTURE, key="card",
        limits=[(t("parallelism.unchanged", tp=first), values[0])],
        alt=t("parallelism.alt_card", first=name(first), few=values[0], last=name(last), many=values[-1]),
    )


def all_users() -> dict[int, list[float]]:
    """Mean TPOT in ms of each layout at each of USERS."""
    rows = {tp: [look(b, tp, n) for n in USERS] for tp in fit}
    return {tp: [f.summary.tpot_mean * 1e3 for f in row if not isinstance(f, SimError)] for tp, row in rows.items()}


def crossing_words(cross: list[tuple[int, int, float]]) -> str:
    return t("parallelism.and").join(t("parallelism.crossing", a=name(p), b=name(q), users=n) for p, q, n in cross) or t("parallelism.no_crossing")


def draw_tpot(lines: dict[int, list[float]], cross: list[tuple[int, int, float]]) -> None:
    error, _ = narration.error(b.gpu)
    drawn = [charts.Line(USERS, y, LINES[tp], name(tp), error=error) for tp, y in lines.items()]
    guess = flow.guess_line()

    def heights(users: float) -> dict[int, float]:
        return {tp: float(np.interp(np.log(users), np.log(USERS), y)) for tp, y in lines.items()}

    charts.curve(
        t("parallelism.chart_tpot"), drawn, x_title=t("parallelism.axis_users"), log_x=True, x_start=1, x_end=USERS[-1], height=lesson.PICTURE,
        marks=[(n, at[p], count(round(n))) for p, _, n in cross if (at := heights(n))[p] <= 1.001 * min(at.values())],  # another is the quickest from here
        limits=[(guess[1], lines[first][0] / guess[0])] if guess else [],
        alt=t("parallelism.alt_tpot", crossings=crossing_words(cross)), key="tpot",
    )


def table(lines: dict[int, list[float]]) -> str:
    """TPOT at a few numbers of users, the quickest of each in bold: Markdown."""
    rows = [[t("parallelism.table_tpot"), *map(str, TOLD)], ["-"] * (1 + len(TOLD))]
    quickest = {n: min(y[USERS.index(n)] for y in lines.values()) for n in TOLD}
    for tp, y in lines.items():
        cells = {n: y[USERS.index(n)] for n in TOLD}
        rows.append([name(tp), *(f"**{v:.1f}**" if v == quickest[n] else f"{v:.1f}" for n, v in cells.items())])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def why(good: Figures, bad: Figures) -> str:
    """What makes most of the difference between the mean steps of a layout that did well and of one that did not."""
    part = max(good.parts, key=lambda p: bad.parts[p] - good.parts[p])
    return "" if good.step >= bad.step else t(
        "parallelism.why", part=t(f"settings.term.{part}"), good=name(good.scenario.tensor_parallel_size), good_s=seconds(good.parts[part]),
        bad=name(bad.scenario.tensor_parallel_size), bad_s=seconds(bad.parts[part]))


def outcome(tp: int) -> str:
    """What the eight cards give in that layout: rate, TPOT and price."""
    figures = fit[tp].summary
    return t(
        "parallelism.outcome", layout=name(tp), rate=figures.output_tok_s, tpot=seconds(figures.tpot_mean),
        cost=catalog.cost_per_million(fit[tp].scenario, figures.output_tok_s, price)).replace("$", r"\$")


def close(best: int) -> str:
    """The layouts whose rate differs from the best one's by less than the model is off in half of its steps."""
    error, _ = catalog.step_time_error(b.gpu)
    most = fit[best].summary.output_tok_s
    near = [name(tp) for tp, f in fit.items() if tp != best and 1 - f.summary.output_tok_s / most < error]
    return t("parallelism.close", layouts=t("parallelism.and").join(near), error=percent(error)) if near else ""


def undivided(one: Figures, all_: Figures) -> str:
    """What keeps a step of the wider layout from being shorter in proportion: its parts above their share."""
    n = all_.scenario.tensor_parallel_size / one.scenario.tensor_parallel_size
    above = {p: all_.parts[p] - one.parts[p] / n for p in all_.parts}
    most = sorted((p for p in above if above[p] > 0.02 * all_.step), key=above.__getitem__, reverse=True)
    return t(
        "parallelism.undivided", n=round(n), step=seconds(one.step), ideal=seconds(one.step / n), real=seconds(all_.step),
        parts=t("parallelism.and").join(f"{t(f'settings.term.{p}')} +{seconds(above[p])}" for p in most))


def told() -> str:
    """The scene's answer from these runs."""
    one, all_ = fit[first], fit[last]
    if flow.name == "layout":
        best, worst = (pick(fit, key=lambda tp: fit[tp].summary.output_tok_s) for pick in (max, min))
        return joined([t("parallelism.reveal", users=users, best=outcome(best), worst=outcome(worst)), close(best), why(fit[best], fit[worst])])
    if flow.name == "alone":
        fast, slow = (pick(fit, key=lambda tp: fit[tp].summary.tpot_mean) for pick in (min, max))
        return joined([t(
            "parallelism.fastest", users=users, fast=name(fast), fast_tpot=seconds(fit[fast].summary.tpot_mean), slow=name(slow),
            slow_tpot=seconds(fit[slow].summary.tpot_mean), ratio=fit[slow].summary.tpot_mean / fit[fast].summary.tpot_mean,
        ), undivided(fit[slow], fit[fast]) if fast > slow else why(fit[fast], fit[slow])])
    whole = shape.kv_values_per_token(last) * last > 1.01 * shape.kv_values_per_token(first) * first
    return t(
        "parallelism.card_whole" if whole else "parallelism.card", tp_first=first, tp_last=last, card_first=count(one.card_tokens),
        card_last=count(all_.card_tokens), ratio=count(all_.card_tokens / one.card_tokens), gib_first=one.memory["kv"] / GIB,
        gib_last=all_.memory["kv"] / GIB,
        kib=" → ".join(dict.fromkeys(f"{shape.kv_values_per_token(tp) * 2 / 1024:.0f}" for tp in (first, last))),
    )


def comparison() -> str:
    """What B changed against A, from their own runs, in the figures of the pictures."""
    before, after = (look(s, s.tensor_parallel_size, s.num_clients) for s in (a, b))
    if not flow.s.compared or isinstance(before, SimError) or isinstance(after, SimError):
        return ""
    found = [{
        "rate": count(f.summary.output_tok_s), "tpot": seconds(f.summary.tpot_mean), "step": seconds(f.step),
        "card": count(round(f.card_tokens)), "kv": count(f.all_tokens),
    } for f in (before, after)]
    return t(
        "parallelism.changed_against", a=name(a.tensor_parallel_size), b=name(b.tensor_parallel_size),
        figures=t("parallelism.and").join(
            t(f"parallelism.figure_{key}", change=" → ".join(dict.fromkeys(f[key] for f in found))) for key in SPOKEN[flow.name]),
    )


def copies(lines: dict[int, list[float]]) -> str:
    """When a copy on each card is right: what it gives over PCIe, where it has nothing to send, and what it costs one user."""
    pcie = {tp: look(b.but(link="pcie"), tp, users) for tp in fit}
    rates = {tp: f.summary.output_tok_s for tp, f in pcie.items() if not isinstance(f, SimError)}
    if 1 not in rates:
        return ""
    return t(
        "parallelism.when_copies" if rates[1] == max(rates.values()) else "parallelism.when_not", users=users, alone=lines[1][0],
        all=lines[last][0], layout=name(last), rates=t("parallelism.and").join(f"{name(tp)} {rate:,.0f}" for tp, rate in rates.items()),
    )


def communication() -> str:
    """What all-reduce takes of the widest layout's step, over each link."""
    over = {link: look(b.but(link=link), last, users) for link in links}
    return t("parallelism.comm", layout=name(last), over=t("parallelism.and").join(t(
        "parallelism.comm_over", link=controls.option("link", link), comm=seconds(f.parts["all_reduce"]), step=seconds(f.step),
        share=percent(f.parts["all_reduce"] / f.step)) for link, f in over.items() if not isinstance(f, SimError)))


def explain(lines: dict[int, list[float]], cross: list[tuple[int, int, float]]) -> str:
    said = [comparison()]
    if flow.name == "layout":
        most = max(fit, key=lambda tp: fit[tp].summary.output_tok_s)
        said += [copies(lines), communication(), lesson.says(t(
            "parallelism.lesson_long", prompt=b.prompt_tokens, best=name(most), first=name(first), last=name(last),
            ttft_first=seconds(fit[first].summary.ttft_p50), ttft_last=seconds(fit[last].summary.ttft_p50))), t("parallelism.price", price=price).replace("$", r"\$")]
    elif flow.name == "alone":
        one, many = (" → ".join(f"{lines[tp][at]:.1f}" for tp in (first, last)) for at in (0, -1))
        said += [table(lines), t("parallelism.crossing_note", crossings=crossing_words(cross)), lesson.says(t(
            "parallelism.lesson_size", first=name(first), last=name(last), users=USERS[-1], one=one, many=many)),
            frame.badge("history") + " " + t("parallelism.history_host")]
    else:
        kind = "mla" if shape.is_mla else "heads" if shape.kv_heads < last else "divides"
        said.append(lesson.says(joined([t("parallelism.lesson_says"), t(f"parallelism.lesson_right_{kind}", model=shape.name, heads=shape.kv_heads)])))
    return "\n\n".join(filter(None, [*said, "" if flow.name == "kv" else lesson.pale(narration.error(b.gpu)[1])]))


top = frame.columns(2)
if not flow.revealed:
    with top[0]:
        draw_memory() if flow.name == "kv" else draw_steps()
    with top[1]:
        lesson.covered()
else:
    lines = {} if flow.name == "kv" else all_users()
    cross = crossings(USERS, lines)
    first_row = {"layout": (draw_rate, draw_steps), "alone": (draw_steps, partial(draw_tpot, lines, cross)), "kv": (draw_memory, draw_card_tokens)}
    second_row = {"layout": (draw_pools, partial(draw_tpot, lines, cross)), "alone": (draw_rate, draw_pools), "kv": (draw_pools, draw_rate)}
    for column, draw in zip(top, first_row[flow.name], strict=True):
        with column:
            draw()
    then = {"layout": links["pcie"][1], "alone": crowd[1], "kv": models[-1][1]}[flow.name]
    lesson.end(flow, explain=told(), note=explain(lines, cross), then=(t(f"parallelism.{flow.name}_then"), then))
    if flow.name == "layout":
        pick_price()
    for column, draw in zip(frame.columns(2), second_row[flow.name], strict=True):
        with column:
            draw()
state.publish()
