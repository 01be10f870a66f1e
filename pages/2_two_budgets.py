"""Two budgets: max_num_seqs and max_num_batched_tokens, what each one starves, and long prompts. Lesson 2.3.3, 2.3.6.4."""

import numpy as np

from sim.results import Run
from sim.scenario import Scenario
from sim.workload import Requests
from ui import charts, controls, frame, lesson, series, state, terms
from ui.lesson import Flow, Scene
from ui.text import count, percent, seconds, t

QUEUE = Scenario(
    request_rate=36, duration_s=40, prompt_tokens=512, output_tokens=256, max_num_seqs=64, max_num_batched_tokens=4096,
    max_model_len=8192,
)
TOKENS = Scenario(
    request_rate=5, duration_s=40, prompt_tokens=4000, prompt_cv=0.3, output_tokens=400, max_num_seqs=256,
    max_num_batched_tokens=2048,
)
STARVE = Scenario(
    request_rate=8, duration_s=30, lengths="mixture", prompt_tokens=300, long_prompt_tokens=30_000, long_share=0.05,
    output_tokens=120, max_num_seqs=128, max_num_batched_tokens=32_768, max_model_len=32_768,
    enable_chunked_prefill=False, enable_prefix_caching=False,
)
SEQS = (16, 32, 64, 96, 128, 192, 256, 384, 512)
BUDGETS = (512, 1024, 2048, 4096, 8192, 16_384)
SCENES = [
    Scene("queue", QUEUE.but(max_num_seqs=256), QUEUE, answers=("seats", "tokens", "gpu")),
    Scene("tokens", TOKENS.but(max_num_batched_tokens=16_384), TOKENS, answers=("both", "trade", "reverse")),
    Scene("starve", STARVE, STARVE, answers=("chunk", "threshold", "prefix")),
]


def figures(run: Run) -> dict[str, str]:
    """A run's figures in words."""
    s = run.summary()
    queue, prefill = series.ttft_split(run)
    return {
        "qps": count(s.qps), "waiting": count(s.waiting_max), "gpu": percent(s.gpu_compute), "queue": seconds(queue),
        "prefill": seconds(prefill), "ttft": seconds(s.ttft_p99), "itl": seconds(s.itl_p99), "running": count(s.running_max),
        "busy": percent(s.gpu_busy), "band": percent(s.gpu_bandwidth), "queue50": seconds(s.queue_p50), "ttft50": seconds(s.ttft_p50),
    }


def ab(b: Run, a: Run) -> dict[str, str]:
    """Figures of both runs, those of A with `_a`."""
    return {**figures(b), **{f"{k}_a": v for k, v in figures(a).items()}}


def lines(flow: Flow, of: object, b: Run, a: Run, colour: str) -> list[charts.Line]:
    """Before the reveal only what is, A; then both."""
    if flow.revealed:
        return charts.both(of, b, a, colour)  # type: ignore[arg-type]
    return [charts.Line(*of(a), colour, "A")]  # type: ignore[operator]


def draw_queue(flow: Flow) -> None:
    left, right = frame.columns(2)
    with left:
        controls.knob("max_num_seqs", SEQS)
    with right:
        controls.knob("max_num_batched_tokens", BUDGETS)
    b, a = state.runs(flow.s)
    words = ab(b, a)
    end = max(a.duration_s, b.duration_s if flow.revealed else 0.0)
    top = max(float(r.ticks.waiting.max()) for r in ((a, b) if flow.revealed else (a,))) * 1.1 + 1
    row = frame.columns(4)
    said = {"alt": "two_budgets.alt" if flow.revealed else "two_budgets.alt_a"}["alt"]
    limit = [("max_num_seqs", flow.s.b.max_num_seqs if flow.revealed else flow.s.a.max_num_seqs)]
    with row[0]:
        charts.timeline(t("two_budgets.running"), lines(flow, series.running, b, a, "decode"), limits=limit, x_end=end,
                        height=300, alt=t(f"{said}_running", **words))
    with row[1]:
        charts.timeline(t("two_budgets.waiting"), lines(flow, series.waiting, b, a, "waiting"), x_end=end, y_end=top,
                        height=300, alt=t(f"{said}_waiting", **words))
    with row[2]:
        charts.timeline(t("two_budgets.gpu"), lines(flow, series.utilisation, b, a, "prefill"), x_end=end, percent=True,
                        height=300, alt=t(f"{said}_gpu", **words))
    with row[3]:
        shown = [("A", a), ("B", b)] if flow.revealed else [("A", a)]
        split = [series.ttft_split(run, 0.5) for _, run in shown]
        charts.bars(t("two_budgets.split"), [name for name, _ in shown],
                    [charts.Part(t("two_budgets.part_queue"), "waiting", [q for q, _ in split]),
                     charts.Part(t("two_budgets.part_prefill"), "prefill", [p for _, p in split])],
                    height=300, words=seconds, alt=t(f"{said}_split", **words))
    lesson.end(flow, explain=t("two_budgets.queue_explain" if a is not b else "two_budgets.queue_explain_same", **words)
               + "\n\n" + lesson.says(t("two_budgets.queue_honest", **words)), run=b)


def draw_tokens(flow: Flow) -> None:
    left, right = frame.columns(2)
    with left:
        controls.knob("max_num_batched_tokens", BUDGETS)
    with right:
        controls.knob("request_rate", [1, 2, 3, 4, 5, 6, 7, 8])
    b, a = state.runs(flow.s)
    base = flow.s.b
    each = {n: state.run(base.but(max_num_batched_tokens=n, max_num_seqs=min(base.max_num_seqs, n))).summary() for n in BUDGETS}
    left, right = frame.columns(2)
    budgets = list(BUDGETS)
    words = ab(b, a) | {"b": f"{flow.s.b.max_num_batched_tokens:,}", "a": f"{flow.s.a.max_num_batched_tokens:,}"}
    if flow.revealed:
        for place, name, colour in ((left, "ttft", "prefill"), (right, "itl", "decode")):
            values = [1e3 * getattr(each[n], f"{name}_p99") for n in BUDGETS]
            middle = [1e3 * getattr(each[n], f"{name}_p50") for n in BUDGETS]
            now = flow.s.b.max_num_batched_tokens
            mark = [(now, values[budgets.index(now)], "B")] if now in budgets else []
            with place:
                charts.curve(
                    t(f"two_budgets.{name}_title"),
                    [charts.Line(budgets, middle, "idle", "P50", dotted=True), charts.Line(budgets, values, colour, "P99")],
                    x_title=t("two_budgets.tokens_axis"), x_start=512, x_end=16_384, log_x=True, height=300, marks=mark,
                    alt=t(f"two_budgets.alt_{name}", **words),
                )
    else:
        with left:
            lesson.covered(300)
        with right:
            lesson.covered(300)
    lesson.end(flow, explain=t("two_budgets.tokens_explain", **words), run=b)


REMEDIES = {
    "none": {},
    "chunk": {"enable_chunked_prefill": True, "max_num_batched_tokens": 2048},
    "threshold": {"enable_chunked_prefill": True, "max_num_batched_tokens": 2048, "long_prefill_token_threshold": 1024},
    "prefix": {"enable_prefix_caching": True},
}


def starving(s: Scenario) -> Requests:
    """Short prompts and a few long ones about the same document: its text is their common head, 28k of 30k tokens."""
    rng = np.random.default_rng(s.seed)
    n = int(s.request_rate * s.duration_s)
    arrival = np.cumsum(rng.exponential(1 / s.request_rate, n))
    long = rng.random(n) < s.long_share
    prompt = np.where(long, s.long_prompt_tokens, rng.integers(s.prompt_tokens // 2, s.prompt_tokens * 3 // 2, n))
    output = rng.integers(s.output_tokens // 2, s.output_tokens * 3 // 2, n)
    shared = min(28_000, s.long_prompt_tokens - 1)
    prefix = tuple(
        (("document", shared), (("p", i), int(prompt[i]) - shared)) if long[i] else ((("p", i), int(prompt[i])),)
        for i in range(n)
    )
    return Requests.of(arrival, prompt, output, prefix=prefix)


def short_figures(run: Run) -> tuple[float, float]:
    """P99 of the TTFT of the short ones, and the longest pause between two tokens anybody saw; s."""
    short = run.requests.prompt < 2000
    took = (run.first_token - run.arrival)[short]
    gaps, _ = run.itl()
    return float(np.nanquantile(took, 0.99)), float(gaps.max())


def draw_starve(flow: Flow) -> None:
    left, right = frame.columns(2)
    with left:
        controls.knob("long_prompt_tokens", [2000, 5000, 10_000, 20_000, 30_000])
    with right:
        lesson.presets([(t(f"two_budgets.remedy_{k}"), {**REMEDIES["none"], **{
            "enable_chunked_prefill": False, "max_num_batched_tokens": 32_768, "long_prefill_token_threshold": 0,
            "enable_prefix_caching": False}, **v}) for k, v in REMEDIES.items()], key="starve")
    base = STARVE.but(long_prompt_tokens=flow.s.b.long_prompt_tokens)
    found = {k: short_figures(state.run(base.but(**v), starving(base), f"starve{k}")) for k, v in REMEDIES.items()}
    shown = list(REMEDIES) if flow.revealed else ["none"]
    names = [t(f"two_budgets.remedy_{k}") for k in shown]
    words = {f"{k}_{what}": seconds(found[k][i]) for k in REMEDIES for i, what in enumerate(("ttft", "itl"))}
    words["long"] = f"{base.long_prompt_tokens:,}"
    left, right = frame.columns(2)
    for place, i, what, colour in ((left, 0, "ttft", "waiting"), (right, 1, "itl", "decode")):
        with place:
            charts.bars(
                t(f"two_budgets.starve_{what}"), names, [charts.Part("", colour, [found[k][i] for k in shown])], height=300,
                horizontal=True, words=seconds, y_end=found["none"][i] * 1.1,
                alt=t(f"two_budgets.alt_starve_{what}" if flow.revealed else f"two_budgets.alt_starve_{what}_a", **words),
            )
    lesson.end(flow, explain=t("two_budgets.starve_explain", **words))


def numbers(scene: str, s: state.State) -> dict[str, str]:
    if scene == "queue":
        return {f"{k}_a": v for k, v in figures(state.run(s.a)).items()} | {"seqs": str(s.a.max_num_seqs)}
    return {"long": f"{s.b.long_prompt_tokens:,}"}


with frame.page("budgets"):
    terms.explain("max_num_seqs", "max_num_batched_tokens", "waiting", "running", "ttft", "queue", "itl", "p99", "gpu_compute",
                  "gpu_bandwidth", "gpu_busy", "enable_chunked_prefill", "long_prefill_token_threshold",
                  "enable_prefix_caching")
flow = lesson.begin("two_budgets", SCENES, numbers)
{"queue": draw_queue, "tokens": draw_tokens, "starve": draw_starve}[flow.name](flow)
state.publish()
