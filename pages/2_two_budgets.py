"""Two budgets: max_num_seqs and max_num_batched_tokens, what each one starves, and long prompts. Lesson 2.3.3, 2.3.6.4."""

from typing import Any

import numpy as np

from sim.results import Run
from sim.scenario import Scenario
from sim.workload import Requests
from ui import charts, frame, lesson, narration, series, state, terms
from ui.lesson import Flow, Scene
from ui.text import seconds, t

QUEUE = Scenario(
    request_rate=36, duration_s=40, prompt_tokens=512, output_tokens=256, max_num_seqs=64, max_num_batched_tokens=4096,
)
NARROW = QUEUE.but(max_num_seqs=256, max_num_batched_tokens=256)  # the other wall: seats stay free
TOKENS = Scenario(
    request_rate=5, duration_s=40, prompt_tokens=4000, prompt_cv=0.3, output_tokens=400, max_num_seqs=256,
    max_num_batched_tokens=2048,
)
DOCUMENT = 28_000  # tokens that the long prompts have in common
STARVE = Scenario(
    request_rate=8, duration_s=30, lengths="mixture", prompt_tokens=300, long_prompt_tokens=30_000, long_share=0.05,
    output_tokens=120, max_num_seqs=128, max_num_batched_tokens=32_768, max_model_len=32_768,
    enable_chunked_prefill=False, enable_prefix_caching=False,
)
SEQS = (16, 32, 64, 96, 128, 192, 256, 384, 512)
BUDGETS = (256, 512, 1024, 2048, 4096, 8192, 16_384)
SCENES = [
    Scene("queue", QUEUE.but(max_num_seqs=256), QUEUE, answers=("seats", "tokens", "gpu")),
    Scene("other", NARROW.but(max_num_batched_tokens=2048), NARROW, answers=("seats", "tokens", "gpu")),
    Scene("tokens", TOKENS.but(max_num_batched_tokens=16_384), TOKENS, answers=("both", "trade", "reverse")),
    Scene("starve", STARVE, STARVE, answers=("chunk", "threshold", "prefix")),
]


def draw_queue(flow: Flow) -> None:
    """A queue beside an idle GPU, twice: the seats are the wall, then the tokens."""
    lesson.bench(flow, {"max_num_seqs": SEQS, "max_num_batched_tokens": BUDGETS}, [
        (t(f"two_budgets.queue_preset_{k}"), {"max_num_seqs": n, "max_num_batched_tokens": m}) for k, n, m in (
            ("seats", 256, 4096), ("tokens", 64, 16_384), ("more", 512, 4096), ("small", 256, 256))])
    b, a = state.runs(flow.s)
    words = narration.figures(b, a)
    shown = [("A", a), ("B", b)] if flow.revealed else [("A", a)]
    end = max(run.duration_s for _, run in shown)
    top = max(float(run.ticks.waiting.max()) for _, run in shown) * 1.1 + 1
    alt = "two_budgets.alt" if flow.revealed else "two_budgets.alt_a"
    row = frame.columns(4)
    with row[0]:
        charts.timeline(t("two_budgets.running"), lesson.lines(flow, series.running, b, a, "decode"), x_end=end,
                        limits=[("max_num_seqs", shown[-1][1].scenario.max_num_seqs)], height=lesson.PICTURE,
                        alt=t(f"{alt}_running", **words))
    with row[1]:
        charts.timeline(t("two_budgets.waiting"), lesson.lines(flow, series.waiting, b, a, "waiting"), x_end=end, y_end=top,
                        height=lesson.PICTURE, alt=t(f"{alt}_waiting", **words))
    with row[2]:
        charts.timeline(t("two_budgets.gpu"), lesson.lines(flow, series.utilisation, b, a, "ink"), x_end=end, percent=True,
                        height=lesson.PICTURE, alt=t(f"{alt}_gpu", **words))
    with row[3]:
        split = [series.ttft_split(run, 0.5) for _, run in shown]
        charts.bars(t("two_budgets.split"), [name for name, _ in shown],
                    [charts.Part(t("two_budgets.part_queue"), "waiting", [q for q, _ in split]),
                     charts.Part(t("two_budgets.part_prefill"), "prefill", [p for _, p in split])],
                    height=lesson.PICTURE, words=seconds, alt=t(f"{alt}_split", **words))
    lesson.end(flow, explain=t(f"two_budgets.{flow.name}_explain", **words), run=b, against=a,
               note=lesson.says(t("two_budgets.queue_honest", **words)) if flow.name == "queue" else "",
               then=(t(f"two_budgets.{flow.name}_then"), {"max_num_seqs": 256, "max_num_batched_tokens": 256 if flow.name == "queue" else 512}),
               pictures=("running_max", "waiting_max", "gpu_compute", "ttft_p50"))


def draw_tokens(flow: Flow) -> None:
    lesson.bench(flow, {"max_num_batched_tokens": BUDGETS},
                 [(t("two_budgets.tokens_preset", n=f"{n:,}"), {"max_num_batched_tokens": n}) for n in (512, 2048, 16_384)])
    b, a = state.runs(flow.s)
    least = max(flow.s.b.max_num_seqs, 0 if flow.s.b.enable_chunked_prefill else flow.s.b.max_model_len)
    budgets = [n for n in BUDGETS if n >= least] or [flow.s.b.max_num_batched_tokens]
    each = [state.run(flow.s.b.but(max_num_batched_tokens=n)).summary() for n in budgets]
    words = narration.figures(b, a) | numbers("tokens", flow.s)
    shown = [("A", a)] if not flow.revealed else [("", b)] if a is b else [("A", a), ("B", b)]
    error, why = narration.error(flow.s.b.gpu)
    for place, name, colour in zip(frame.columns(2), ("ttft", "itl"), ("prefill", "decode"), strict=True):
        log = flow.revealed and name == "ttft"  # small budgets choke: seconds beside ms
        middle, tail = ([1e3 * getattr(s, f"{name}_{p}") for s in each] for p in ("p50", "p99"))
        told = {"ttft": "ttft_p50", "itl": "itl_p99"}[name]  # what the sentence speaks of
        dots = [(run.scenario.max_num_batched_tokens, getattr(run.summary(), told), word) for word, run in shown]
        with place:
            charts.curve(
                t(f"two_budgets.{name}_{'log' if log else 'title'}"),
                [charts.Line(budgets, middle, "idle", "P50", dotted=True), charts.Line(budgets, tail, colour, "P99", error=error)]
                if flow.revealed else [],
                x_title=t("two_budgets.tokens_axis"), x_start=BUDGETS[0], x_end=BUDGETS[-1], log_x=True,
                y_end=max(tail) * 1.15 if flow.revealed else 2.2e3 * dots[0][1],
                log_y=log,
                marks=[(x, 1e3 * y, f"{word} {seconds(y)}".strip()) for x, y, word in dots],
                height=lesson.PICTURE, alt=t(f"two_budgets.alt_{name}" if flow.revealed else f"two_budgets.alt_a_{name}", **words),
            )
    lesson.end(flow, explain=t("two_budgets.tokens_explain", **words), run=b, against=a, note=lesson.pale(why), pictures=("ttft_p50", "itl_p99"),
               then=(t("two_budgets.tokens_then"), {"max_num_batched_tokens": 4096}))


REMEDIES: dict[str, dict[str, Any]] = {
    "none": {},
    "chunk": {"enable_chunked_prefill": True, "max_num_batched_tokens": 2048},
    "threshold": {"enable_chunked_prefill": True, "max_num_batched_tokens": 2048, "long_prefill_token_threshold": 1024},
    "prefix": {"enable_prefix_caching": True},
}
REMEDIES["all"] = {**REMEDIES["threshold"], **REMEDIES["prefix"]}


def starving(s: Scenario) -> Requests:
    """Short prompts and a few long ones about the same document: its text is their common head."""
    rng = np.random.default_rng(s.seed)
    n = int(s.request_rate * s.duration_s)
    arrival = np.cumsum(rng.exponential(1 / s.request_rate, n))
    long = rng.random(n) < s.long_share
    prompt = np.where(long, s.long_prompt_tokens, rng.integers(s.prompt_tokens // 2, s.prompt_tokens * 3 // 2, n))
    output = rng.integers(s.output_tokens // 2, s.output_tokens * 3 // 2, n)
    shared = min(DOCUMENT, s.long_prompt_tokens - 1)
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
    lesson.bench(flow, {"long_prompt_tokens": [2000, 5000, 10_000, 20_000, 30_000]}, [
        (t(f"two_budgets.starve_preset_{k}"), {"long_prompt_tokens": n}) for k, n in
        (("lesson", 30_000), ("half", 10_000), ("short", 2000))])
    base = STARVE.but(long_prompt_tokens=flow.s.b.long_prompt_tokens)
    requests = starving(base)
    found = {k: short_figures(state.run(base.but(**v), requests, f"starve{k}")) for k, v in REMEDIES.items()}
    shown = list(REMEDIES) if flow.revealed else ["none"]
    names = [t(f"two_budgets.remedy_{k}") for k in shown]
    words = {f"{k}_{what}": seconds(found[k][i]) for k in REMEDIES for i, what in enumerate(("ttft", "itl"))}
    best = min(set(found) - {"all"}, key=lambda k: found[k][0])
    words |= {"long": f"{base.long_prompt_tokens:,}", "best": t(f"two_budgets.remedy_{best}"), "best_ttft": words[f"{best}_ttft"]}
    for place, i, what, colour in zip(frame.columns(2), (0, 1), ("ttft", "itl"), ("waiting", "decode"), strict=True):
        with place:
            charts.bars(
                t(f"two_budgets.starve_{what}"), names, [charts.Part("", colour, [found[k][i] for k in shown])],
                horizontal=True, words=seconds, y_end=1.1 * max(found[k][i] for k in shown), height=lesson.PICTURE,
                alt=t(f"two_budgets.alt_starve_{what}" if flow.revealed else f"two_budgets.alt_starve_{what}_a", **words),
            )
    starved = max(found["none"]) > 0.1  # s
    lesson.end(flow, explain=t("two_budgets.starve_explain" if starved else "two_budgets.starve_explain_none", **words),
               note=t("two_budgets.starve_why", shared=f"{DOCUMENT:,}") if flow.untouched else "",
               then=(t("two_budgets.starve_then"), {"long_prompt_tokens": 2000}))


def numbers(scene: str, s: state.State) -> dict[str, str]:
    if scene in ("queue", "other"):
        a = state.run(s.a)
        return narration.figures(a, a)
    return {"long": f"{s.b.long_prompt_tokens:,}", "prompt": f"{s.b.prompt_tokens:,}",
            "a": f"{s.a.max_num_batched_tokens:,}", "b": f"{s.b.max_num_batched_tokens:,}"}


with frame.page("budgets"):
    terms.explain("max_num_seqs", "max_num_batched_tokens", "waiting", "running", "ttft", "queue", "itl", "p99", "gpu_compute",
                  "gpu_bandwidth", "gpu_busy", "enable_chunked_prefill", "long_prefill_token_threshold",
                  "enable_prefix_caching", "slo", "tpot", "lesson")
flow = lesson.begin("two_budgets", SCENES, numbers)
{"queue": draw_queue, "other": draw_queue, "tokens": draw_tokens, "starve": draw_starve}[flow.name](flow)
state.publish()
