"""One engine step as a page shows it: what stood in the queue and in the seats, what vLLM decided, and why.

`record(scenario, requests)` runs the engine once and keeps every step as a `Moment`: the state before `schedule()`, and for
each request what it got and the name of the rule that decided it (`be_the_scheduler.why_<reason>`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sim.engine import simulate
from sim.requests import Requests
from sim.scenario import Scenario


@dataclass(frozen=True, slots=True)
class Row:
    """A request before a step, and what vLLM gave it. Lengths in tokens; `blocks` are the ids of its KV blocks."""

    request: int
    seated: bool
    computed: int
    tokens: int  # prompt and what it generated so far
    prompt: int
    blocks: tuple[int, ...]
    got: int
    reason: str
    numbers: dict[str, int] = field(default_factory=dict)

    @property
    def want(self) -> int:
        """Tokens it would like in this step: the rest of its prompt, or one."""
        return self.tokens - self.computed

    def need(self, tokens: int, block_size: int) -> int:
        """Blocks it needs besides its own to be given so many tokens."""
        return max(0, -(-(self.computed + tokens) // block_size) - len(self.blocks)) if tokens else 0


@dataclass(frozen=True, slots=True)
class Moment:
    """One step: rows in order (seated in order of admission, then the queue), and the pool before it."""

    index: int
    rows: tuple[Row, ...]
    free: int  # blocks, before the step
    usable: int
    admitted: tuple[int, ...]
    preempted: tuple[int, ...]
    finished: tuple[int, ...]
    owners: dict[int, int]  # block id -> request, before the step
    owners_after: dict[int, int]  # after schedule()
    duration: float

    @property
    def given(self) -> int:
        """Tokens vLLM scheduled."""
        return sum(row.got for row in self.rows)

    @property
    def seated(self) -> int:
        """Seats taken before the step."""
        return sum(row.seated for row in self.rows)


@dataclass(slots=True)
class _Seen:
    sched: dict[int, int]
    admitted: list[int]
    preempted: list[int]
    finished: list[int]
    running: list[int]
    waiting: list[int]
    duration: float


def record(scenario: Scenario, requests: Requests) -> list[Moment]:
    """Every step of a (small) run without prefix caching. Blocks are dealt as vLLM's block pool deals them."""
    seen: list[_Seen] = []
    simulate(scenario, requests, observer=lambda s: seen.append(_Seen(
        dict(s.sched), [r for r, _ in s.admitted], list(s.preempted), list(s.finished), list(s.running), list(s.waiting),
        s.duration,
    )))
    size, usable = scenario.block_size, scenario.num_gpu_blocks_override - 1
    free = list(range(1, usable + 1))  # block 0 is the null block
    held: dict[int, list[int]] = {}
    computed: dict[int, int] = {}
    prompt = requests.prompt.tolist()
    tokens = dict(enumerate(prompt))
    running: list[int] = []
    moments = []
    for k, step in enumerate(seen):
        waiting = step.admitted + [r for r in step.waiting if r not in step.preempted]
        why = _reasons(scenario, step, running, waiting, computed, tokens, len(free), held)
        rows = tuple(
            Row(r, r in running, computed.get(r, 0), tokens[r], prompt[r], tuple(held.get(r, ())), step.sched.get(r, 0),
                *why[r])
            for r in running + waiting
        )
        before, free_before = _owners(held), len(free)
        for r in step.preempted:
            free[:0] = reversed(held.pop(r, []))
            computed[r] = 0
        for r, n in step.sched.items():
            computed[r] = computed.get(r, 0) + n
            mine = held.setdefault(r, [])
            while len(mine) * size < computed[r]:
                mine.append(free.pop(0))
        after = _owners(held)
        for r in step.sched:
            if computed[r] == tokens[r]:
                tokens[r] += 1
        for r in step.finished:
            free[:0] = reversed(held.pop(r, []))
        running = [r for r in step.running if r not in step.finished]
        moments.append(Moment(
            k + 1, rows, free_before, usable, tuple(step.admitted), tuple(step.preempted), tuple(step.finished), before,
            after, step.duration,
        ))
    return moments


def _owners(held: dict[int, list[int]]) -> dict[int, int]:
    return {block: r for r, blocks in held.items() for block in blocks}


def _reasons(
    s: Scenario, step: _Seen, running: list[int], waiting: list[int], computed: dict[int, int], tokens: dict[int, int],
    free: int, held: dict[int, list[int]],
) -> dict[int, tuple[str, dict[str, int]]]:
    """Which rule decided about each request, and its numbers."""
    why: dict[int, tuple[str, dict[str, int]]] = {}
    left = s.max_num_batched_tokens
    for r in running:
        want, got = tokens[r] - computed[r], step.sched.get(r, 0)
        left -= got
        if r in step.preempted:
            why[r] = "victim", {"blocks": len(held.get(r, ()))}
        elif not got:
            why[r] = "nothing_left", {}
        elif want == 1:
            why[r] = "decode", {}
        else:
            why[r] = ("prompt_end" if got == want else "prompt_part"), {"got": got, "want": want}
    seats = len(running) - len(step.preempted)
    room = free + sum(len(held.get(r, ())) for r in step.preempted)
    for r in running:
        room -= max(0, -(-(computed[r] + step.sched.get(r, 0)) // s.block_size) - len(held.get(r, ())))
    blocked = ""
    for r in waiting:
        want, got = tokens[r], step.sched.get(r, 0)
        if r in step.admitted:
            left, seats, room = left - got, seats + 1, room - -(-got // s.block_size)
            again = tokens[r] > 0 and r in computed
            why[r] = ("resumed" if again else "admitted" if got == want else "admitted_part"), {"got": got, "want": want}
            continue
        need = -(-want // s.block_size)
        if not blocked:
            blocked = (
                "after_preemption" if step.preempted else "no_budget" if left <= 0 else
                "no_seat" if seats >= s.max_num_seqs else "no_blocks"
            )
            why[r] = blocked, {"need": need, "free": room, "seats": s.max_num_seqs}
        else:
            why[r] = ("behind" if blocked == "no_blocks" else blocked), {"need": need, "free": room, "seats": s.max_num_seqs}
    return why
