"""One engine step as a page shows it: what stood in the queue and in the seats, what vLLM decided, and why.

`record(scenario, requests)` runs the engine once and keeps every step as a `Moment`: the state before `schedule()`, and for
each request what it got and the name of the rule that decided it (`be_the_scheduler.why_<reason>`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sim.block_replay import BlockReplay
from sim.engine import Step, simulate
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


def record(scenario: Scenario, requests: Requests) -> list[Moment]:
    """Every step of a (small) run without prefix caching, with the blocks that vLLM's block pool would deal."""
    usable = scenario.num_gpu_blocks_override - 1  # block 0 is the null block
    after: dict[int, int] = {}
    blocks = BlockReplay(scenario, requests, usable + 1, on_step=lambda replay, _: after.update(_owners(replay.held)))
    prompt = requests.prompt.tolist()
    tokens = dict(enumerate(prompt))
    running: list[int] = []
    moments: list[Moment] = []

    def observe(step: Step) -> None:
        nonlocal running
        sched, admitted = dict(step.sched), [r for r, _ in step.admitted]
        waiting = admitted + [r for r in step.waiting if r not in step.preempted]
        computed, held, free = dict(blocks.computed), {r: tuple(mine) for r, mine in blocks.held.items()}, len(blocks.queue)
        why = _reasons(scenario, step, running, waiting, computed, tokens, free, held)
        rows = tuple(
            Row(r, r in running, computed.get(r, 0), tokens[r], prompt[r], held.get(r, ()), sched.get(r, 0), *why[r])
            for r in running + waiting
        )
        after.clear()
        blocks(step)
        for r, got in sched.items():
            if computed.get(r, 0) + got == tokens[r]:
                tokens[r] += 1
        running = [r for r in step.running if r not in step.finished]
        moments.append(Moment(
            step.index + 1, rows, free, usable, tuple(admitted), tuple(step.preempted), _owners(held), dict(after),
            step.duration,
        ))

    simulate(scenario, requests, observer=observe)
    return moments


def _owners(held: Mapping[int, Sequence[int]]) -> dict[int, int]:
    return {block: r for r, blocks in held.items() for block in blocks}


def _reasons(
    s: Scenario, step: Step, running: list[int], waiting: list[int], computed: dict[int, int], tokens: dict[int, int],
    free: int, held: Mapping[int, Sequence[int]],
) -> dict[int, tuple[str, dict[str, int]]]:
    """Which rule decided about each request, and its numbers."""
    why: dict[int, tuple[str, dict[str, int]]] = {}
    sched, admitted = dict(step.sched), {r for r, _ in step.admitted}
    left = s.max_num_batched_tokens
    for r in running:
        want, got = tokens[r] - computed[r], sched.get(r, 0)
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
        room -= max(0, -(-(computed[r] + sched.get(r, 0)) // s.block_size) - len(held.get(r, ())))
    blocked = ""
    for r in waiting:
        want, got = tokens[r], sched.get(r, 0)
        if r in admitted:
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
