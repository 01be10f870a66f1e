"""The playground: every knob, A against B, real traces, everything to take away."""

import streamlit as st

from sim import catalog, experts, memory
from sim.scenario import SETTINGS, Scenario
from ui import controls, dashboard, exports, frame, narration, state, terms, traffic
from ui.text import joined, language, t

DEFAULT = Scenario(max_num_seqs=64, request_rate=30.0, duration_s=60.0)
KINDS = ["compute", "bandwidth", "busy"]
LATENCIES = ["ttft", "tpot", "e2e"]

actions = frame.page("playground")
s = state.load(DEFAULT, extra={"u": "compute", "l": "ttft"})


def group(name: str) -> bool:
    """A closed drawer of further knobs; what is in it is only made when it is open."""
    return st.expander(t(f"playground.group.{name}"), key=f"group_{name}", on_change="rerun")


def knobs() -> None:
    b = s.b
    traffic.presets()
    controls.pick("model", traffic.models())
    controls.knob("max_num_seqs", [8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 1024])
    controls.knob("max_num_batched_tokens", [512, 1024, 2048, 4096, 8192, 16384, 32768])
    if b.num_gpu_blocks_override:  # gpu_memory_utilization then says nothing of the pool
        controls.knob("num_gpu_blocks_override", [0, 1000, 2000, 4000, 6000, 8000, 12_000, 16_000, 24_000],
                      words=lambda v: t("playground.pool_words", n=f"{v:,}") if v else t("playground.pool_from_memory"))
    else:
        controls.knob("gpu_memory_utilization", [0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.92, 0.95], words=lambda v: f"{v:g}")
    controls.knob("tensor_parallel_size", [1, 2, 4, 8, 16])
    controls.knob("expert_skew", [0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5], idle="" if traffic.has_experts(b.model) else t("playground.dense"))
    with st.container(horizontal=True):
        controls.pick("arrival")
        if b.arrival != "trace":
            controls.pick("lengths")
    if b.arrival == "trace":
        traffic.trace()
        controls.knob("rate_scale", [0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0])
    elif b.arrival == "closed":
        controls.knob("num_clients", [1, 2, 4, 8, 16, 32, 64, 128, 256, 512])
    else:
        controls.knob("request_rate", [1.0, 2.0, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 60.0, 80.0])
    if b.arrival != "trace" and b.lengths in ("fixed", "lognormal", "mixture"):
        controls.knob("prompt_tokens", [32, 64, 128, 256, 512, 1024, 2048, 4096, 8192])
        controls.knob("output_tokens", [16, 32, 64, 128, 256, 512, 1024, 2048])
    with (drawer := group("traffic")):
        if drawer.open:
            more_traffic()
    with (drawer := group("hardware")):
        if drawer.open:
            hardware()
    with (drawer := group("scheduler")):
        if drawer.open:
            scheduler()
    with (drawer := group("what_if")):
        if drawer.open:
            what_if()


def more_traffic() -> None:
    b = s.b
    controls.knob("duration_s", [10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0])
    if b.arrival == "bursty":
        controls.knob("burst_cv", [0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0])
    if b.arrival in ("spike", "ramp"):
        controls.knob("spike_factor", [1.5, 2.0, 3.0, 5.0, 8.0, 10.0, 20.0])
    if b.arrival == "trace":
        controls.number("trace_start_s")
    if b.arrival == "closed" or b.chat_turns > 1:
        controls.knob("think_time_s", [0.0, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0])
    if b.arrival != "trace":
        if b.lengths == "mixture":
            controls.knob("long_share", [0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5])
            controls.knob("long_prompt_tokens", [4000, 8000, 16_000, 30_000, 60_000, 120_000])
        if b.lengths in ("lognormal", "mixture"):
            controls.knob("prompt_cv", [0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0])
            controls.knob("output_cv", [0.0, 0.25, 0.5, 0.8, 1.0, 1.5, 2.0, 3.0])
        controls.knob("system_prompt_tokens", [0, 128, 256, 512, 1024, 2048, 4096, 8192])
        if b.system_prompt_tokens:
            controls.knob("num_system_prompts", [1, 2, 4, 8, 16, 64])
        controls.knob("chat_turns", [1, 2, 3, 4, 6, 8, 12])
        controls.knob("urgent_share", [0.0, 0.05, 0.1, 0.2, 0.3, 0.5])
    controls.number("num_requests")
    controls.number("seed")


def hardware() -> None:
    controls.pick("gpu", traffic.gpus())
    controls.choice("weights")
    controls.choice("kv_cache_dtype")
    controls.knob("data_parallel_size", [1, 2, 3, 4, 8])
    controls.choice("link")
    controls.switch("enable_expert_parallel")
    controls.number("num_redundant_experts")
    if not s.b.num_gpu_blocks_override:
        controls.number("num_gpu_blocks_override")
    controls.knob("block_size", [8, 16, 32, 64, 128])
    controls.knob("max_model_len", [2048, 4096, 8192, 16_384, 32_768, 65_536, 131_072])


def scheduler() -> None:
    controls.choice("scheduling_policy")
    controls.switch("enable_chunked_prefill")
    controls.switch("enable_prefix_caching")
    controls.switch("scheduler_reserve_full_isl")
    controls.switch("async_scheduling")
    controls.knob("long_prefill_token_threshold", [0, 256, 512, 1024, 2048, 4096])
    controls.switch("long_prefill_token_threshold_adaptive")
    controls.number("max_num_active_seqs")
    controls.knob("watermark", [0.0, 0.01, 0.02, 0.05, 0.1, 0.2])
    controls.choice("router")


def what_if() -> None:
    controls.choice("batching")
    if s.b.batching == "static":
        controls.knob("static_timeout_s", [0.0, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0])
    controls.choice("preemption_mode")
    controls.choice("victim")
    if s.b.preemption_mode == "swap":
        controls.knob("swap_space_gib", [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0])
        controls.knob("pcie_gb_s", [3.0, 6.0, 12.0, 25.0, 50.0, 100.0])
    controls.choice("host")
    controls.knob("slo_ttft_s", [0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0])
    controls.knob("slo_tpot_s", [0.01, 0.02, 0.03, 0.05, 0.1, 0.2])


def figures(b: object, a: object | None, error: float, why: str) -> None:
    wanted = [
        ("qps", "req/s", 1), ("ttft_p99", "s", -1), ("itl_p99", "s", -1), ("tpot_p99", "s", -1), ("gpu_compute", "%", 1),
        ("running_max", "", 0), ("waiting_mean", "", -1), ("kv_max", "%", 0), ("preemptions", "", -1), ("goodput_qps", "req/s", 1),
    ]
    frame.tiles(((n, getattr(b, n), getattr(a, n) if a else None, unit, sense) for n, unit, sense in wanted), error, why)


def ranks(b: Scenario, a: Scenario | None) -> None:
    """Under expert parallelism: how much more than the mean the fullest rank gets, and what copies cost in KV memory."""
    def says(one: Scenario) -> tuple[str, str]:
        shape, cards = catalog.model(one.model), memory.expert_ranks(one)
        if not shape.experts or cards == 1:
            return "", ""
        ratio = f"{experts.rank_imbalance(shape, one.expert_skew, cards, one.num_redundant_experts):.2f}"
        held = f"{-(-(shape.experts + one.num_redundant_experts) // cards):,}"
        words = {"ratio": ratio, "held": held, "pool": f"{memory.plan(one).kv / 2**30:.1f}"}
        return t("playground.ranks", ranks=cards, **words), t("playground.ranks_a", **words)

    now, short = says(b)
    then = says(a)[1] if a else ""
    if now:
        st.caption(joined([now, then if then != short else ""]))


def moved(b: Scenario) -> tuple[str, ...]:
    """The settings that the visitor has moved, the last one first: where many differ from A, a sentence names these."""
    seen, order = st.session_state.get("playground_moved", (b, ()))
    now = [name for name in SETTINGS if getattr(b, name) != getattr(seen, name)]
    order = tuple(dict.fromkeys((*now, *order)))
    st.session_state["playground_moved"] = b, order
    return order


side, stage = st.columns([3, 8], gap="large")
with side, st.container(key="knobs"):
    knobs()
with stage, st.container(key="stage"):
    state.notices()
    b, a = state.runs(s, traffic.requests)
    error, why = narration.error(s.b.gpu)
    figures(b.summary(), a.summary() if s.compared else None, error, why)
    ranks(s.b, s.a if s.compared else None)
    if b.stopped:
        st.warning(t(f"playground.stopped_{b.stopped}", ticks=f"{len(b.ticks):,}"), icon=":material/timer_off:")
    if sent_away := narration.refused(b):
        st.caption(sent_away)
    frame.note(narration.changed(b.summary(), a.summary(), s.b, s.a, most=3, recent=moved(s.b)))
    with st.container(horizontal=True, key="stage_bar"):
        controls.extra_choice("u", KINDS, words=lambda k: t(f"playground.kind_{k}"), title=t("playground.kind"))
        controls.extra_choice("l", LATENCIES, words=str.upper, title=t("playground.latency"))
        terms.explain("max_num_seqs", "max_num_batched_tokens", "kv_pool", "expert_skew", "waiting", "running", "preemption", "ttft", "itl",
                      "tpot", "e2e", "p99", "goodput_qps", "gpu_compute", "gpu_bandwidth", "gpu_busy", "slo")
    upload = [traffic.requests(x)[1] for x in (s.b, s.a)]
    key = (state.run_key(s.b), state.run_key(s.a), *upload, language(), frame.theme(), str(frame.scale()))
    dashboard.pictures(key, b, a, str(s.extra["u"]), str(s.extra["l"]), error)
    frame.link(frame.PAGES["sweet"], t("playground.curve"), {"lang": language(), "p": "knee.reveal", **state.scenarios(s)},
               icon=":material/show_chart:")
    st.caption(joined([t("playground.band"), why, narration.facts(b.summary()), traffic.report(s.b)]))
with actions:
    st.button(t("playground.pin"), on_click=state.pin, icon=":material/keep:", help=t("playground.pin_help"), disabled=not s.compared)
    st.button(t("playground.back"), on_click=state.back_to_a, disabled=not s.compared)
    exports.copy_link(s)
    exports.serve_line(s.b)
    exports.downloads(b)
state.publish()
