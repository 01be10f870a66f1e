"""The sweet spot: the tuning path, both experiments, a map, a search, targets, and the curve that sums it up [lesson 2.3.6, 2.3.7]."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import streamlit as st

from sim import catalog
from sim.engine import simulate
from sim.load_curve import KNEE, LOADS, Point, curve, knee
from sim.presets import presets
from sim.results import Run, Summary
from sim.scenario import Scenario, SimError
from sim.sweep import Answer, Tried, changed, every, judge, search, splits, sweep
from ui import charts, controls, frame, lesson, narration, series, state, sweep_map, terms
from ui.controls import option
from ui.text import change, count, joined, percent, seconds, t

LADDER = (32, 64, 128, 256, 384, 512)  # max_num_seqs, step by step
FINE = {"max_num_seqs": tuple(range(32, 513, 32)), "max_num_batched_tokens": (512, 1024, 2048, 4096, 8192)}
AXES: dict[str, tuple[Any, ...]] = {
    "max_num_seqs": (16, 32, 48, 64, 96, 128, 160, 192, 224, 256, 288, 320, 352, 384, 448, 512),
    "max_num_batched_tokens": (512, 768, 1024, 1280, 1536, 2048, 2560, 3072, 4096, 5120, 6144, 8192, 10_240, 12_288, 14_336, 16_384),
    "num_gpu_blocks_override": tuple(range(1500, 9001, 500)),
    "gpu_memory_utilization": tuple(n / 100 for n in range(22, 98, 5)),
    "tensor_parallel_size": (1, 2, 4, 8),
    "data_parallel_size": (1, 2, 3, 4, 5, 6, 7, 8),
    "long_prefill_token_threshold": (16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096),
    "num_clients": (32, 64, 96, 128, 160, 192, 224, 256, 288, 320, 352, 384, 416, 448, 480, 512),
    "prompt_tokens": (16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 640, 768, 896, 1024, 1536, 2048),
    "output_tokens": (16, 32, 48, 64, 80, 96, 112, 128, 144, 160, 192, 224, 256, 320, 384, 512),
}
"""What a map can go over."""
SIZES = ("4", "8", "16")
SEARCHED: dict[str, tuple[Any, ...]] = {
    "max_num_seqs": (32, 64, 96, 128, 192, 256), "max_num_batched_tokens": (512, 1024, 2048, 4096),
    "gpu_memory_utilization": (0.85, 0.9, 0.95), "long_prefill_token_threshold": (0, 512, 1024),
}
"""What a search goes over beside the split of the GPUs."""
NO_PREEMPTION = {"preemptions": 0.0}
SHARE = 0.95  # of what a search finds: the throughput that is asked for

CLIMB = Scenario(  # 512 users, a pool for about 360 of them when their answers have grown
    arrival="closed", num_clients=512, num_requests=3000, duration_s=3600.0, lengths="fixed", prompt_tokens=64, output_tokens=128,
    model="Llama-3.1-8B", gpu="A100-80GB", max_model_len=4096, gpu_memory_utilization=0.85, num_gpu_blocks_override=4300,
    max_num_seqs=256, max_num_batched_tokens=2048, enable_prefix_caching=False,
)
TARGETS = Scenario(  # few seats: a queue; many: preemptions; a large token budget: pauses between tokens
    arrival="closed", num_clients=240, think_time_s=2.0, duration_s=60.0, prompt_tokens=600, output_tokens=200, max_model_len=8192,
    enable_prefix_caching=False, num_gpu_blocks_override=9000, scheduler_reserve_full_isl=False, max_num_seqs=64,
    max_num_batched_tokens=8192, slo_ttft_s=2.0, slo_tpot_s=0.05,
)
CLUSTER = Scenario(  # some prompts are long; 1 GPU has hardly room for the weights, 8 as one engine wait for each other
    arrival="closed", num_clients=400, think_time_s=5.0, duration_s=20.0, lengths="mixture", prompt_tokens=600, output_tokens=200,
    long_prompt_tokens=8000, model="Qwen3-32B", tensor_parallel_size=2, data_parallel_size=4, max_model_len=16_384,
    enable_prefix_caching=False, slo_ttft_s=2.0, slo_tpot_s=0.1,
)
STREAM = Scenario(
    duration_s=60.0, prompt_tokens=256, output_tokens=128, prompt_cv=0.5, output_cv=1.0, max_num_seqs=64,
    max_num_batched_tokens=2048, max_model_len=8192, static_timeout_s=0.5,
)
FIRST_A, FIRST_B, SECOND_A, SECOND_B = (
    presets()[f"lesson_{name}"].scenario for name in ("exp1_64", "exp1_256", "exp2_256", "exp2_512")
)
SCENES = (
    lesson.Scene("climb", CLIMB.but(max_num_seqs=LADDER[0]), None, ("s128", "s256", "s384", "s512")),
    lesson.Scene("first", FIRST_B, FIRST_A, guess=lesson.Guess(1.0, 4.0, 0.1, "×")),
    lesson.Scene("second", SECOND_B, SECOND_A, ("better", "same", "worse")),
    lesson.Scene("map", CLIMB, None, ("low", "middle", "high")),
    lesson.Scene("search", CLUSTER, None, ("tp1", "tp2", "tp4", "tp8")),
    lesson.Scene("targets", TARGETS, None, ("seats", "tokens", "both")),
    lesson.Scene("knee", STREAM, None, guess=lesson.Guess(1.0, 8.0, 0.5, "×")),
)
EXTRA: dict[str, state.Extra] = {"across": "max_num_seqs", "up": "max_num_batched_tokens", "metric": "qps", "cells": "8", "gpus": "8"}


@st.cache_data(max_entries=600, show_spinner=False)
def figures(key: str, _scenario: Scenario) -> Summary | None:
    """The summary of a run; None if it cannot start. `key` says all of the scenario."""
    try:
        return simulate(_scenario, most_ticks=state.MOST_TICKS // _scenario.data_parallel_size).summary()
    except SimError:
        return None


def measure(scenario: Scenario) -> Summary | None:
    return figures(state.run_key(scenario), scenario)


@st.cache_data(max_entries=50, show_spinner=False)
def searched(key: str, _base: Scenario, limits: tuple[tuple[str, float], ...]) -> Answer | None:
    """The most throughput over both budgets that keeps the limits; `key` says all else of the base."""
    try:
        return search(_base, FINE, dict(limits), maximise="qps", most_ticks=state.MOST_TICKS // _base.data_parallel_size)
    except SimError:
        return None


def found_by_search(b: Scenario, **limits: float) -> Answer | None:
    with st.spinner(t("sweet_spot.searching")):
        return searched(state.run_key(b, FINE), b, tuple({**NO_PREEMPTION, **limits}.items()))


def tiles(b: Scenario) -> None:
    """What a scenario comes to, before anything is changed."""
    if now := measure(b):
        frame.tiles([("qps", now.qps, None, "req/s", 1), ("e2e_p99", now.e2e_p99, None, "s", -1), ("ttft_p99", now.ttft_p99, None, "s", -1),
                     ("itl_p99", now.itl_p99, None, "s", -1), ("preemptions", now.preemptions, None, "", -1)])


# --- the climb ------------------------------------------------------------------------------------------------------


def climb(flow: lesson.Flow) -> None:
    b = flow.s.b.but(max_num_batched_tokens=max(LADDER[-1], flow.s.b.max_num_batched_tokens))
    at = max((i for i, n in enumerate(LADDER) if n <= b.max_num_seqs), default=0)
    ladder = sorted({*LADDER, b.max_num_seqs}) if flow.revealed else LADDER[: at + 1]  # what was set stands among the steps
    runs = {n: s for n in ladder if (s := measure(b.but(max_num_seqs=n)))}
    if LADDER[at] not in runs:
        st.warning(t("sweet_spot.no_run"))
        return
    best = max((n for n, s in runs.items() if not s.preemptions), key=lambda n: runs[n].qps, default=0)
    if flow.revealed:
        lesson.bench(flow, {"preemption_mode": partial(controls.choice, "preemption_mode")})
    else:
        now = runs[LADDER[at]]
        with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
            st.button(t("sweet_spot.knob_raise"), icon=":material/stairs:", key="climb_up", on_click=state.change,
                      disabled=at + 1 >= len(LADDER) or now.preemptions > 0 or now.waiting_mean < 1,
                      kwargs={"max_num_seqs": LADDER[min(at + 1, len(LADDER) - 1)]})
            st.button(t("sweet_spot.knob_back"), icon=":material/undo:", key="climb_down", disabled=at == 0,
                      on_click=state.change, kwargs={"max_num_seqs": LADDER[max(at - 1, 0)]})
        frame.note(joined([here(LADDER[at], now), rule(b, LADDER[at], runs)]))
    steps, each = list(runs), list(runs.values())
    wide, *narrow = st.columns([4, 2, 2, 2], gap="medium")
    with wide:
        charts.curve(
            t("sweet_spot.chart_climb"), [charts.Line([s.qps for s in each], [s.e2e_p99 for s in each], "decode")],
            x_title=t("sweet_spot.axis_qps"), marks=[(s.qps, s.e2e_p99, str(n)) for n, s in runs.items()],
            x_end=max(s.qps for s in each) * 1.15, height=lesson.PICTURE,
            alt=t("sweet_spot.alt_climb", points=", ".join(map(str, steps)), best=best), key="climb",
        )
    for place, (title, colour, values, share) in zip(narrow, (
        ("chart_queue", "waiting", [s.waiting_mean for s in each], False),
        ("chart_gpu_narrow", "ink", [s.gpu_compute for s in each], True),
        ("chart_preemptions", "preempted", [float(s.preemptions) for s in each], False),
    ), strict=True):
        with place:
            words = percent if share else count
            charts.bars(t(f"sweet_spot.{title}"), [str(n) for n in steps], [charts.Part("", colour, values)], percent=share,
                        horizontal=True, words=words, key=title, height=lesson.PICTURE, alt=t(
                            "sweet_spot.alt_bars", what=t(f"sweet_spot.{title}"),
                            points=", ".join(f"{n}: {words(v)}" for n, v in zip(steps, values, strict=True))))
    if not flow.revealed:
        return lesson.end(flow)
    stop = next((n for n, s in runs.items() if s.preemptions or s.waiting_mean < 1), steps[-1])
    answer = found_by_search(b) if flow.step == "next" else None
    said, better = against(answer, best, runs[best]) if answer and answer.feasible and best and runs[best].qps else ("", {})
    note = [t("sweet_spot.hint_budget", tokens=f"{b.max_num_batched_tokens:,}", blocks=f"{each[0].num_gpu_blocks:,}")]
    if b.preemption_mode == "swap":
        note.append(frame.badge("history") + " " + t("sweet_spot.swap_history"))
    if said and not better:
        note.append(said)
    own = here(b.max_num_seqs, runs[b.max_num_seqs]) if b.max_num_seqs in runs and b.max_num_seqs not in LADDER else ""
    lesson.end(flow, explain=joined([own, rule(b, stop, runs)]), note="\n\n".join(note), then=(said, better) if better else None)
    if answer:
        sweep_map.proof(answer)
        st.markdown("\n".join(f"{i}. {t(f'sweet_spot.path_{i}', memory=b.gpu_memory_utilization)}" for i in range(1, 5)))


def against(answer: Answer, best: int, climbed: Summary) -> tuple[str, dict[str, Any]]:
    """What a search over both budgets finds, against where the climb stops (more throughput has its price); its settings."""
    found = answer.best.result
    assert isinstance(found, Summary)
    more, longer = found.qps / climbed.qps - 1, found.e2e_p99 / climbed.e2e_p99 - 1
    kind = "same" if more < 0.005 else "costs" if longer > 0.005 else "gains"
    return t(
        f"sweet_spot.search_{kind}", runs=len(answer.runs), all=len(FINE["max_num_seqs"]) * len(FINE["max_num_batched_tokens"]),
        climb=best, climb_qps=climbed.qps, climb_p99=seconds(climbed.e2e_p99), qps=found.qps, p99=seconds(found.e2e_p99), more=more,
        longer=longer,
    ), {} if kind == "same" else answer.best.changes


def here(n: int, now: Summary) -> str:
    """This step in numbers."""
    return t("sweet_spot.step_now", value=n, qps=now.qps, p99=seconds(now.e2e_p99), waiting=now.waiting_mean, gpu=now.gpu_compute,
             preemptions=now.preemptions)


def rule(b: Scenario, n: int, runs: dict[int, Summary]) -> str:
    """What the rule says at this step: raise, or stop and why."""
    now = runs[n]
    below = [m for m in runs if m < n and not runs[m].preemptions]
    if now.preemptions and below:
        back = runs[max(below)]
        told = dict(value=n, preemptions=now.preemptions, best=max(below), best_qps=back.qps, best_p99=seconds(back.e2e_p99), p99=seconds(now.e2e_p99))
        if b.preemption_mode == "swap":
            return t("sweet_spot.stop_swapped", swapped=now.swapped_blocks, **told)
        return t("sweet_spot.stop_preempted", recomputed=now.recomputed_tokens, **told)
    if now.preemptions:
        return t("sweet_spot.preempts_at_first", value=n)
    if now.waiting_mean < 1:
        return t("sweet_spot.stop_empty", value=n)
    if n == LADDER[-1]:
        return t("sweet_spot.stop_top")
    return t("sweet_spot.go_on", waiting=now.waiting_mean)


# --- the two experiments --------------------------------------------------------------------------------------------


def experiment(flow: lesson.Flow) -> None:
    if flow.name == "first":
        lesson.bench(flow, {"max_num_seqs": LADDER, "num_clients": [100, 200, 300, 400, 600]},
                     [(f"max_num_seqs {n}", {"max_num_seqs": n}) for n in (128, 256)])
    else:
        lesson.bench(flow, {"max_num_seqs": LADDER, "preemption_mode": partial(controls.choice, "preemption_mode")},
                     [(t(f"sweet_spot.try_{mode}"), {"preemption_mode": mode}) for mode in ("swap", "recompute")])
    run_b, run_a = state.runs(flow.s)
    sb, sa = run_b.summary(), run_a.summary()
    shown = sb if flow.revealed else sa
    left, right = st.columns([1, 1] if not flow.revealed else [4, 6], gap="medium")
    with left:
        if flow.name == "first":
            charts.timeline(t("sweet_spot.chart_waiting"), lesson.lines(flow, series.waiting, run_b, run_a, "waiting"), key="w",
                            height=lesson.PICTURE, alt=t("sweet_spot.alt_waiting", a=sa.waiting_mean, b=shown.waiting_mean))
        else:
            events = [(series.first_preemption(run_b), t("sweet_spot.first_preemption"))] if flow.revealed else []
            charts.timeline(t("sweet_spot.chart_kv"), lesson.lines(flow, series.kv, run_b, run_a, "kv"), percent=True, key="k",
                            height=lesson.PICTURE, events=events, alt=t("sweet_spot.alt_kv", a=sa.kv_max, b=shown.kv_max, n=shown.preemptions))
    with right:
        if flow.revealed:
            rows = first_rows(run_b, run_a) if flow.name == "first" else second_rows(flow.s.b, flow.s.a, sb, sa)
            st.table({t(f"sweet_spot.col_{what}", a=flow.s.a.max_num_seqs, b=flow.s.b.max_num_seqs): list(column) for what, column in
                      zip(("what", "lesson", "run"), zip(*rows, strict=True), strict=True)})
        else:
            charts.timeline(t("sweet_spot.chart_gpu"), [charts.Line(*series.utilisation(run_a), "ink", "A")], percent=True, key="g",
                            height=lesson.PICTURE, alt=t("sweet_spot.alt_gpu", a=sa.gpu_compute))
    if flow.name == "first":
        b = flow.s.b
        note = "" if queue(run_b) >= 5 or not flow.s.compared else t("sweet_spot.why_1", clients=b.num_clients, think=seconds(b.think_time_s),
                 prompt=float(run_b.requests.prompt.mean()), output=float(run_b.requests.output.mean()),
                 step=seconds(float(run_b.ticks.duration.mean())), queue=seconds(sb.queue_mean), waiting=queue(run_a),
                 wait=seconds(queue(run_a) / sa.qps), rate=sa.qps) + "\n\n"
        note += t("sweet_spot.why_gpu", a=sa.gpu_busy, b=sb.gpu_busy)
    else:
        note = (t("sweet_spot.why_2", blocks=f"{sb.num_gpu_blocks:,}") + "\n\n" if sb.preemptions else "") + frame.badge("history") + " " + t("sweet_spot.swap_history")
    shows = ("gpu_compute", "qps") if flow.name == "first" else ("e2e_p99", "kv_max")
    ratio = t("sweet_spot.first_ratio", ratio=sb.qps / sa.qps) if flow.name == "first" and flow.s.compared else ""
    said = narration.changed(sb, sa, flow.s.b, flow.s.a, pictures=shows) or t("lesson.same")
    lesson.end(flow, explain=joined([ratio, said]), note=note, run=run_b)


def queue(run: Run) -> float:
    """Mean of the gauge num_requests_waiting over the run: without those who only wait for the step in progress."""
    return float((run.ticks.waiting * run.ticks.duration).sum()) / run.duration_s


def first_rows(run_b: Run, run_a: Run) -> list[tuple[str, str, str]]:
    sb, sa = run_b.summary(), run_a.summary()
    found = {
        "waiting": f"{queue(run_a):.0f} → {queue(run_b):.0f}", "gpu": f"{percent(sa.gpu_compute)} → {percent(sb.gpu_compute)}",
        "qps": f"× {sb.qps / sa.qps:.2f}", "queue": f"{seconds(sa.queue_mean)} → {seconds(sb.queue_mean)}",
    }
    return [(t(f"sweet_spot.row_{k}"), t(f"sweet_spot.lesson_{k}"), v) for k, v in found.items()]


def second_rows(b: Scenario, a: Scenario, sb: Summary, sa: Summary) -> list[tuple[str, str, str]]:
    rows = []
    for mode, told in (("swap", "p99"), ("recompute", "none")):
        more, less = measure(b.but(preemption_mode=mode)), measure(a.but(preemption_mode=mode))
        rows.append((t(f"sweet_spot.row_p99_{mode}"), t(f"sweet_spot.lesson_{told}"),
                     change(more.e2e_p99, less.e2e_p99) if more and less else "–"))
    return [
        *rows,
        (t("sweet_spot.row_preemptions"), t("sweet_spot.lesson_frequent"), f"{count(sa.preemptions)} → {count(sb.preemptions)}"),
        (t("sweet_spot.row_swapped"), t("sweet_spot.lesson_frequent"), f"{count(sa.swapped_blocks)} → {count(sb.swapped_blocks)}"),
        (t("sweet_spot.row_qps"), t("sweet_spot.lesson_none"), f"× {sb.qps / sa.qps:.2f}"),
    ]


# --- the map --------------------------------------------------------------------------------------------------------


def values_of(name: str, cells: int) -> list[Any]:
    """So many values of an axis (or all that it has), evenly spaced in its list."""
    some = min(cells, len(AXES[name]))
    return [AXES[name][round(i * (len(AXES[name]) - 1) / (some - 1))] for i in range(some)]


def atlas(flow: lesson.Flow) -> None:
    b, extra = flow.s.b, flow.s.extra
    if not flow.revealed:
        lesson.bench(flow)
        tiles(b)
        lesson.covered()
        return lesson.end(flow)
    row = st.columns([7, 10, 8, 4], vertical_alignment="bottom", gap="small")
    names = []
    for place, which, other in ((row[0], "across", str(extra["up"])), (row[1], "up", "")):
        with place:
            names.append(pick(which, [n for n in AXES if n not in (other, *names)], lambda n: state.label(n).strip("`")))
    with row[2]:
        metric = pick("metric", list(sweep_map.METRICS), lambda m: t(f"sweet_spot.map_{m}"))
    with row[3]:
        size = int(pick("cells", list(SIZES), lambda n: f"{n} × {n}"))
    axes = {name: values_of(name, size) for name in names}
    engines = max(axes.get("data_parallel_size", [b.data_parallel_size]))
    memory = {"num_gpu_blocks_override": 0} if "gpu_memory_utilization" in axes and "num_gpu_blocks_override" not in axes else {}
    base = b.but(**memory)
    job = sweep_map.job("map", f"{state.run_key(base, axes)}|{size}|{'|'.join(axes)}")
    made = [tried.changes for tried in job.runs]
    missing = [changes for changes in every(axes) if changes not in made]

    def make(watch: Callable[[Tried], None]) -> None:
        for index, result in sweep((changed(base, changes) for changes in missing), most_ticks=state.MOST_TICKS // engines):
            watch(judge(missing[index], result, NO_PREEMPTION, "qps"))

    sweep_map.progress(job, len(made) + len(missing), whole=True)
    best = max(job.runs, key=lambda tried: tried.rank, default=None)
    said = best_of(best, job.done) if best and not best.excess else t("sweet_spot.map_none") if job.done else ""
    here = {name: getattr(b, name) for name in axes}

    def take(changes: dict[str, Any]) -> None:
        state.change(**changes, **memory)

    left, right = st.columns([6, 5], gap="medium")
    with left:
        sweep_map.heatmap(job.runs, axes, metric, here, take, said, lesson.PICTURE)
    with right:
        sweep_map.plane(job.runs, here, take, said, lesson.PICTURE)
    lesson.end(flow, explain=joined([said, taken(base, axes)]), note=t("sweet_spot.map_lead"))
    sweep_map.work(job, make)


def best_of(tried: Tried, done: bool) -> str:
    s = tried.result
    assert isinstance(s, Summary)
    return t("sweet_spot.map_best" if done else "sweet_spot.map_so_far", settings=sweep_map.settings(tried.changes), qps=s.qps, p99=seconds(s.e2e_p99))


def taken(b: Scenario, names: Iterable[str]) -> str:
    """The settings that are shown now, and what they come to."""
    now = measure(b)
    return "" if now is None else t(
        "sweet_spot.map_taken", settings=sweep_map.settings({name: getattr(b, name) for name in names}), qps=now.qps,
        p99=seconds(now.e2e_p99), preemptions=now.preemptions)


def pick(name: str, options: list[str], words: Callable[[str], str]) -> str:
    """A page-local choice as a list; what it names is in the address."""
    key = f"sweet_{name}"
    st.session_state[key] = value = str(state.current().extra[name])
    if value not in options:
        st.session_state[key] = value = options[0]
    st.selectbox(t(f"sweet_spot.pick_{name}"), options, key=key, format_func={o: words(o) for o in options}.__getitem__,
                 on_change=lambda: state.change(**{name: st.session_state[key]}), filter_mode=None)
    return value


# --- the search -----------------------------------------------------------------------------------------------------


def hunt(flow: lesson.Flow) -> None:
    """The most throughput under limits, over five settings at once."""
    b, gpus = flow.s.b, 4 if flow.s.extra["gpus"] == "4" else 8
    ranges = {"split": splits(gpus), **SEARCHED}
    total = math.prod(map(len, ranges.values()))
    lesson.bench(flow, {
        "gpus": partial(controls.extra_choice, "gpus", ["4", "8"], label=t("sweet_spot.pick_gpus")),
        "slo_ttft_s": [0.5, 1.0, 2.0, 3.0, 5.0], "slo_tpot_s": partial(controls.knob, "slo_tpot_s", [0.05, 0.08, 0.1, 0.15, 0.2], label=t("sweet_spot.knob_itl")),
    })
    if not flow.revealed:
        tiles(b)
        st.table({t("sweet_spot.col_setting"): [sweep_map.name_of(name) for name in ranges],
                  t("sweet_spot.col_values"): [", ".join(sweep_map.value(v if name == "split" else {name: v}, name) for v in values)
                                               for name, values in ranges.items()]})
        st.caption(t("sweet_spot.search_space", total=f"{total:,}"))
        return lesson.end(flow)
    job = sweep_map.job("search", f"{state.run_key(b, (*SEARCHED, *ranges['split'][0]))}|{gpus}")
    limits = {**NO_PREEMPTION, "ttft_p99": b.slo_ttft_s, "itl_p99": b.slo_tpot_s}

    def make(watch: Callable[[Tried], None]) -> Answer | None:
        try:
            return search(b, ranges, limits, maximise="qps", watch=watch, made=job.runs, most_ticks=state.MOST_TICKS // gpus)
        except SimError:  # nothing that runs: each run says why
            return None

    sweep_map.progress(job, total, whole=False)
    said, here = [], {name: getattr(b, name) for name in (*SEARCHED, *ranges["split"][0])}
    if job.runs:
        best = max(job.runs, key=lambda tried: tried.rank)
        said = [t("sweet_spot.search_done", runs=len(job.runs), all=f"{total:,}") if job.done else "", best_of(best, job.done) if not best.excess else t(
            "sweet_spot.search_none", run=sweep_map.settings(best.changes) + ": " + sweep_map.says(best, limits))]
    sweep_map.plane(job.runs, here, lambda changes: state.change(**changes), joined(said), lesson.PICTURE)
    lesson.end(flow, explain=joined(said), note=joined([taken(b, here) if catalog.num_gpus(b) == gpus else "", t("sweet_spot.search_lead")]))
    if flow.step == "next" and job.answer:
        sweep_map.proof(job.answer)
    sweep_map.work(job, make)


# --- targets --------------------------------------------------------------------------------------------------------


def targets(flow: lesson.Flow) -> None:
    """Reach a throughput; without preemption; with latencies within their limits. Judged from the visitor's own run."""
    knobs = {"max_num_seqs": FINE["max_num_seqs"][::2], "max_num_batched_tokens": FINE["max_num_batched_tokens"],
             "gpu_memory_utilization": [0.22, 0.26, 0.3, 0.5, 0.7, 0.85, 0.92]}
    flow.movable.update(knobs)
    for place, (name, stops) in zip(frame.columns(3), knobs.items(), strict=True):
        with place:
            controls.knob(name, stops)
    b = flow.s.b
    run_b, _ = state.runs(flow.s)
    s = run_b.summary()
    answer = found_by_search(TARGETS, ttft_p99=TARGETS.slo_ttft_s, itl_p99=TARGETS.slo_tpot_s)
    if not answer:
        return lesson.end(flow)
    wanted = float(int(SHARE * answer.best.value))
    checks = [
        ("qps", s.qps >= wanted, {"have": f"{s.qps:.1f} req/s", "want": f"{wanted:.0f}"}),
        ("preemptions", not s.preemptions, {"have": count(s.preemptions), "want": "0"}),
        *((name, getattr(s, f"{name}_p99") <= most,
           {"have": seconds(getattr(s, f"{name}_p99")), "want": seconds(most)})
          for name, most in (("ttft", b.slo_ttft_s), ("itl", b.slo_tpot_s))),
    ]
    frame.plain_tiles([(t(f"sweet_spot.target_{name}", **words), words["have"], t(f"sweet_spot.target_{'held' if held else 'open'}"))
                       for name, held, words in checks])
    left, right = frame.columns(2)
    with left:
        charts.timeline(t("sweet_spot.chart_waiting"), [charts.Line(*series.waiting(run_b), "waiting")], key="tw", height=190,
                        alt=t("sweet_spot.alt_target_waiting", waiting=s.waiting_mean))
    with right:
        charts.timeline(t("sweet_spot.chart_kv"), [charts.Line(*series.kv(run_b), "kv", fill=True)], percent=True, key="tk", height=190,
                        events=[(series.first_preemption(run_b), t("sweet_spot.first_preemption"))],
                        alt=t("sweet_spot.alt_target_kv", kv=s.kv_max, n=s.preemptions))
    if all(held for _, held, _ in checks):
        frame.note(t("sweet_spot.targets_reached"))
    lesson.end(flow, explain=t("sweet_spot.targets_explain", runs=len(answer.runs), qps=answer.best.value,
                               changes=narration.settings(answer.scenario, TARGETS), share=SHARE),
               run=run_b, then=(t("sweet_spot.targets_then"), answer.best.changes))
    if flow.step == "next":
        sweep_map.proof(answer)


# --- the knee -------------------------------------------------------------------------------------------------------


@st.cache_data(max_entries=100, show_spinner=False)
def measured(key: str, _scenario: Scenario) -> list[Point]:
    """The curve of a scenario; `key` says all of it."""
    return curve(_scenario, state.MOST_TICKS // (10 * _scenario.data_parallel_size))  # it makes a dozen runs


def sums_up(flow: lesson.Flow) -> None:
    """B, static batching beside it, and A where it differs."""
    b, a = flow.s.b, flow.s.a
    if not lesson.bench(flow, {"max_num_seqs": [16, 32, 64, 128, 256], "output_cv": [0.0, 0.5, 1.0, 1.5, 2.0]}):
        lesson.covered()
        return lesson.end(flow)
    run_b, run_a = state.runs(flow.s)  # explains what cannot start
    wanted = ({"static": b.but(batching="static")} if b.batching != "static" else {}) | ({"a": a} if run_a is not run_b else {}) | {"b": b}
    try:
        with st.spinner(t("sweet_spot.measuring")):
            curves = {name: measured(state.run_key(scenario), scenario) for name, scenario in wanted.items()}
    except SimError as error:
        state.end(error)
    if not all(s.qps for found in curves.values() for s in found):
        st.warning(t("sweet_spot.no_curve"))
        return lesson.end(flow)
    knees = {name: knee(found) for name, found in curves.items()}
    bend = {name: s.qps for name, s in knees.items()}
    guess, looks = flow.guess_line(), {"static": ("soft", True), "a": ("idle", True), "b": ("decode", False)}
    called = {"static": option("batching", "static"), "a": "A", "b": "B" if flow.s.compared else option("batching", b.batching)}
    charts.curve(
        t("sweet_spot.chart_knee"),
        [charts.Line([s.qps for s in found], [s.e2e_p99 for s in found], looks[name][0], dotted=looks[name][1])
         for name, found in curves.items()],
        x_title=t("sweet_spot.axis_done"), x_end=1.15 * max(s.qps for found in curves.values() for s in found),
        y_end=max(6 * found[0].e2e_p99 for found in curves.values()),
        height=lesson.PICTURE,
        marks=[(s.qps, s.e2e_p99, t("sweet_spot.knee_mark", what=called[name], qps=s.qps)) for name, s in knees.items()],
        events=[(bend["static"] * guess[0], guess[1])] if guess and "static" in bend else [], key="knee",
        alt=t("sweet_spot.alt_knee", bends=", ".join(f"{called[name]} {qps:.1f}" for name, qps in bend.items())),
    )
    said = []
    if "static" in bend:
        said.append(t("sweet_spot.knee_says", what=option("batching", b.batching), ratio=bend["b"] / bend["static"], **bend))
    if "a" in bend:
        said.append(t("sweet_spot.knee_moved", what=narration.settings(b, a), a=bend["a"], b=bend["b"], ratio=bend["b"] / bend["a"]))
    lesson.end(flow, explain=joined(said), note=t("sweet_spot.knee_lead", factor=KNEE, least=LOADS[0], most=LOADS[-1]))


def numbers(scene: str, s: state.State) -> dict[str, Any]:
    """What the questions name."""
    named = {"clients": s.b.num_clients, "a": s.a.max_num_seqs, "b": s.b.max_num_seqs, "ttft": seconds(s.b.slo_ttft_s),
             "gpu": s.b.gpu, "itl": seconds(s.b.slo_tpot_s), "gpus": s.extra["gpus"]}
    if scene == "first":
        run = state.run(s.a)
        named |= {"clients": s.a.num_clients, "waiting": queue(run), "gpu": run.summary().gpu_compute}
    return named


with frame.page("sweet"):
    terms.explain("max_num_seqs", "max_num_batched_tokens", "waiting", "queue", "gpu_compute", "preemption", "recompute", "swap",
                  "kv_pool", "goodput_qps", "ttft", "itl", "e2e", "p99", "slo", "sweet_spot", "knee", "static_batching",
                  "qps", "tensor_parallel_size", "data_parallel_size", "lesson")
flow = lesson.begin("sweet_spot", SCENES, numbers, EXTRA)
{"climb": climb, "first": experiment, "second": experiment, "map": atlas, "search": hunt, "targets": targets, "knee": sums_up}[flow.name](flow)
state.publish()
