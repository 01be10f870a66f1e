"""Which KV blocks each request holds, by number, step by step: exactly vLLM's free queue. For pictures, not for speed.

    blocks = BlockReplay(scenario, requests, num_gpu_blocks)
    simulate(scenario, requests, num_gpu_blocks=num_gpu_blocks, observer=blocks)

The engine counts blocks; this observer follows its decisions with real ones. For several replicas, one replay each.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable

from sim.engine import Step
from sim.requests import Requests
from sim.scenario import Scenario


class BlockReplay:
    """An observer. After each step: `held` (request -> block numbers, in order of their tokens), `queue` (free blocks, next
    one first), `keyed` (blocks with a key), `taken` (blocks newly taken in this step), `evicted` (those that lost a key).

    `held` is as after schedule() when `on_step(self, step)` is called, and as after the frees once the call is over.
    Block 0 is the null block and never appears.
    """

    def __init__(
        self, scenario: Scenario, requests: Requests, num_gpu_blocks: int, *, replica: int = 0,
        on_step: Callable[[BlockReplay, Step], None] | None = None,
    ) -> None:
        self.size = scenario.block_size
        self.caching = scenario.enable_prefix_caching and scenario.batching != "static"
        self.requests, self.replica, self.on_step = requests, replica, on_step
        self.queue: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, num_gpu_blocks))
        self.references = [0] * num_gpu_blocks
        self.keyed: dict[int, int] = {}  # block -> its key
        self.held: dict[int, list[int]] = {}
        self.computed: dict[int, int] = {}
        self.taken: list[int] = []
        self.evicted: list[int] = []
        self._cached: dict[int, list[int]] = {}  # key -> blocks, oldest first
        self._keys: dict[int, list[int]] = {}
        self._chain: dict[tuple[int, tuple[tuple[Hashable, int], ...]], int] = {}

    def __call__(self, step: Step) -> None:
        """Follow one step."""
        if step.replica != self.replica:
            return
        self.taken, self.evicted = [], []
        given: dict[int, int] = {}
        for r, tokens in step.events:
            if tokens:
                self._grow(r, tokens)
                given[r] = tokens
            else:
                self._free(r)
                self.computed[r] = self.computed[r] - given.pop(r, 0) if r in step.swapped else 0
        tokens_of = dict(step.sched)
        for r, cached in step.admitted:
            self.held[r] = []
            if r not in step.swapped_in:
                self.held[r] = self._hit(r, cached // self.size)
                self.computed[r] = cached
            self._grow(r, tokens_of[r])
        if self.on_step is not None:
            self.on_step(self, step)
        for r in step.finished:
            self._free(r)
            del self.held[r], self.computed[r]

    def _grow(self, r: int, tokens: int) -> None:
        blocks = self.held[r]
        self.computed[r] += tokens
        for _ in range(-(-self.computed[r] // self.size) - len(blocks)):
            block, _ = self.queue.popitem(last=False)
            key = self.keyed.pop(block, None)
            if key is not None:
                self._cached[key].remove(block)
                self.evicted.append(block)
            self.references[block] = 1
            self.taken.append(block)
            blocks.append(block)
        if self.caching:
            full = self.computed[r] // self.size
            for block, key in zip(blocks[:full], self._keys_of(r, full), strict=True):
                if block not in self.keyed:
                    self.keyed[block] = key
                    self._cached.setdefault(key, []).append(block)

    def _hit(self, r: int, count: int) -> list[int]:
        blocks = [self._cached[key][0] for key in self._keys_of(r, count)] if count else []
        for block in blocks:
            if not self.references[block]:
                del self.queue[block]
            self.references[block] += 1
        return blocks

    def _free(self, r: int) -> None:
        front = []
        for block in reversed(self.held[r]):
            self.references[block] -= 1
            if not self.references[block]:
                if block in self.keyed:
                    self.queue[block] = None
                else:
                    front.append(block)
        for block in reversed(front):
            self.queue[block] = None
            self.queue.move_to_end(block, last=False)
        self.held[r] = []

    def _keys_of(self, r: int, count: int) -> list[int]:
        """Keys of the first `count` blocks of r: each stands for all tokens up to its block's end."""
        keys = self._keys.setdefault(r, [])
        while len(keys) < count:
            at = len(keys) * self.size
            tokens = tuple(self._token(r, j) for j in range(at, at + self.size))
            keys.append(self._chain.setdefault((keys[-1] if keys else -1, tokens), len(self._chain)))
        return keys[:count]

    def _token(self, r: int, j: int) -> tuple[Hashable, int]:
        prefix = self.requests.prefix
        for segment, length in prefix[r] if prefix is not None else ((("p", r), int(self.requests.prompt[r])),):
            if j < length:
                return segment, j
            j -= length
        return ("o", r), j
