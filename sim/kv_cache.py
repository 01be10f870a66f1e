"""The prefix cache: which full blocks are known by their content, who holds them, which go first.

Blocks are never objects. What the cache knows are *runs*: neighbouring blocks of one text with the same holders. All of a
request's own blocks are one run, and so is a system prompt shared by hundreds, so that work is done per run and not per
block. It is exact, block for block and in vLLM's order, because

- the free queue is always [unhashed][hashed, least recently used first]: a count, and an ordered dict of runs;
- a request frees its blocks from its last to its first, so a run in the queue is evicted from its end;
- a key is the whole text up to the end of its block, so equal keys lie at the same place of the same text, and texts
  form a tree of segments (`Text`): a block belongs to the text that holds its last token.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable

Prefix = tuple[tuple[Hashable, int], ...]


class Text:
    """A segment at one place of the tree of all texts; `runs` are the blocks that hold some of it, oldest first."""

    __slots__ = ("children", "runs", "writer")

    def __init__(self) -> None:
        self.children: dict[tuple[int, Hashable], Text] = {}
        self.runs: list[BlockRun] = []
        self.writer = -1  # the request that is generating this text


class BlockRun:
    """Blocks lo..hi-1 of a text, all held by the same requests; without holders they stand in the free queue."""

    __slots__ = ("hi", "holders", "lo", "text")

    def __init__(self, text: Text, lo: int, hi: int, holders: set[int]) -> None:
        self.text, self.lo, self.hi, self.holders = text, lo, hi, holders


class PrefixCache:
    """Holdings of requests and the free queue of one replica. `written(r)` says how many tokens r has computed by now."""

    def __init__(self, num_blocks: int, block_size: int, written: Callable[[int], int]) -> None:
        self.block_size = block_size
        self.unhashed = num_blocks  # free blocks without a key; they are taken first
        self.queue: OrderedDict[BlockRun, None] = OrderedDict()
        self.root = Text()
        self.open_end = False  # the latest lookup ended in a text that is being written: it may find more soon
        self._written = written
        self._paths: dict[int, list[tuple[Text, int]]] = {}  # texts of a request, each with the block it ends before
        self._held: dict[int, list[BlockRun]] = {}
        self._hashed: dict[int, int] = {}  # blocks of a request that have a key

    def enter(self, request: int, prefix: Prefix) -> None:
        """Make a request's text known: its prompt as segments, then what it generates."""
        text, before, end, path = self.root, 0, 0, []
        for segment, length in (*prefix, (("o", request), 0)):
            key = (before, segment)
            child = text.children.get(key)
            if child is None:
                child = text.children[key] = Text()
            text, before = child, length
            end += length
            if length:
                path.append((text, end // self.block_size))
        path.append((text, 1 << 60))
        text.writer = request
        self._paths[request], self._held[request], self._hashed[request] = path, [], 0

    def knows(self, request: int) -> bool:
        """Whether the request's text is known."""
        return request in self._paths

    def lookup(self, request: int, limit: int) -> list[tuple[BlockRun, int]]:
        """The longest run of cached blocks from the start, at most `limit`: (run, block it is used up to) in order."""
        hits: list[tuple[BlockRun, int]] = []
        at = 0
        self.open_end = False
        for text, end in self._paths[request]:
            if end > limit:
                end = limit
            if at >= end:
                if end == limit:
                    break
                continue
            if text.writer >= 0 and text.writer != request:
                self._settle(text)
            while at < end:
                # The block inserted first wins; an older run that begins later takes over where it begins.
                stop = end
                for run in text.runs:
                    if run.lo <= at < run.hi:
                        if run.hi < stop:
                            stop = run.hi
                        hits.append((run, stop))
                        break
                    if at < run.lo < stop:
                        stop = run.lo
                else:
                    self.open_end = text.writer >= 0 and text.writer != request
                    return hits
                at = stop
        return hits

    def needs(self, hits: list[tuple[BlockRun, int]]) -> int:
        """How many of the hit blocks lie in the free queue."""
        count = at = 0
        for run, stop in hits:
            if not run.holders:
                count += stop - at
            at = stop
        return count

    def hold(self, request: int, hits: list[tuple[BlockRun, int]]) -> None:
        """Take hit blocks out of the free queue, or share them."""
        held = self._held[request]
        for hit, stop in hits:
            run = hit
            lo = self._hashed[request]
            if lo > run.lo:  # an older run gave way in the middle: what lies before stays where it is
                front = self._split(run, lo)
                if not run.holders:
                    self._queue_behind(front, run)
            if stop < run.hi:
                run = self._split(run, stop)
            elif not run.holders:
                del self.queue[run]
            run.holders.add(request)
            held.append(run)
            self._hashed[request] = stop

    def take(self, count: int) -> None:
        """Take blocks from the front of the free queue; those with a key lose it."""
        self.unhashed -= count
        while self.unhashed < 0:
            run = next(iter(self.queue))
            size = run.hi - run.lo
            if size > -self.unhashed:
                run.hi += self.unhashed
                self.unhashed = 0
            else:
                self.unhashed += size
                del self.queue[run]
                run.text.runs.remove(run)

    def write(self, request: int, computed: int) -> None:
        """Give a key to every full block of the first `computed` tokens."""
        full = computed // self.block_size
        at = self._hashed[request]
        if full <= at:
            return
        held = self._held[request]
        for text, end in self._paths[request]:
            if end <= at:
                continue
            stop = end if end < full else full
            if text.writer >= 0 and text.writer != request:
                self._settle(text)
            last = held[-1] if held else None
            if last is not None and last.text is text and last.hi == at and len(last.holders) == 1 and len(text.runs) == 1:
                last.hi = stop
            else:
                run = BlockRun(text, at, stop, {request})
                text.runs.append(run)
                held.append(run)
            at = stop
            if at == full:
                break
        self._hashed[request] = full

    def release(self, request: int, blocks: int) -> int:
        """Free a request's `blocks`, last to first; how many came free (others may still hold some)."""
        freed = blocks - self._hashed[request]
        self.unhashed += freed
        held = self._held[request]
        for run in reversed(held):
            run.holders.discard(request)
            if not run.holders:
                self.queue[run] = None
                freed += run.hi - run.lo
        held.clear()
        self._hashed[request] = 0
        return freed

    def leave(self, request: int) -> None:
        """Forget a request that is done; its blocks keep their keys until they are taken."""
        path = self._paths.pop(request)
        path[-1][0].writer = -1
        del self._held[request], self._hashed[request]

    def keys(self) -> int:
        """Number of distinct keys in the cache."""
        count = 0
        stack = [self.root]
        while stack:
            text = stack.pop()
            stack.extend(text.children.values())
            covered = 0
            for run in sorted(text.runs, key=lambda run: run.lo):
                count += max(run.hi - max(run.lo, covered), 0)
                covered = max(covered, run.hi)
        return count

    def _settle(self, text: Text) -> None:
        """A decoding request's blocks get their keys only when somebody looks (or it stops): this is somebody looking."""
        self.write(text.writer, self._written(text.writer))

    def _split(self, run: BlockRun, at: int) -> BlockRun:
        """Cut a run before block `at`; `run` keeps the rear and its place in the free queue, the front is returned."""
        front = BlockRun(run.text, run.lo, at, set(run.holders))
        run.lo = at
        runs = run.text.runs
        runs.insert(runs.index(run), front)
        for holder in run.holders:
            held = self._held[holder]
            held.insert(held.index(run), front)
        return front

    def _queue_behind(self, front: BlockRun, run: BlockRun) -> None:
        order = list(self.queue)
        self.queue[front] = None
        for later in order[order.index(run) + 1 :]:
            self.queue.move_to_end(later)
