"""The KV pool block by block around a run's first preemption: exact blocks, replayed (`sim.block_replay`)."""

from __future__ import annotations

import html
from collections import deque
from dataclasses import dataclass

from sim.block_replay import BlockReplay
from sim.engine import Step, simulate
from sim.memory import plan
from sim.requests import Requests
from sim.scenario import Scenario
from ui import charts

CSS = """<style>.pool{display:grid;grid-template-columns:repeat(auto-fill,minmax(max(9px,.78vw),1fr));gap:2px;margin-top:.3rem}
.pool i{aspect-ratio:1;border-radius:2px;background:%(grid)s}.pool .h{background:%(kv)s}.pool .n{background:%(prefill)s}
.pool .v{background:%(preempted)s}.pool .o{background:%(paper)s;border:2px solid %(preempted)s;box-sizing:border-box}
</style>"""

MOST_BLOCKS = 5000  # that a page can show one by one


@dataclass(frozen=True, slots=True)
class Moment:
    """The pool after schedule() of engine step `index`: who holds which block, and who was thrown out in it."""

    index: int
    owners: dict[int, int]  # block -> request
    preempted: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Preemption:
    """Steps around the first preemption. `at` is its place in `moments`; `freed` are the blocks the victims held."""

    moments: tuple[Moment, ...]
    at: int
    freed: frozenset[int]
    usable: int

    @property
    def victims(self) -> tuple[int, ...]:
        """Requests that were thrown out."""
        return self.moments[self.at].preempted

    def gone(self, k: int) -> int:
        """How many of the freed blocks somebody has taken by moment k."""
        return len(self.freed & {block for moment in self.moments[self.at : k + 1] for block in moment.owners})


def first_preemption(scenario: Scenario, requests: Requests, before: int = 60, after: int = 60) -> Preemption | None:
    """The steps around the first preemption of a run; None if there is none, or too large a pool to show."""
    usable = plan(scenario).num_gpu_blocks - 1  # block 0 is the null block
    if usable > MOST_BLOCKS:
        return None
    moments: deque[Moment] = deque(maxlen=before + 1 + after)
    found: list[int] = []
    blocks = BlockReplay(scenario, requests, usable + 1, on_step=lambda replay, step: moments.append(Moment(
        step.index + 1, {block: r for r, mine in replay.held.items() for block in mine}, tuple(step.preempted))))

    def observe(step: Step) -> None:
        if found and step.index > found[0] + after:
            return
        blocks(step)
        if step.preempted and not found:
            found.append(step.index)

    simulate(scenario, requests, observer=observe)
    if not found:
        return None
    shown = tuple(moments)
    at = next(i for i, m in enumerate(shown) if m.index == found[0] + 1)
    victims = shown[at].preempted
    freed = frozenset(block for block, r in shown[at - 1].owners.items() if r in victims)
    return Preemption(shown, at, freed, usable)


def grid(p: Preemption, k: int, alt: str) -> str:
    """The pool at moment k as HTML, a cell a block: held, just taken, the victims' while they hold them, freed and empty."""
    now, old = p.moments[k].owners, p.moments[max(k - 1, 0)].owners
    cells = []
    for block in range(1, p.usable + 1):
        mine, theirs = now.get(block), block in p.freed
        kind = ("v" if theirs and mine in p.victims and k < p.at else "n" if mine is not None and old.get(block) != mine
                else "h" if mine is not None else "o" if theirs and k >= p.at else "")
        cells.append(f"<i class={kind}></i>" if kind else "<i></i>")
    look = CSS % charts.palette()
    return f"{look}<div class='pool' role='img' aria-label='{html.escape(alt, quote=True)}'>{''.join(cells)}</div>"
