"""Be the scheduler: one engine step, decided by the visitor first and then by vLLM. Lesson 2.3.2 to 2.3.4."""

import html
from collections.abc import Iterable

import numpy as np
import streamlit as st

from sim.scenario import Scenario
from sim.workload import Requests
from ui import charts, frame, lesson, state, terms
from ui.iteration import Moment, Row, record
from ui.lesson import Scene
from ui.text import joined, seconds, t

DOZEN = Scenario(
    request_rate=100, duration_s=1, lengths="fixed", num_requests=12, max_num_seqs=5, max_num_batched_tokens=64,
    block_size=16, num_gpu_blocks_override=21, max_model_len=160, enable_prefix_caching=False, async_scheduling=False,
)
ARRIVAL = (0.0, 0.0, 0.0, 0.0, 0.004, 0.01, 0.01, 0.02, 0.02, 0.03, 0.05, 0.06)
PROMPT = (24, 40, 90, 30, 20, 56, 28, 70, 16, 44, 33, 20)
OUTPUT = (9, 30, 24, 40, 6, 12, 20, 10, 14, 8, 6, 10)
SCENES = [Scene(name, DOZEN) for name in ("budget", "seats", "pool", "return")]


@st.cache_resource(max_entries=4)
def moments(_s: Scenario = DOZEN) -> list[Moment]:
    """Every step of the dozen's run."""
    return record(_s, Requests.of(np.array(ARRIVAL), np.array(PROMPT), np.array(OUTPUT)))


def key_moment(name: str) -> int:
    """The number of the step that shows what a scene is about: the first one where its rule decides."""
    def first(reason: str, after: int = 0) -> int:
        return next(m.index for m in moments() if m.index > after and any(r.reason == reason for r in m.rows))

    return {
        "budget": lambda: first("admitted_part", 1), "seats": lambda: first("no_seat"), "pool": lambda: first("victim"),
        "return": lambda: first("resumed"),
    }[name]()


def numbers(scene: str, s: state.State) -> dict[str, str]:
    m = moments()[shown(scene, s) - 1]
    words = {"k": str(m.index), "budget": str(DOZEN.max_num_batched_tokens), "seats": str(DOZEN.max_num_seqs)}
    if m.index != key_moment(scene):  # the scene's question is about another step
        return {"question": t("be_the_scheduler.any_question", **words)}
    back = next((r for r in m.rows if r.reason == "resumed"), m.rows[0])
    need = sum(r.need(1 if r.want == 1 else min(r.want, DOZEN.max_num_batched_tokens), DOZEN.block_size)
               for r in m.rows if r.seated)
    return {**words, "missing": str(need - m.free), "who": str(back.request + 1), "had": str(back.tokens - back.prompt)}


def shown(scene: str, s: state.State) -> int:
    """The engine step on show: the scene's own, unless the visitor stepped on."""
    return min(max(int(s.extra["k"]) or key_moment(scene), 1), len(moments()))


def again(row: Row) -> bool:
    """Whether a request waits to come back: how much it must be given is for the visitor to say."""
    return not row.seated and row.tokens > row.prompt


def chip(row: Row) -> str:
    kind = ("decode" if row.want == 1 else "prompt") if row.seated else "again" if again(row) else "queue"
    return t(f"be_the_scheduler.chip_{kind}", n=row.request + 1, want=row.want, prompt=row.prompt, wrote=row.tokens - row.prompt)


def decided(m: Moment) -> tuple[dict[int, int], set[int], dict[int, str]]:
    """What the visitor gives and whom he throws out in this step, and where a number of tokens of a prompt is kept."""
    rows = {r.request: r for r in m.rows}
    chosen, out = (st.session_state.get(f"{what}_{m.index}") or [] for what in ("give", "throw"))
    plan: dict[int, int] = {}
    keys: dict[int, str] = {}
    left_over = DOZEN.max_num_batched_tokens
    for r in chosen:
        if r not in out:
            most = max(0, min(rows[r].want, left_over))
            left_over -= most
            if rows[r].want > 1:
                keys[r] = f"tokens_{m.index}_{r}_{most}"
            plan[r] = int(st.session_state.setdefault(keys[r], min(most, 1) if again(rows[r]) else most)) if r in keys else most
    return plan, set(out), keys


def choose(m: Moment, locked: bool) -> None:
    """Whom the visitor gives tokens in this step, how many, and whom he throws out."""
    rows = {r.request: r for r in m.rows}
    left, right = st.columns([3, 2], gap="medium")
    with left:
        st.pills(
            t("be_the_scheduler.give"), list(rows), format_func=lambda r: chip(rows[r]), selection_mode="multi",
            key=f"give_{m.index}", disabled=locked, persist_state="session",
        )
    with right:
        st.pills(
            t("be_the_scheduler.throw"), [r for r in rows if rows[r].seated], format_func=lambda r: str(r + 1),
            selection_mode="multi", key=f"throw_{m.index}", disabled=locked, persist_state="session",
        )
    _, _, keys = decided(m)
    if keys:
        for place, (r, key) in zip(st.columns(max(len(keys), 4)), keys.items(), strict=False):
            place.number_input(t("be_the_scheduler.tokens_of", n=r + 1), 0, DOZEN.max_num_batched_tokens if again(rows[r]) else rows[r].want,
                               key=key, disabled=locked, persist_state="session")


def bar(label: str, parts: list[tuple[float, str]], limit: float, over: bool) -> str:
    """A horizontal bar that fills towards a limit; parts are (amount, colour)."""
    whole = max(limit, sum(n for n, _ in parts))
    cells = "".join(f"<i style='width:{100 * n / whole:.2f}%;background:{c}'></i>" for n, c in parts if n)
    edge = f"<b style='left:{100 * limit / whole:.2f}%'></b>" if over else ""
    note = f" · {html.escape(t('be_the_scheduler.over'))}" if over else ""
    return f"<div><div class='bt{' o' if over else ''}'>{html.escape(label)}{note}</div><div class='bb'>{cells}{edge}</div></div>"


def bars(m: Moment, plan: dict[int, int], out: set[int], who: str) -> str:
    colours = charts.palette()
    rows = {r.request: r for r in m.rows}
    tokens = [(n, colours["decode" if rows[r].want == 1 else "prefill"]) for r, n in plan.items() if n]
    used = sum(n for n, _ in tokens)
    seats = sum(r.seated and r.request not in out for r in m.rows) + sum(not rows[r].seated for r, n in plan.items() if n)
    taken = m.usable - m.free - sum(len(rows[r].blocks) for r in out)
    more = sum(rows[r].need(n, DOZEN.block_size) for r, n in plan.items())
    one = "be_the_scheduler.bar_"
    return f"<div class='bw'><h5>{html.escape(who)}</h5>" + "".join((
        bar(t(one + "tokens", used=used, limit=DOZEN.max_num_batched_tokens), tokens, DOZEN.max_num_batched_tokens,
            used > DOZEN.max_num_batched_tokens),
        bar(t(one + "seats", used=seats, limit=DOZEN.max_num_seqs), [(seats, colours["decode"])], DOZEN.max_num_seqs,
            seats > DOZEN.max_num_seqs),
        bar(t(one + "blocks", used=taken + more, limit=m.usable), [(taken, colours["kv"]), (more, colours["prefill"])],
            m.usable, taken + more > m.usable),
    )) + "</div>"


def grid(owners: dict[int, int], usable: int, fresh: set[int]) -> str:
    """The pool, one cell a block: its id above, its owner in the middle. New ones of this step have a frame."""
    by: dict[int, list[int]] = {}
    for block, r in owners.items():
        by.setdefault(r, []).append(block)
    who = "; ".join(t("be_the_scheduler.blocks_one", n=r + 1, ids=", ".join(map(str, by[r]))) for r in sorted(by))
    alt = t("be_the_scheduler.blocks_alt", used=len(owners), all=usable, who=who)
    cells = "".join(
        f"<div class='c{' f' if b in owners else ''}{' n' if b in fresh else ''}'><s>{b}</s>"
        f"{owners[b] + 1 if b in owners else ''}</div>"
        for b in range(1, usable + 1)
    )
    title = html.escape(t("be_the_scheduler.blocks_title", size=DOZEN.block_size))
    return f"<div class='gt'>{title}</div><div class='g' role='img' aria-label='{html.escape(alt, quote=True)}'>{cells}</div>"


CSS = """<style>
.bars{display:grid;grid-template-columns:repeat(auto-fit,minmax(15rem,1fr));gap:.4rem 1.6rem}
.bw h5{margin:0;padding:0;font-size:.95rem;grid-column:1/-1}
@media (min-width:641px){.bw:only-child{display:grid;grid-template-columns:repeat(3,1fr);gap:0 1.6rem}}.bt{font-size:.85rem;margin-top:.25rem}.bt.o{color:var(--if-bad);font-weight:600}
.bb{position:relative;height:16px;border-radius:4px;background:var(--if-line);display:flex;overflow:hidden}
.bb i{display:block;height:100%;border-right:1px solid var(--if-paper);box-sizing:border-box}
.bb b{position:absolute;top:0;bottom:0;width:3px;background:var(--if-bad)}
.gt{font-size:.85rem;margin:.1rem 0 .25rem}
.g{display:grid;grid-template-columns:repeat(auto-fill,minmax(40px,1fr));gap:4px}
.c{position:relative;height:36px;border:1.5px dashed var(--if-line);border-radius:5px;display:grid;place-items:center;
font-weight:650;font-size:15px;padding-top:9px;box-sizing:border-box}.c s{position:absolute;top:1px;left:4px;font-size:10px;text-decoration:none;
font-weight:400;opacity:.8}.c.f{border:0;background:KV;color:INK}.c.n{outline:2.5px solid PRE;outline-offset:-2px}
.w{border-collapse:collapse;width:100%;font-size:.9rem}.w th{font-weight:600;font-size:.82rem;color:var(--if-soft);text-align:left}
.w td,.w th{line-height:1.35;padding:.22rem .6rem .22rem 0;border-bottom:1px solid var(--if-line);vertical-align:top}.w td.n{font-weight:650;
white-space:nowrap}.w td.n:first-child{white-space:normal;min-width:3.4rem}.w tr.d td{background:color-mix(in srgb,WAIT 16%,transparent)}.wrap{overflow-x:auto}
</style>"""


def listed(values: Iterable[object]) -> str:
    return t("narration.comma").join(map(str, values))


def before(rows: list[Row]) -> str:
    """What requests of one kind were at before the step."""
    row, one = rows[0], "be_the_scheduler.state_"
    tokens = listed(r.tokens for r in rows)
    if row.seated:
        if row.want == 1:
            return t(one + "decode", done=listed(r.tokens - r.prompt for r in rows))
        return t(one + "prompt", computed=row.computed, tokens=tokens)
    return t(one + ("again" if again(row) else "queue"), tokens=tokens)


def reason(row: Row) -> str:
    """Why vLLM decided so about a request."""
    whole = "_all" if row.reason == "resumed" and row.got == row.want else ""
    return t(f"be_the_scheduler.why_{row.reason}{whole}", **{"x": 0, **row.numbers})


def did(m: Moment) -> str:
    """What vLLM does in a step, in a sentence or three."""
    one, all_of_it = "be_the_scheduler.did", m.given == DOZEN.max_num_batched_tokens
    moved = [t(one + where, who=listed(r + 1 for r in who)) for where, who in (("_out", m.preempted), ("_in", m.admitted)) if who]
    return joined([*(moved or [t(one + "_nobody")]), t(one + ("_all" if all_of_it else ""), used=m.given, budget=DOZEN.max_num_batched_tokens)])


def verdict(m: Moment, plan: dict[int, int], out: set[int], chose: bool) -> str:
    """vLLM's decision beside the visitor's, with the reason; requests that fare alike share a row. Returns the sum of it."""
    def cell(given: int, thrown: bool) -> str:
        return t("be_the_scheduler.out") if thrown else str(given) if given else "–"

    alike: dict[tuple[str, ...], list[Row]] = {}
    for row in m.rows:
        mine, theirs = cell(plan.get(row.request, 0), row.request in out), cell(row.got, row.request in m.preempted)
        why = reason(row)
        alike.setdefault((mine if chose else "", theirs, why, before([row]) if row.want > 1 and row.seated else ""), []).append(row)
    lines, columns = [], ["request", "state", *(["you"] if chose else []), "vllm", "why"]
    for (mine, theirs, why, _), rows in alike.items():
        words = {"request": listed(r.request + 1 for r in rows), "state": before(rows), "you": mine, "vllm": theirs, "why": why}
        tds = "".join(f"<td{'' if c in ('state', 'why') else ' class=n'}>{html.escape(words[c])}</td>" for c in columns)
        lines.append(f"<tr{' class=d' if chose and mine != theirs else ''}>{tds}</tr>")
    head = "".join(f"<th>{html.escape(t(f'be_the_scheduler.col_{c}'))}</th>" for c in columns)
    st.html(f"<div class='wrap'><table class='w'><tr>{head}</tr>{''.join(lines)}</table></div>")
    differing = sum(len(rows) for (mine, theirs, *_), rows in alike.items() if mine != theirs)
    said = t("be_the_scheduler.differs", n=differing) if differing else t("be_the_scheduler.same")
    return joined([said if chose else "", did(m)])


with frame.page("iteration"):
    terms.explain("step", "prefill", "waiting", "running", "seat", "max_num_seqs", "max_num_batched_tokens", "kv_block",
                  "enable_chunked_prefill", "preemption", "recompute", "scheduler_reserve_full_isl", "scheduling_policy", "lesson")
flow = lesson.begin("be_the_scheduler", SCENES, numbers, extra={"k": 0})
k = shown(flow.name, flow.s)
m = moments()[k - 1]
colours = charts.palette()
st.html(CSS.replace("KV", colours["kv"]).replace("INK", colours["paper"]).replace("PRE", colours["prefill"])
        .replace("WAIT", colours["waiting"]))
if not flow.revealed:
    choose(m, flow.step != "ask")
plan, out, _ = decided(m)
explain = verdict(m, plan, out, bool(plan or out)) if flow.revealed else ""
sides = bars(m, plan, out, t("be_the_scheduler.yours")) if plan or out or not flow.revealed else ""
if flow.revealed:
    sides += bars(m, {r.request: r.got for r in m.rows if r.got}, set(m.preempted), t("be_the_scheduler.vllm"))
st.html(f"<div class='bars'>{sides}</div>")
owners = m.owners_after if flow.revealed else m.owners
fresh = {b for b, r in m.owners_after.items() if m.owners.get(b) != r} if flow.revealed else set()
st.html(grid(owners, m.usable, fresh))
notes = t("be_the_scheduler.prefix_note", ms=seconds(m.duration), model=DOZEN.model, gpu=DOZEN.gpu)
if flow.name == "pool":
    notes += "\n\n" + lesson.says(t("be_the_scheduler.victim_note"))
following = (t("be_the_scheduler.then", k=k + 1), {"k": k + 1, "p": f"{flow.name}.ask"})
lesson.end(flow, explain=explain, note=notes, then=following if k < len(moments()) else None)
key = "engine_step"
st.session_state[key] = k
st.slider(t("be_the_scheduler.step_knob"), 1, len(moments()), key=key, on_change=lambda: state.change(
    k=st.session_state[key], p=f"{flow.name}.ask"))
state.publish()
