"""The KV pool: where it comes from, what happens when it is full, and how to see it. Lesson 2.3.4, 2.3.9."""

from dataclasses import replace

import streamlit as st

from sim.memory import GIB, MemoryPlan, plan
from sim.results import Run
from sim.scenario import Scenario, SimError
from sim.workload import draw
from ui import charts, controls, frame, lesson, narration, pool, series, state, terms
from ui.lesson import Flow, Scene
from ui.text import change, count, percent, seconds, t

POOL = Scenario(request_rate=10, duration_s=20, prompt_tokens=1024, output_tokens=512, max_num_seqs=256)
PER_REQUEST = 63  # blocks of 300 + 700 tokens
BLOCKS = 256 * PER_REQUEST + 1  # for 256 whole requests, and the null block
FULL = Scenario(
    gpu="A100-80GB", request_rate=22, duration_s=40, prompt_tokens=300, prompt_cv=0.3, output_tokens=700, output_cv=0.3,
    max_num_seqs=256, max_num_batched_tokens=4096, max_model_len=4096, num_gpu_blocks_override=BLOCKS,
    enable_prefix_caching=False,
)
OVER = FULL.but(max_num_seqs=512)
SMALL = OVER.but(request_rate=3, max_num_seqs=32, num_gpu_blocks_override=16 * PER_REQUEST + 1)
PICTURES = ("kv_max", "running_max", "waiting_max", "preemptions", "e2e_p99")  # of `four`, and what the questions are about
USERS = FULL.but(arrival="closed", duration_s=120, num_clients=350, output_cv=0.6, max_num_seqs=512)  # full for most of the run
THRASH = Scenario(
    request_rate=6, duration_s=40, prompt_tokens=3000, prompt_cv=0.3, output_tokens=300, output_cv=0.5, max_num_seqs=64,
    max_num_batched_tokens=2048, max_model_len=8192, num_gpu_blocks_override=4000, enable_prefix_caching=False,
)
SHARES = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.92, 0.95)
SEATS = (64, 128, 192, 256, 320, 384, 448, 512)
LINKS = (3.0, 6.0, 12.0, 25.0, 50.0, 100.0)  # GB/s
VICTIMS = ("last_admitted", "fewest_remaining", "longest")
SCENES = [
    Scene("pool", POOL.but(gpu_memory_utilization=0.92), POOL.but(gpu_memory_utilization=0.85),
          answers=("less", "same", "more")),
    Scene("match", OVER, FULL, answers=("faster", "same", "slower")),
    Scene("blocks", SMALL, SMALL, answers=("one", "prompt", "all")),
    Scene("signs", USERS.but(max_num_seqs=1024), USERS, answers=("nothing", "faster", "slower")),
    Scene("mode", OVER.but(preemption_mode="swap", swap_space_gib=64.0), OVER, answers=("swap", "recompute", "never")),
    Scene("victim", OVER.but(victim="fewest_remaining"), OVER, answers=("better", "same", "worse")),
    Scene("thrash", THRASH.but(scheduler_reserve_full_isl=False), THRASH, answers=("more", "same", "less")),
]


def four(flow: Flow, b: Run, a: Run) -> None:
    """Seats, queue, pool and what was thrown out: A alone before the reveal, both after it."""
    words, last = narration.figures(b, a), b if flow.revealed else a
    end, first = max(a.duration_s, last.duration_s), series.first_preemption(last)
    for place, name, of, colour, options in zip(frame.columns(4), ("kv", "running", "waiting", "preempt"), (
        series.kv, series.running, series.waiting, series.preemptions), ("kv", "decode", "waiting", "preempted"), (
        {"percent": True, "events": [(first, t("kv_pool.first"))]}, {"limits": [("max_num_seqs", last.scenario.max_num_seqs)]},
        {}, {} if a.ticks.preempted.any() or last.ticks.preempted.any() else {"y_end": 10}), strict=True,
    ):
        with place:
            charts.timeline(t(f"kv_pool.{name}"), lesson.lines(flow, of, b, a, colour), x_end=end, height=lesson.PICTURE,
                            alt=t(f"kv_pool.alt_{'' if flow.revealed else 'a_'}{name}", **words), **options)


def planned(s: Scenario) -> MemoryPlan:
    """The memory of a scenario; one that cannot start is explained, and ends the page."""
    try:
        return plan(s)
    except SimError as error:
        state.end(error, s)


def draw_pool(flow: Flow) -> None:
    budget = flow.scene.b.max_num_batched_tokens
    lesson.bench(flow, {"gpu_memory_utilization": SHARES, "max_num_batched_tokens": [2048, 4096, 8192, 16_384, 32_768]}, [
        (t(f"kv_pool.pool_preset_{k}"), {"gpu_memory_utilization": u, "max_num_batched_tokens": n}) for k, u, n in
        (("more", 0.92, budget), ("half", 0.5, budget), ("steps", 0.92, 32_768))])
    b, a = planned(flow.s.b), planned(flow.s.a)
    shown = [("A", a), ("B", b)] if flow.revealed else [("A", a)]
    one = flow.s.b.prompt_tokens + flow.s.b.output_tokens
    holds = {name: (p.num_gpu_blocks - 1) // -(-one // flow.s.b.block_size) for name, p in (("a", a), ("b", b))}
    words = {"a": f"{a.kv / GIB:.1f}", "b": f"{b.kv / GIB:.1f}", "util_a": f"{flow.s.a.gpu_memory_utilization:g}",
             "util_b": f"{flow.s.b.gpu_memory_utilization:g}", "blocks_a": f"{a.num_gpu_blocks:,}", "one": f"{one:,}",
             "blocks_b": f"{b.num_gpu_blocks:,}", "holds_a": count(holds["a"]), "holds_b": count(holds["b"]),
             "gain": change(b.kv, a.kv), "block": str(flow.s.b.block_size), "weights": f"{b.weights / GIB:.1f}",
             "act_a": f"{a.activation / GIB:.1f}", "act_b": f"{b.activation / GIB:.1f}", "tokens_b": f"{b.kv_tokens:,}"}
    parts = [
        charts.Part(t(f"kv_pool.{name}"), colour, [of(p) / GIB for _, p in shown]) for name, colour, of in (
            ("weights", series.STEP_PARTS["linear"][1], lambda p: p.weights), ("activation", "soft", lambda p: p.activation),
            ("graphs", "ink", lambda p: p.graphs + p.other), ("kv_part", "kv", lambda p: p.kv),
            ("unused", "idle", lambda p: p.total - p.requested))
    ]
    charts.bars(
        t("kv_pool.memory"), [name for name, _ in shown], parts,
        height=lesson.PICTURE, horizontal=True, words=lambda v: f"{v:.1f}" if v > 0.03 * b.total / GIB else "", y_end=b.total / GIB,
        alt=t("kv_pool.alt_memory" if flow.revealed else "kv_pool.alt_memory_a", **words),
    )
    charts.swatches(parts)
    only = flow.s.b == flow.s.a.but(gpu_memory_utilization=flow.s.b.gpu_memory_utilization)
    key = "kv_pool.pool_explain" if only and flow.s.compared else "kv_pool.pool_changed" if flow.s.compared else "lesson.same"
    lesson.end(flow, explain=t(key, what=narration.settings(flow.s.b, flow.s.a), **words),
               note=f"{t('kv_pool.pool_log')} `{b.log_line}`", then=(t("kv_pool.pool_then"), {"max_num_batched_tokens": 32_768}))


def draw_match(flow: Flow) -> None:
    pools = [8000, 12_000, BLOCKS, 20_000, 24_000, 28_000, 2 * BLOCKS]
    lesson.bench(flow, {"max_num_seqs": SEATS, "num_gpu_blocks_override": pools}, [
        (t(f"kv_pool.match_preset_{k}"), {"max_num_seqs": n, "num_gpu_blocks_override": blocks}) for k, n, blocks in
        (("over", 512, BLOCKS), ("fit", 256, BLOCKS), ("few", 64, BLOCKS), ("double", 512, 2 * BLOCKS))])
    b, a = state.runs(flow.s)
    four(flow, b, a)
    sb, sa = b.summary(), a.summary()
    lesson.end(flow, explain=t(
        "kv_pool.match_explain", **narration.figures(b, a), p99change=change(sb.e2e_p99, sa.e2e_p99),
        qpschange=change(sb.qps, sa.qps),
    ), run=b, against=a, pictures=PICTURES)


def draw_signs(flow: Flow) -> None:
    flow.s.together = frozenset({"num_clients"})  # a remedy is compared with none at the same load
    remedies = {"seats": (1024, BLOCKS), "fewer": (256, BLOCKS), "memory": (512, 2 * BLOCKS)}
    lesson.bench(flow, claims=[
        *((t(f"kv_pool.signs_{name}"), {"num_clients": users, "max_num_seqs": 512, "num_gpu_blocks_override": BLOCKS})
          for name, users in (("empty", USERS.num_clients), ("full", 600))),
        *((t(f"kv_pool.signs_{name}"), {"max_num_seqs": seats, "num_gpu_blocks_override": blocks})
          for name, (seats, blocks) in remedies.items()),
    ])
    b, a = state.runs(flow.s)
    four(flow, b, a)
    words = narration.figures(b, a) | {"users": count(b.scenario.num_clients), "mean": count(b.summary().waiting_mean)}
    lesson.end(flow, explain=t(f"kv_pool.signs_{'explain' if flow.s.compared else 'state'}", **words), pictures=PICTURES,
               note=lesson.says(t("kv_pool.signs_honest")), run=b, against=a if flow.s.compared else None)


@st.cache_resource(max_entries=8)
def preemption(key: str, _s: Scenario) -> pool.Preemption | None:
    """The steps around the first preemption of a scenario."""
    return pool.first_preemption(_s, draw(_s))


def first_victim(s: Scenario) -> dict[str, str]:
    """What the first preemption of a scenario takes and gives, in words; {} if there is none."""
    state.run(s)  # explains what cannot start
    p = preemption(state.run_key(s), s)
    if p is None:
        return {}
    after = p.moments[p.at + 1:]
    again = next((str(m.index - p.moments[p.at].index) for m in after if m.preempted), f"> {len(after)}")
    emptied = next((str(k - p.at) for k in range(p.at, len(p.moments)) if p.gone(k) == len(p.freed)), f"> {len(after)}")
    return {"all": f"{p.usable:,}", "seats": str(s.max_num_seqs), "step": str(p.moments[p.at].index), "again": again,
            "victim": ", ".join(str(r + 1) for r in p.victims), "freed": str(len(p.freed)), "emptied": emptied,
            "holders": str(len(set(p.moments[p.at - 1].owners.values())))}


def draw_blocks(flow: Flow) -> None:
    offset = min(max(int(flow.s.extra["k"]), -60), 60)
    key = "kv_step"
    st.session_state[key] = offset
    lesson.bench(flow, {"k": lambda: st.slider(
        t("kv_pool.blocks_step"), -60, 60, key=key, on_change=lambda: state.change(k=st.session_state[key]))}, [
        *((t(f"kv_pool.blocks_at_{name}"), {"k": k}) for name, k in (("fill", -60), ("before", -1), ("out", 0), ("gone", 60))),
        *((controls.option("victim", v), {"victim": v}) for v in VICTIMS[::2])])
    words, p = first_victim(flow.s.b), preemption(state.run_key(flow.s.b), flow.s.b)
    if p is None:
        if flow.revealed:  # before, it stands in the place of the question
            st.info(t("kv_pool.blocks_none"))
        return
    k = min(max(p.at + offset, 0), len(p.moments) - 1) if flow.revealed else p.at - 1
    moment = p.moments[k]
    used = percent(len(moment.owners) / p.usable)
    left, right = st.columns([3, 2], gap="medium")
    with left:
        st.markdown(f"**{t('kv_pool.blocks_picture', step=moment.index, used=used)}**")
        alt = t("kv_pool.alt_blocks", step=moment.index, used=used, free=p.usable - len(moment.owners))
        st.html(pool.grid(p if flow.revealed else replace(p, freed=frozenset()), k, alt))
    with right:
        shown = p.moments if flow.revealed else p.moments[: p.at]
        share = [len(m.owners) / p.usable for m in shown]
        charts.curve(
            t("kv_pool.kv"), [charts.Line([m.index for m in shown], share, "kv")], x_title=t("kv_pool.blocks_axis"),
            x_start=p.moments[0].index, x_end=p.moments[-1].index, percent=True, y_end=1.0, height=lesson.PICTURE,
            events=[(m.index, f"{t('kv_pool.first')}" if i == p.at else "") for i, m in enumerate(shown) if m.preempted],
            marks=[(moment.index, share[k], "")], alt=t("kv_pool.alt_blocks_kv", used=used, step=moment.index),
        )
        if flow.revealed:
            st.caption(t("kv_pool.blocks_key"))
    lesson.end(flow, explain=t("kv_pool.blocks_explain", **words), note=t("kv_pool.blocks_why") if flow.untouched else "",
               then=(t("kv_pool.blocks_then"), {"victim": "longest", "k": 0}))


def draw_mode(flow: Flow) -> None:
    lesson.bench(flow, {"pcie_gb_s": LINKS}, [
        (t(f"kv_pool.mode_preset_{k}"), {"pcie_gb_s": g}) for k, g in (("slow", 3.0), ("today", 25.0), ("fast", 100.0))])
    swap = flow.s.b.but(preemption_mode="swap")
    recompute = state.run(swap.but(preemption_mode="recompute"))
    cautious = state.run(swap.but(preemption_mode="recompute", max_num_seqs=min(256, swap.max_num_batched_tokens)))
    few = count(cautious.scenario.max_num_seqs)
    each = [state.run(swap.but(pcie_gb_s=g)) for g in LINKS]
    now = state.run(swap)
    error, why = narration.error(swap.gpu)
    left, right = frame.columns(2)
    for place, name, colour, of, said in (
        (left, "mode_p99", "preempted", lambda s: s.e2e_p99, seconds), (right, "mode_qps", "decode", lambda s: s.qps, count),
    ):
        flat = [of(recompute.summary())] * len(LINKS)
        off = error if name == "mode_p99" else 0.0
        lines = [charts.Line(LINKS, flat, "idle", t("kv_pool.recompute"), dotted=True)]
        if flow.revealed:
            lines += [charts.Line(LINKS, [of(r.summary()) for r in each], colour, t("kv_pool.swap"), error=off),
                      charts.Line(LINKS, [of(cautious.summary())] * len(LINKS), "prefill", t("kv_pool.cautious", few=few), dotted=True)]
        values = [of(r.summary()) for r in (*each, recompute, cautious)]
        with place:
            charts.curve(
                t(f"kv_pool.{name}"), lines, x_title=t("kv_pool.link_axis"), x_start=LINKS[0], x_end=LINKS[-1], log_x=True,
                height=lesson.PICTURE, y_end=max(values) * 1.1, alt=t(f"kv_pool.alt_{name}" if flow.revealed else f"kv_pool.alt_{name}_a", few=few),
                marks=[(swap.pcie_gb_s, of(now.summary()), said(of(now.summary())))] if flow.revealed else [],
            )
    p99, p99_a = now.summary().e2e_p99, recompute.summary().e2e_p99
    words = {**narration.figures(now, recompute), "link": f"{swap.pcie_gb_s:g}",
             "p99_c": seconds(cautious.summary().e2e_p99), "few": few, "apart": change(p99, p99_a), "off": percent(error)}
    verdict = t(f"kv_pool.mode_{'close' if abs(p99 / p99_a - 1) <= error else 'apart'}", **words)
    lesson.end(flow, explain=t("kv_pool.mode_explain", verdict=verdict, **words), run=now,
               note=f"{lesson.says(t('kv_pool.mode_honest'))}\n\n{lesson.pale(why)}", then=(t("kv_pool.mode_then"), {"pcie_gb_s": 3.0}))


def draw_victim(flow: Flow) -> None:
    lesson.bench(flow)
    found = {v: state.run(flow.s.a.but(victim=v)).summary() for v in VICTIMS}
    shown = VICTIMS if flow.revealed else VICTIMS[:1]
    names = [t(f"kv_pool.v_{v}") for v in shown]
    for place, (name, colour, of, words) in zip(frame.columns(4), (
        ("v_p99", "waiting", lambda s: s.e2e_p99, seconds), ("v_p50", "decode", lambda s: s.e2e_p50, seconds),
        ("v_preempt", "preempted", lambda s: s.preemptions, count), ("v_again", "prefill", lambda s: s.recomputed_tokens, count),
    ), strict=True):
        with place:
            charts.bars(t(f"kv_pool.{name}"), names, [charts.Part("", colour, [of(found[v]) for v in shown])], horizontal=True,
                        words=words, height=lesson.PICTURE, y_end=1.1 * max(of(s) for s in found.values()),
                        alt=t(f"kv_pool.{name}") + ": " + ", ".join(
                            f"{n} {words(of(found[v]))}" for n, v in zip(names, shown, strict=True)))
    words = {f"{v}_{k}": f(getattr(found[v], field)) for v in VICTIMS for k, field, f in (
        ("p99", "e2e_p99", seconds), ("p50", "e2e_p50", seconds), ("n", "preemptions", count), ("again", "recomputed_tokens", count))}
    words["p99change"] = change(found["fewest_remaining"].e2e_p99, found["last_admitted"].e2e_p99)
    lesson.end(flow, explain=t("kv_pool.victim_explain", **words), note=lesson.says(t("kv_pool.victim_honest")),
               then=(t("kv_pool.victim_then"), {"p": "blocks.reveal", "k": 0}))


def draw_thrash(flow: Flow) -> None:
    lesson.bench(flow, {"max_num_seqs": [8, 16, 32, 64, 128]}, [
        (t(f"kv_pool.thrash_preset_{k}"), {"scheduler_reserve_full_isl": gate, "max_num_seqs": n})
        for k, gate, n in (("off", False, 64), ("on", True, 64), ("few", False, 8))])
    b, a = state.runs(flow.s)
    four(flow, b, a)
    lesson.end(flow, explain=t("kv_pool.thrash_explain", **narration.figures(b, a)), run=b, against=a, pictures=PICTURES)


def numbers(scene: str, s: state.State) -> dict[str, str]:
    if scene == "blocks":
        return first_victim(s.b) or {"question": t("kv_pool.blocks_none")}
    if scene == "pool":
        return {"util_a": f"{s.a.gpu_memory_utilization:g}", "util_b": f"{s.b.gpu_memory_utilization:g}",
                "more": f"{100 * (s.b.gpu_memory_utilization / s.a.gpu_memory_utilization - 1):.0f}%"}
    a = state.run(s.a)
    whole = (a.num_gpu_blocks - 1) // PER_REQUEST
    return narration.figures(a, a) | {
        "seats": count(s.b.max_num_seqs), "whole": count(whole), "users": count(s.b.num_clients), "link": f"{s.b.pcie_gb_s:g}",
        "prompt": count(s.b.prompt_tokens)}


with frame.page("kv"):
    terms.explain("kv_block", "kv_pool", "kv", "waiting", "running", "preemption", "recompute", "swap", "thrashing", "e2e",
                  "p99", "gpu_memory_utilization", "max_num_seqs", "max_num_batched_tokens", "scheduler_reserve_full_isl",
                  "scheduling_policy", "prefill", "slo", "tpot", "lesson")
flow = lesson.begin("kv_pool", SCENES, numbers, extra={"k": 0})
{"pool": draw_pool, "match": draw_match, "mode": draw_mode, "victim": draw_victim, "thrash": draw_thrash,
 "signs": draw_signs, "blocks": draw_blocks}[flow.name](flow)
state.publish()
