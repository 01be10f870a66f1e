"""Eight GPUs: one engine over all of them, or copies side by side [lesson 2.3.11]."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import streamlit as st

from sim import catalog
from sim.engine import simulate
from sim.memory import GIB, plan
from sim.results import Summary
from sim.scenario import Scenario, SimError
from ui import charts, controls, frame, lesson, narration, series, state, terms
from ui.text import BLANK, count, joined, percent, seconds, t

GPUS = 8
TOLD = (1, 8, 64, 256)  # users whose TPOT is written out
MOST_USD = 1000.0  # a card and hour
LAYOUTS = (1, 2, 4, 8)  # tensor_parallel_size; the cards that are left make copies
USERS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
MOST_TICKS = state.MOST_TICKS // len(USERS)  # of one run: a picture of TPOT against users takes so many
MODELS = (
    ("Llama-3.1-8B", "H100-SXM"), ("Qwen3-32B", "H100-SXM"), ("Qwen3-30B-A3B", "H100-SXM"), ("Llama-3.1-70B", "H200"),
    ("DeepSeek-V4-Flash", "H200"),
)
MEMORY = {"weights": "#5E83C2", "rest": "idle", "kv": "kv"}  # what fills a card, and its colour
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
    """The figures of a run; why there are none where it cannot start, nobody is served, or it is too long for a page."""
    try:
        run, card = simulate(_scenario, most_ticks=MOST_TICKS // _scenario.data_parallel_size), plan(_scenario)
    except SimError as error:
        return error.with_traceback(None)
    summary, repair = run.summary(), {"output_tokens": BASE.output_tokens}
    if run.stopped == "too_long":
        return SimError("too_many_steps", f"more than {MOST_TICKS} engine steps", high=MOST_TICKS, repair=repair)
    if not summary.tpot_mean > 0:
        return next(iter(run.refusals.values()), SimError("one_token", "an answer of one token has no TPOT", repair=repair))
    parts = {p: float(np.mean(values)) for p, values in series.step_parts(run.step_time, run.ticks).items()}
    memory = {"weights": card.weights, "rest": card.activation + card.graphs + card.other, "kv": card.kv}
    return Figures(_scenario, summary, parts, memory, (run.num_gpu_blocks - 1) * _scenario.block_size)


def look(scenario: Scenario, tp: int, users: int) -> Figures | SimError:
    """The scenario on eight cards cut into engines of `tp`, with so many users and four requests of each."""
    one = scenario.but(tensor_parallel_size=tp, data_parallel_size=GPUS // tp, num_clients=users, num_requests=4 * users)
    return measure(state.run_key(one), one)


def name(tp: int) -> str:
    return t("parallelism.layout_one", tp=tp) if tp == GPUS else t("parallelism.layout", dp=GPUS // tp, tp=tp)


def pick_price() -> None:
    """What a card costs an hour: the catalogue's default until the visitor says something else."""
    st.session_state["w_parallel_usd"] = price
    st.number_input(
        t("parallelism.knob_price"), 0.01, MOST_USD, step=0.1, format="%.2f", key="w_parallel_usd", width=220,
        help=t("parallelism.price_help"),
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
                  "gpu_memory_utilization",
                  "enable_expert_parallel", "mla", "ttft", "lesson")
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

seen = {tp: look(b, tp, users) for tp in (LAYOUTS if flow.revealed else [min(a.tensor_parallel_size, GPUS)])}
fit = {tp: f for tp, f in seen.items() if not isinstance(f, SimError)}
if not fit:
    state.end(next(why for why in seen.values() if isinstance(why, SimError)))
for tp, why_not in seen.items():
    if isinstance(why_not, SimError):
        st.caption(t("parallelism.refused", layout=name(tp), reason=state.message(why_not)))

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


def tpot_by_users(tp: int) -> list[float]:
    """Mean TPOT in ms at each of USERS; where one of the runs is too long, the page ends with a way out."""
    found = (look(b, tp, n) for n in USERS)
    return [(state.end(f) if isinstance(f, SimError) else f).summary.tpot_mean * 1e3 for f in found]


def draw_tpot() -> None:
    guess, (error, _) = flow.guess_line(), narration.error(b.gpu)
    limits = [(guess[1], tpot[first][0] / guess[0])] if guess else []
    charts.curve(
        t("parallelism.chart_tpot"), [charts.Line(USERS, y, LINES[tp], name(tp), error=error) for tp, y in tpot.items()],
        x_title=t("parallelism.axis_users"), log_x=True, x_start=1, x_end=USERS[-1], height=lesson.PICTURE, limits=limits,
        marks=[(n, y, count(round(n))) for _, n, y in quickest[:-1]], alt=quickest_words(), key="tpot",
    )


def ranges() -> list[tuple[int, float, float]]:
    """The quickest layout as users grow: (tp, users up to which it is, its TPOT in ms there), between points on a log axis."""
    users = np.geomspace(1, USERS[-1], 1000)
    lines = np.array([np.interp(np.log(users), np.log(USERS), y) for y in tpot.values()])
    best = lines.argmin(axis=0)
    return [(list(tpot)[best[k]], float(users[k]), float(lines[best[k], k])) for k in [*np.flatnonzero(np.diff(best)), -1]]


def quickest_words() -> str:
    *before, (last_one, _, _) = quickest
    return t("parallelism.quickest", beyond=name(last_one),
             upto="".join(t("parallelism.quickest_upto", layout=name(tp), users=n) for tp, n, _ in before))


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


def copies() -> str:
    """When a copy on each card is right: what it gives over PCIe, where it has nothing to send, and what it costs one user."""
    pcie = {tp: look(b.but(link="pcie"), tp, users) for tp in fit}
    rates = {tp: f.summary.output_tok_s for tp, f in pcie.items() if not isinstance(f, SimError)}
    lone, together = (look(b, tp, 1) for tp in (1, last))
    if 1 not in rates or isinstance(lone, SimError) or isinstance(together, SimError):
        return ""
    return t(
        "parallelism.when_copies" if rates[1] == max(rates.values()) else "parallelism.when_not", users=users, layout=name(last),
        alone=seconds(lone.summary.tpot_mean), all=seconds(together.summary.tpot_mean),
        rates=t("parallelism.and").join(f"{name(tp)} {rate:,.0f}" for tp, rate in rates.items()),
    )


def communication() -> str:
    """What all-reduce takes of the widest layout's step, over each link."""
    over = {link: look(b.but(link=link), last, users) for link in links}
    return t("parallelism.comm", layout=name(last), over=t("parallelism.and").join(t(
        "parallelism.comm_over", link=controls.option("link", link), comm=seconds(f.parts["all_reduce"]), step=seconds(f.step),
        share=percent(f.parts["all_reduce"] / f.step)) for link, f in over.items() if not isinstance(f, SimError)))


def against() -> str:
    """What B gives against A, from their own runs."""
    before = look(a, min(a.tensor_parallel_size, GPUS), a.num_clients)
    after = look(b, min(b.tensor_parallel_size, GPUS), users)
    if not flow.s.compared or isinstance(before, SimError) or isinstance(after, SimError):
        return ""
    return t("parallelism.against", **{f"{key}_{what}": value for key, f in (("a", before), ("b", after)) for what, value in (
        ("layout", name(f.scenario.tensor_parallel_size)), ("users", f.scenario.num_clients), ("rate", count(f.summary.output_tok_s)),
        ("tpot", seconds(f.summary.tpot_mean)))})


def table() -> dict[str, list[str]]:
    """Mean TPOT in ms at a few numbers of users, a row a layout, the lowest of each column in bold."""
    at = {n: USERS.index(n) for n in TOLD}
    lowest = {n: min(y[i] for y in tpot.values()) for n, i in at.items()}
    return {t("parallelism.table_layout"): [name(tp) for tp in tpot]} | {
        t("parallelism.table_users", users=n): [f"**{y[i]:.1f}**" if y[i] == lowest[n] else f"{y[i]:.1f}" for y in tpot.values()]
        for n, i in at.items()}


def explain() -> str:
    if flow.name == "layout":
        most = max(fit, key=lambda tp: fit[tp].summary.output_tok_s)
        said = [against(), copies(), communication(), lesson.says(t(
            "parallelism.lesson_long", prompt=b.prompt_tokens, best=name(most), first=name(first), last=name(last),
            ttft_first=seconds(fit[first].summary.ttft_p50), ttft_last=seconds(fit[last].summary.ttft_p50)))]
    elif flow.name == "alone":
        said = [lesson.says(joined([t("parallelism.lesson_size"), quickest_words()])),
                frame.badge("history") + " " + t("parallelism.history_host"), lesson.pale(narration.error(b.gpu)[1])]
    else:
        kind = "mla" if shape.is_mla else "heads" if shape.kv_heads < last else "divides"
        said = [lesson.says(joined([t("parallelism.lesson_says"), t(f"parallelism.lesson_right_{kind}", model=shape.name, heads=shape.kv_heads)]))]
    return "\n\n".join(filter(None, said))


top = frame.columns(2)
if not flow.revealed:
    with top[0]:
        draw_memory() if flow.name == "kv" else draw_steps()
    with top[1]:
        lesson.covered()
else:
    if flow.name == "alone":
        tpot = {tp: tpot_by_users(tp) for tp in fit}
        quickest = ranges()
    pictures = {"layout": (draw_rate, draw_steps), "alone": (draw_steps, draw_tpot), "kv": (draw_memory, draw_card_tokens)}[flow.name]
    for column, draw in zip(top, pictures, strict=True):
        with column:
            draw()
    then = {"layout": links["pcie"][1], "alone": crowd[1], "kv": models[-1][1]}[flow.name]
    lesson.end(flow, explain=told(), note=explain(), then=(t(f"parallelism.{flow.name}_then"), then))
    if flow.name == "layout":
        pick_price()
    if flow.name == "alone":
        st.table(table())
    if flow.name == "kv":
        for column, draw in zip(frame.columns(2), (draw_pools, draw_rate), strict=True):
            with column:
                draw()
state.publish()
