"""The tick loop.

The rules are vLLM's (0.32, sync scheduler); the speed comes from what they imply, not from a compiler. At the start of a
tick, in every mode:

1.  A request that decodes is given one token in every step that decodes; k is the number of such steps so far. So the
    step in which it ends is known when it starts to decode (`fin`), and until then `last - (fin - k)` of its tokens are
    computed: one sum for all of them (`context`), and no loop.
2.  Who ends in a step stands in a calendar (`ends`). An entry is stale if `fin` differs.
3.  It needs a block in every block_size-th step, so that counting requests by the remainder of those steps (`residues`)
    tells the blocks of a step.
4.  Everybody else in `order` (running requests in order of admission; ended ones are dropped late) is in the middle of
    its prompt, and stands in `partial` in the same order. Without a threshold that is one request at most, the last.
5.  If the budget and the blocks suffice for all of `order`, the order within it does not matter. If blocks are short and
    victims come from its end, the victims are the shortest tail whose removal makes the rest fit. In all other cases
    `Replica.walk` goes through `order` one by one, as the rules are written.
6.  As long as nobody comes, ends or lacks a block, nothing changes but the clock: `coast`. Who could not be admitted
    before cannot be admitted then either.

Times are added up in the same order of operations as a naive loop would, so that results are equal to the last bit.
"""

from __future__ import annotations

import gc
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Generator
from heapq import heappop, heappush
from typing import Any

import numpy as np

from sim.kv_cache import PrefixCache, quoted_segments
from sim.replicas import Router
from sim.requests import Requests
from sim.results import FINISHED, NEVER_ISSUED, REFUSED, UNFINISHED, Run, Ticks
from sim.scenario import Scenario, SimError

INF = float("inf")
Observer = Callable[["Step"], None]
Batch = tuple[int, int, int, int, int, int, int]
"""What a step computes, as `StepTime.seconds` takes it."""


def simulate(
    scenario: Scenario,
    requests: Requests | None = None,
    *,
    step_time: Any = None,
    num_gpu_blocks: int | None = None,
    refuse: bool = True,
    observer: Observer | None = None,
    most_ticks: float = INF,
) -> Run:
    """Run a scenario to its end, or to `most_ticks` engine steps a replica (it then says `stopped` = "too_long").

    `requests` defaults to the scenario's own traffic, `step_time` to its hardware, `num_gpu_blocks` (null block included,
    per replica) to its memory. With `refuse` off, requests that can never fit the pool are let in and stall as they do in
    the bare scheduler (those the front-end rejects, prompt >= max_model_len, never are). `observer` is called with a
    `Step` after every tick, which costs time but changes nothing.

    Raises SimError if the scenario cannot start.
    """
    if requests is None:
        from sim.workload import draw

        requests = draw(scenario)
    if step_time is None:
        from sim.step_time import StepTime

        step_time = StepTime(scenario)
    if num_gpu_blocks is None:
        from sim.memory import plan

        num_gpu_blocks = plan(scenario).num_gpu_blocks
    collecting = gc.isenabled()
    gc.disable()  # the lists are long, and circles are taken apart at the end
    try:
        return _simulate(scenario, requests, step_time, num_gpu_blocks, refuse, observer, most_ticks)
    finally:
        if collecting:
            gc.enable()


def _simulate(
    s: Scenario, requests: Requests, step_time: Any, blocks: int, refuse: bool, observer: Observer | None, most_ticks: float
) -> Run:
    # Where prompts share nothing, a request can only hit its own former blocks: until somebody is preempted, the prefix
    # cache changes nothing, and is left out. If somebody is, we start again with it.
    caching = s.enable_prefix_caching and s.batching != "static"
    certain = not caching or requests.prefix is not None or observer is not None
    for cached in [caching] if certain else [False, True]:
        book = Book(s, requests)
        refusals = _refusals(s, requests, book, step_time, blocks, refuse)
        replicas = [Replica(s, book, step_time, blocks, i, observer, cached) for i in range(s.data_parallel_size)]
        for replica in replicas:
            replica.guessing = caching and not cached
            replica.most_ticks = most_ticks
        router = Router(s, requests, book, replicas, refusals, step_time)
        try:
            router.run()
        except _CacheMatters:
            continue
        break
    run = _result(s, requests, book, step_time, blocks, replicas, refusals)
    for replica in replicas:
        replica.close()
    return run


class _CacheMatters(Exception):
    """Somebody is preempted in a run that left the prefix cache out."""


class Book:
    """What is known of each request, as plain lists: the replicas' common memory."""

    def __init__(self, s: Scenario, requests: Requests) -> None:
        n = len(requests)
        self.prompt: list[int] = requests.prompt.tolist()
        self.priority: list[int] = requests.priority.tolist()
        self.prefix = requests.prefix
        self.quoted = quoted_segments(requests.prefix) if s.enable_prefix_caching else set()
        # num_tokens: what must be computed before the next token can be sampled (not kept up while decoding)
        self.length: list[int] = requests.prompt.tolist()
        # The computed length at which a request is done: its last token is never fed in.
        room = np.maximum(s.max_model_len - requests.prompt, 1)
        self.last: list[int] = (requests.prompt + np.minimum(requests.output, room) - 1).tolist()
        self.got = [0] * n  # computed tokens of one in mid-prompt, or swapped out
        self.fin = [-1] * n  # the decode step in which it ends, -1 while it does not decode
        self.seat = [0] * n  # number of its latest admission: the order of `running`
        self.arrival: list[float] = requests.arrival.tolist()
        self.scheduled = [-1.0] * n
        self.first = [-1.0] * n
        self.finish = [-1.0] * n
        self.latest = [0.0] * n  # time of its latest token, kept up only when it stops decoding
        self.since = [0.0] * n  # back in the queue since
        self.cached = [0] * n
        self.lost = [0] * n  # computed tokens thrown away, less those found again in the cache
        self.preemptions = [0] * n
        self.replica = [0] * n


def _refusals(
    s: Scenario, requests: Requests, book: Book, step_time: Any, blocks: int, refuse: bool
) -> dict[int, SimError]:
    """Requests that can never run, with vLLM's own words."""
    refused: dict[int, SimError] = {}
    for r in np.flatnonzero(requests.prompt >= s.max_model_len).tolist():
        prompt = book.prompt[r]
        refused[r] = SimError(
            "prompt_too_long",
            f"The decoder prompt (length {prompt}) is longer than the maximum model length of {s.max_model_len}. "
            "Make sure that `max_model_len` is no smaller than the number of text tokens.",
            field="max_model_len", value=prompt, high=s.max_model_len,
        )
    usable = blocks - 1
    fits = usable * s.block_size
    if refuse:
        gib = getattr(step_time, "block_bytes", 0) / 2**30
        for r in np.flatnonzero(np.asarray(book.last, np.int64) > fits).tolist():
            if r in refused:
                continue
            needed = -(-s.max_model_len // s.block_size)
            refused[r] = SimError(
                "larger_than_pool",
                f"To serve at least one request with the model's max seq len ({s.max_model_len}), ({round(needed * gib, 2)} GiB "
                f"KV cache is needed, which is larger than the available KV cache memory ({round(usable * gib, 2)} GiB). Based "
                f"on the available memory, the estimated maximum model length is {fits}. Try increasing "
                "`gpu_memory_utilization` (which also controls CPU memory on the CPU backend) or decreasing "
                "`max_model_len` when initializing the engine.",
                field="max_model_len", value=book.last[r] + 1, high=fits,
            )
    return refused


class Step:
    """One tick as an observer sees it. Lists name requests by index; it is only valid during the call."""

    __slots__ = (
        "admitted", "duration", "events", "finished", "free", "free_end", "index", "preempted", "replica", "running", "sched",
        "start", "swapped", "swapped_in", "view", "waiting",
    )

    replica: int
    index: int  # of this tick on its replica
    start: float
    duration: float
    sched: list[tuple[int, int]]  # (request, tokens) in the order scheduled
    admitted: list[tuple[int, int]]  # (request, cached tokens) in order
    preempted: list[int]
    events: list[tuple[int, int]]  # the running loop as it went: (request, tokens), 0 tokens: it was preempted
    swapped: list[int]  # those of `preempted` that went to the CPU
    swapped_in: list[int]  # those of `admitted` that came back from it
    finished: list[int]
    running: list[int]  # in order, after schedule()
    waiting: list[int]
    free: int  # after schedule()
    free_end: int  # after the frees
    view: Replica

    def keys(self) -> int:
        """Distinct keys in the prefix cache after the step."""
        return self.view.cached_keys()


class Replica:
    """One engine: its queue, its running requests, its blocks. `ticks()` is its life; the rest is what happens rarely."""

    def __init__(
        self, s: Scenario, book: Book, step_time: Any, blocks: int, number: int, observer: Observer | None, caching: bool
    ) -> None:
        self.s, self.book, self.step_time, self.number, self.observer = s, book, step_time, number, observer
        self.usable = blocks - 1
        self.watermark = int(s.watermark * blocks)
        self.seats = min(s.max_num_active_seqs or s.max_num_seqs, s.max_num_seqs)
        self.tail_victims = s.victim == "last_admitted" and s.scheduling_policy == "fcfs"
        block_bytes = float(getattr(step_time, "block_bytes", 0.0))
        self.swap_free = int(s.swap_space_gib * 2**30 // block_bytes) if block_bytes else 0
        self.block_swap_s = block_bytes / (s.pcie_gb_s * 1e9)
        self.swaps = s.preemption_mode == "swap"
        # The queue, in three parts: swapped out; preempted (a stack, its end is the head); arrived and never admitted,
        # which is simply the arrivals up to now. With priorities the latter two are one heap.
        self.swapped: list[int] = []
        self.front: list[int] = []
        self.urgent: list[tuple[int, float, int]] = []
        self.arrivals: list[float] = [INF]
        self.arrived: list[int] = []
        self.pointer = 0  # arrivals before it are admitted (with priorities: stand in the heap)
        self.order: list[int] = []
        self.partial: list[int] = []
        self.ends: defaultdict[int, list[int]] = defaultdict(list)
        self.residues = [0] * s.block_size
        self.free = self.usable
        self.k = 0
        self.decoding = 0
        self.context = 0
        self.held: list[int] = []  # static batching: done, but the batch is not
        self.clock = 0.0
        self.in_turn = False  # in the running loop of a step, whose number k is still that of the step before
        self.guessing = False  # the prefix cache is left out, in the hope that it does not matter
        self.cache: PrefixCache | None = None
        if caching:
            self.cache = PrefixCache(self.usable, s.block_size, book.prefix, book.quoted, self.seen)
        self.stopped = ""
        self.most_ticks = INF
        # Replicas that share experts step together: the router says when, and how long the step that each describes takes.
        self.together = bool(getattr(step_time, "in_step", False))
        self.at = 0.0  # no step begins before
        self.batch: Batch | None = None  # the step that has begun
        self.moving = 0.0  # s that its blocks are on the way over PCIe
        # What is written down: starts and free blocks of every tick; who decodes, per stretch of ticks in which they are
        # the same; the rest where it is not zero.
        self.starts: list[float] = []
        self.frees: list[int] = []
        self.pauses: list[tuple[int, float]] = []  # (tick, its end) where the next one does not start at once
        self.stretches: list[int] = []  # ticks, decoding requests, their context in the first of these ticks
        self.particular: list[int] = []  # of ticks that are more than that: the tick, and what `_ticks` makes columns of
        self.late: list[int] = []  # ticks whose decodes had been waiting
        self.freed: list[int] = []  # tick, blocks, ended requests
        self.gaps: list[float] = []
        self.gap_weights: list[int] = []
        self.cached_tokens = 0
        self.requeued = 0.0  # s spent in the queue after preemptions
        self.sequence: list[tuple[int, int]] = []  # what the latest `walk` gave to whom
        self.events: list[tuple[int, int]] = []  # and the way there, victims included (0 tokens)
        self.swap_log: list[tuple[int, int, float]] = []
        self.on_finish: Callable[[int, float], float] | None = None

    # ------------------------------------------------------------------------------------------------ the life of it

    def ticks(self) -> Generator[float, float, None]:
        """Runs up to a horizon (sent in), yields the start of its next tick (inf: nothing to do), and so on.

        With `together` it begins one tick, leaves it in `batch`, is sent its duration and ends it.
        """
        s, book, observer, cache = self.s, self.book, self.observer, self.cache
        size, batched, seats = s.block_size, s.max_num_batched_tokens, self.seats
        continuous, static = s.batching == "continuous", s.batching == "static"
        by_priority = s.scheduling_policy == "priority"
        threshold, adaptive = s.long_prefill_token_threshold, s.long_prefill_token_threshold_adaptive
        whole_prompts = not continuous or not s.enable_chunked_prefill
        reserve_full, watermark = s.scheduler_reserve_full_isl or not continuous, self.watermark
        tail_victims = self.tail_victims and cache is None
        seconds, decode = self.step_time.seconds, self.step_time.decode
        jitter = tuple(getattr(self.step_time, "jitter", ()))
        arrivals, arrived = self.arrivals, self.arrived
        swapped, front, urgent = self.swapped, self.front, self.urgent
        order, partial, ends, residues, held = self.order, self.partial, self.ends, self.residues, self.held
        length, last, got, fin = book.length, book.last, book.got, book.fin
        scheduled, first, finish, latest, since = book.scheduled, book.first, book.finish, book.latest, book.since
        seat, cached = book.seat, book.cached
        starts, on_finish, most_ticks, together = self.starts, self.on_finish, self.most_ticks, self.together
        start_of, free_of = starts.append, self.frees.append
        stretch, particular, freed = self.stretches.extend, self.particular.extend, self.freed.extend
        patience = 1000 + 4 * -(-max(last, default=1) // min(batched, threshold or batched))
        t = 0.0
        k = n = context = pointer = seated = quiet = idle = 0
        free = self.free
        short = 0  # not 0: the head of the queue cannot be admitted before so many blocks are free
        decoded = 0.0  # end of the latest step that decoded
        stalled = False  # prefill_first: decodes have been waiting for prompts
        horizon = yield 0.0

        while True:
            if self.at > t:  # it had nothing to do while the others had
                self.pause(t)
                t = self.at
            # ---- arrivals: nothing to do until somebody comes
            if not n and not partial and not front and not swapped and not urgent and arrivals[pointer] > t:
                self.pause(t)
                if arrivals[pointer] >= horizon:
                    self.keep(t, k, n, context, free, pointer)
                    horizon = yield arrivals[pointer]
                    continue
                t = arrivals[pointer]
            if t >= horizon:
                self.keep(t, k, n, context, free, pointer)
                horizon = yield t
                continue
            if by_priority and arrivals[pointer] <= t:
                short = 0
                while arrivals[pointer] <= t:
                    r = arrived[pointer]
                    heappush(urgent, (book.priority[r], arrivals[pointer], r))
                    pointer += 1
            if static and not n:
                ready = self.gathered(t, pointer, seats)
                if ready > t:
                    self.pause(t)
                    if ready >= horizon:
                        self.keep(t, k, n, context, free, pointer)
                        horizon = yield ready
                    else:
                        t = ready
                    continue

            # ---- coast: nothing but decodes, until somebody ends, comes or lacks a block
            exact = True
            sampled: list[int] = []
            if n and not partial and observer is None and not stalled and not together:
                if static or n == seats:
                    until = INF
                elif short:
                    until = arrivals[bisect_right(arrivals, starts[-1], pointer)] if by_priority or threshold else INF
                elif front or swapped or urgent:
                    until = -1.0
                else:
                    until = arrivals[pointer]
                if until > t:
                    if until > horizon:
                        until = horizon
                    fixed, slope, limit = decode(n, context + n)
                    begun, before, at_first = k, free, context + n
                    stop = k + int((limit - context) // n) if limit < INF else 1 << 60  # where the line ends
                    for k in range(begun + 1, stop + 1):
                        need = residues[k % size]
                        if need:
                            if need > free:
                                k -= 1
                                break
                            free -= need
                        context += n
                        start_of(t)
                        free_of(free)
                        if jitter:
                            t += (fixed + slope * context) * jitter[(len(starts) - 1) % len(jitter)]
                        else:
                            t += fixed + slope * context
                        if k in ends or t >= until:
                            break
                    if k > begun:
                        stretch((k - begun, n, at_first))
                        decoded = t
                        quiet = 0
                        if cache is not None and before > free:
                            cache.take(before - free)
                    if k in ends:
                        exact = False
                    elif t >= until or k == stop:
                        continue

            # ---- one exact tick
            if exact:
                prompts = decodes = True
                if not continuous:
                    if static:
                        prompts = not n
                    else:
                        self.keep(t, k, n, context, free, pointer)
                        prompts = not swapped and self.admissible(t)
                    decodes = not prompts
                cap = 0
                if threshold and continuous:
                    known = n + len(partial) + len(front) + len(swapped) + len(urgent) + bisect_right(arrivals, t, pointer) - pointer
                    if known > 1:
                        cap = max(threshold, batched // known) if adaptive else threshold
                budget = batched if continuous or prompts else 1 << 60
                d_seqs = d_context = l_seqs = l_context = p_seqs = p_tokens = p_pairs = p_context = 0
                chunks: list[tuple[int, int]] = []
                lost: list[int] = []  # preempted
                moved = 0  # blocks over PCIe

                # running requests first
                if decodes:
                    need = residues[(k + 1) % size]
                    by_rule = False
                    total = n
                    for r in partial:
                        m = length[r] - got[r]
                        if cap and m > cap:
                            m = cap
                        total += m
                        if total > budget:
                            while finish[order[-1]] >= 0.0:
                                order.pop()
                            if len(partial) == 1 and order[-1] == r and total - m <= budget:
                                m -= total - budget
                                total = budget
                            else:
                                by_rule = True
                                break
                        chunks.append((r, m))
                        need += -(-(got[r] + m) // size) - -(-got[r] // size)
                    if need > free and not by_rule:
                        if tail_victims and observer is None:
                            self.keep(t, k, n, context, free, pointer)
                            lost, chunks, need, moved = self.cut_tail(t, decoded, chunks, need)
                            n, context, free = self.decoding, self.context, self.free
                        else:
                            by_rule = True
                    if by_rule:
                        self.keep(t, k, n, context, free, pointer)
                        chunks, lost, moved = self.walk(t, decoded, cap, budget)
                        n, context, free = self.decoding, self.context, self.free
                    else:
                        free -= need
                        if cache is not None:
                            if need:
                                cache.take(need)
                            self.k, self.in_turn = k, True
                            for r, m in chunks:
                                cache.write(r, got[r] + m)
                            self.in_turn = False
                    k += 1
                    context += n
                    d_seqs, d_context = n, context
                    budget -= n
                    for r, m in chunks:
                        if not m:
                            continue
                        c = got[r]
                        got[r] = c + m
                        budget -= m
                        if c + m == length[r]:
                            sampled.append(r)
                            if m == 1 and c:  # one token behind others is a decode, whatever came before
                                l_seqs += 1
                                l_context += c + 1
                                continue
                        p_seqs += 1
                        p_tokens += m
                        p_pairs += m * c + m * (m + 1) // 2
                        p_context += c + m
                    if sampled:
                        partial[:] = [r for r in partial if got[r] < length[r]]
                if observer is not None:
                    entered: list[tuple[int, int]] = []
                    returned: list[int] = []
                    wanted = dict(chunks)
                    view = []
                    if decodes and by_rule:
                        view = self.sequence
                    elif decodes:
                        view = [(r, wanted.get(r, 1)) for r in order if fin[r] >= 0 or wanted.get(r)]
                        self.events = list(view)
                    else:
                        self.events = []

                # then the queue, unless somebody was just thrown out
                short = 0
                if not (prompts or swapped or static or lost) and (urgent or front or arrivals[pointer] <= t):
                    short = cache is None or not cache.open_end
                if not lost and (prompts or swapped):
                    occupied = n + len(partial) + len(sampled)
                    if static:
                        budget = 1 << 60
                        unreserved = free
                    if cache is not None:
                        self.k = k
                    while budget > 0 and occupied < seats:
                        if swapped:
                            r = swapped[-1]
                        elif not prompts:
                            break
                        elif by_priority:
                            if not urgent:
                                break
                            r = urgent[0][2]
                        elif front:
                            r = front[-1]
                        elif arrivals[pointer] <= t:
                            r = arrived[pointer]
                        else:
                            break
                        whole = length[r]
                        hits = None
                        c = have = gain = 0
                        if swapped:
                            c = got[r]
                        elif cache is not None:
                            hits = cache.lookup(r, (whole - 1) // size)
                            if hits:
                                have = hits[-1][1]
                                c = have * size
                                gain = cache.needs(hits)
                        m = whole - c
                        if cap and m > cap:
                            m = cap
                        if m > budget:
                            if not whole_prompts:
                                m = budget
                            elif continuous or budget < batched:
                                short = budget == batched - n  # decodes will leave no more the next time
                                break
                        end = c + m
                        blocks = -(-end // size) - have
                        if static:
                            if -(-last[r] // size) > unreserved:
                                break
                            unreserved -= -(-last[r] // size)
                        else:
                            asked = (blocks if end == whole or not reserve_full else -(-whole // size) - have) + gain
                            if occupied:
                                asked += watermark
                            if asked > free:
                                short = asked if cache is None else not cache.open_end
                                break
                        free -= gain + blocks
                        if cache is not None:
                            if hits:
                                cache.hold(r, hits)
                                self.cached_tokens += c
                            cache.take(blocks)
                            cache.write(r, end)
                        if swapped:
                            swapped.pop()
                            out = -(-c // size)
                            self.swap_free += out
                            moved += out
                        elif by_priority:
                            heappop(urgent)
                        elif front:
                            front.pop()
                        else:
                            pointer += 1
                        if scheduled[r] < 0.0:
                            scheduled[r] = t
                            cached[r] = c
                        else:
                            self.requeued += t - since[r]
                            if hits:
                                book.lost[r] -= c
                        if observer is not None:
                            entered.append((r, c))
                            view.append((r, m))
                            if got[r]:
                                returned.append(r)
                        order.append(r)
                        seated += 1
                        seat[r] = seated
                        occupied += 1
                        got[r] = end
                        budget -= m
                        if end == whole:
                            sampled.append(r)
                            if m == 1 and c:
                                l_seqs += 1
                                l_context += c + 1
                                continue
                        else:
                            partial.append(r)
                        p_seqs += 1
                        p_tokens += m
                        p_pairs += m * c + m * (m + 1) // 2
                        p_context += end

                tick = len(starts)
                start_of(t)
                free_of(free)
                sampling = d_seqs + len(sampled)
                batch = (d_seqs + l_seqs, d_context + l_context, p_seqs, p_tokens, p_pairs, p_context, sampling)
                swap_s = moved * self.block_swap_s
                if together:
                    self.batch, self.moving = batch, swap_s
                    horizon = t  # the next one begins when all have ended this one
                    duration = yield t
                else:
                    duration = seconds(*batch)
                    if jitter:
                        duration *= jitter[tick % len(jitter)]
                    duration += swap_s
                if moved:
                    self.swap_log.append((tick, moved, swap_s))
                if observer is not None:
                    self.keep(t, k, n, context, free, pointer)
                    step = self.step(t, duration, view, entered, lost, returned)
                t += duration
                if d_seqs:
                    if stalled:  # their latest tokens are older than this step
                        self.late.append(tick)
                        for r in order:
                            if fin[r] >= 0:
                                self.gap(t - (latest[r] if latest[r] > decoded else decoded), 1)
                        stalled = False
                    decoded = t
                elif n:
                    stalled = True
                stretch((1, d_seqs, d_context))
                particular((tick, l_seqs, l_context, p_seqs, p_tokens, p_pairs, p_context, len(sampled), len(lost), seated))
                if tick >= most_ticks:
                    self.stopped = "too_long"
                if sampling:
                    quiet = idle = 0
                else:
                    quiet += 1
                    idle = 0 if p_tokens or lost or arrivals[-2] > starts[-1] else idle + 1
                    if idle == 3 or quiet > patience:
                        self.stopped = "stalled" if idle == 3 else "livelock"

            # ---- what the step brought: tokens, ends
            done: list[int] = []
            for r in ends.pop(k, ()):
                if fin[r] == k:
                    fin[r] = -1
                    n -= 1
                    context -= last[r]
                    residues[(k + 1 - last[r]) % size] -= 1
                    done.append(r)
            for r in sampled:
                c = length[r]
                if first[r] < 0.0:
                    first[r] = t
                else:
                    self.gap(t - latest[r], 1)
                latest[r] = t
                if c == last[r]:
                    done.append(r)
                    continue
                fin[r] = end = k + last[r] - c
                ends[end].append(r)
                residues[(k + 1 - c) % size] += 1
                n += 1
                context += c
            if done:
                if len(done) > 1:
                    done.sort(key=seat.__getitem__)
                if static:
                    held.extend(done)
                    done = [] if n else sorted(held, key=seat.__getitem__)
                    if done:
                        held.clear()
                came_free = 0
                for r in done:
                    blocks = -(-last[r] // size)
                    if cache is not None:
                        blocks = cache.finish(r, last[r], blocks)
                    came_free += blocks
                    finish[r] = t
                    if on_finish is not None:
                        horizon = min(horizon, on_finish(r, t))
                free += came_free
                if free >= short:
                    short = 0
                freed((len(starts) - 1, came_free, len(done)))
            if observer is not None:
                step.finished, step.free_end = done, free
                self.keep(t, k, n, context, free, pointer)
                observer(step)
            if self.stopped:
                self.keep(t, k, n, context, free, pointer)
                return

    # ------------------------------------------------------------------------------------------------ what is rare

    def close(self) -> None:
        """Take circles of references apart, so that memory comes free at once and not at some collection."""
        self.on_finish = None
        if self.cache is not None:
            self.cache.close()
            self.cache = None

    def keep(self, t: float, k: int, n: int, context: int, free: int, pointer: int) -> None:
        """Write the loop's local variables down where others can see them."""
        self.clock, self.k, self.decoding, self.context = t, k, n, context
        self.free, self.pointer = free, pointer

    def load(self) -> tuple[int, int, float]:
        """(waiting, running, KV usage) after the latest step, those not yet seen by a step counted as waiting."""
        running = self.decoding + len(self.partial) + len(self.held)
        waiting = len(self.swapped) + len(self.front) + len(self.urgent) + len(self.arrived) - self.pointer
        return waiting, running, 1.0 - self.free / self.usable

    def pause(self, t: float) -> None:
        """The tick before ended at t and the next one may start later."""
        tick = len(self.starts)
        if tick and (not self.pauses or self.pauses[-1][0] != tick - 1):
            self.pauses.append((tick - 1, t))

    def gap(self, seconds: float, count: int) -> None:
        """`count` tokens came `seconds` after the one before."""
        self.gaps.append(seconds)
        self.gap_weights.append(count)

    def gathered(self, t: float, pointer: int, seats: int) -> float:
        """Static batching: when the next batch can start, as far as can be known at t."""
        arrivals = self.arrivals
        behind = bisect_right(arrivals, t, pointer)
        count = len(self.urgent) + behind - pointer
        oldest = min((when for _, when, _ in self.urgent), default=INF)
        oldest = min(oldest, arrivals[pointer])
        return t if count >= seats else max(t, min(oldest + self.s.static_timeout_s, arrivals[behind]))

    def admissible(self, t: float) -> bool:
        """prefill_first: can the head of the queue be admitted now?"""
        occupied = self.decoding + len(self.partial)
        if occupied >= self.seats:
            return False
        if self.urgent:
            r = self.urgent[0][2]
        elif self.front:
            r = self.front[-1]
        elif self.s.scheduling_policy == "fcfs" and self.arrivals[self.pointer] <= t:
            r = self.arrived[self.pointer]
        else:
            return False
        size, tokens = self.s.block_size, self.book.length[r]
        have = gain = 0
        if self.cache is not None:
            hits = self.cache.lookup(r, (tokens - 1) // size)
            have = hits[-1][1] if hits else 0
            gain = self.cache.needs(hits)
        return -(-tokens // size) - have <= self.free - gain - (self.watermark if occupied else 0)

    def written(self, r: int) -> int:
        """Tokens of r computed by now."""
        fin = self.book.fin[r]
        return self.book.last[r] - fin + self.k if fin >= 0 else self.book.got[r]

    def seen(self, w: int, r: int) -> int:
        """Tokens of w computed when it is r's turn: in the running loop those seated before r had theirs already."""
        book = self.book
        return self.written(w) + (self.in_turn and book.fin[w] >= 0 and book.seat[w] < book.seat[r])

    def cut_tail(
        self, t: float, decoded: float, chunks: list[tuple[int, int]], need: int
    ) -> tuple[list[int], list[tuple[int, int]], int, int]:
        """Blocks are short: throw out the last of `order` until the others fit. Victims, chunks left, need, moved blocks."""
        book, size, order = self.book, self.s.block_size, self.order
        wanted = dict(chunks)
        lost: list[int] = []
        moved = 0
        while need > self.free:
            v = order.pop()
            if book.finish[v] >= 0.0:
                continue
            c = self.written(v)
            m = wanted.pop(v, 0) if book.fin[v] < 0 else 1
            need -= -(-(c + m) // size) - -(-c // size)
            moved += self.preempt(v, t, decoded, c)
            lost.append(v)
        return lost, list(wanted.items()), need, moved

    def walk(self, t: float, decoded: float, cap: int, budget: int) -> tuple[list[tuple[int, int]], list[int], int]:
        """The running loop as the rules are written. Chunks of those in mid-prompt, victims, moved blocks.

        A decoding request that gets nothing in this step falls out of step with the others: it goes on as one in the
        middle of its text with one token to go.
        """
        book, size, cache, partial = self.book, self.s.block_size, self.cache, self.partial
        fin, got, length = book.fin, book.got, book.length
        order = self.order
        order[:] = [r for r in order if book.finish[r] < 0.0]
        given: dict[int, int] = {}
        events = self.events = []
        lost: list[int] = []
        moved = i = 0
        while i < len(order) and budget > 0:
            r = order[i]
            c = self.written(r)
            m = 1 if fin[r] >= 0 else length[r] - c
            if cap and m > cap:
                m = cap
            if m > budget:
                m = budget
            need = -(-(c + m) // size) - -(-c // size)
            v = -1
            while need > self.free and v != r:
                at = self.victim(order)
                v = order.pop(at)
                if at < i:
                    i -= 1
                back = given.pop(v, 0)
                budget += back
                computed = self.written(v)
                moved += self.preempt(v, t, decoded, computed, computed + back)
                lost.append(v)
                events.append((v, 0))
            if v == r:
                break
            self.free -= need
            if cache is not None:
                cache.take(need)
                cache.write(r, c + m)
            given[r] = m
            events.append((r, m))
            budget -= m
            i += 1
        for r in order:
            if fin[r] >= 0 and r not in given:
                got[r] = c = self.written(r)
                length[r] = c + 1
                self.drop(r, c, decoded)
        partial[:] = [r for r in order if fin[r] < 0]
        self.sequence = list(given.items())
        return [(r, m) for r, m in given.items() if fin[r] < 0], lost, moved

    def victim(self, order: list[int]) -> int:
        """Where in `order` the next victim stands."""
        book, rule = self.book, self.s.victim
        if rule == "fewest_remaining":  # of two, the one admitted later
            return min(range(len(order)), key=lambda i: (book.last[order[i]] - self.written(order[i]), -i))
        if rule == "longest":
            return max(range(len(order)), key=lambda i: (self.written(order[i]), i))
        if self.s.scheduling_policy == "priority":
            return max(range(len(order)), key=lambda i: (book.priority[order[i]], book.arrival[order[i]], order[i]))
        return len(order) - 1

    def drop(self, r: int, computed: int, decoded: float) -> None:
        """Take r out of the cohort of decoding requests."""
        book = self.book
        self.decoding -= 1
        self.context -= computed
        self.residues[(self.k + 1 - computed) % self.s.block_size] -= 1
        book.fin[r] = -1
        book.latest[r] = max(book.latest[r], decoded)

    def preempt(self, v: int, t: float, decoded: float, computed: int, written: int = 0) -> int:
        """Take all blocks from v and put it at the head of the queue; how many blocks went to the CPU.

        `written` counts tokens it was given in this very step too: they have blocks and keys, though they are taken back.
        """
        if self.guessing:
            raise _CacheMatters
        book, size = self.book, self.s.block_size
        blocks = -(-max(written, computed) // size)
        if self.cache is not None:
            self.cache.write(v, max(written, computed))
            self.free += self.cache.release(v, blocks)
        else:
            self.free += blocks
        if book.fin[v] >= 0:
            book.length[v] = computed + 1
            self.drop(v, computed, decoded)
        else:
            self.partial.remove(v)
        book.preemptions[v] += 1
        book.since[v] = t
        out = -(-computed // size)
        if self.swaps and out <= self.swap_free:
            self.swap_free -= out
            book.got[v] = computed
            self.swapped.append(v)
            if self.s.scheduling_policy == "priority":
                self.swapped.sort(key=lambda r: (book.priority[r], book.arrival[r], r), reverse=True)
            return out
        book.got[v] = 0
        book.lost[v] += computed
        if self.s.scheduling_policy == "priority":
            heappush(self.urgent, (book.priority[v], book.arrival[v], v))
        else:
            self.front.append(v)
        return 0

    # ------------------------------------------------------------------------------------------------ for an observer

    def cached_keys(self) -> int:
        """Distinct keys in the prefix cache."""
        if self.cache is None:
            return 0
        for r in self.order:
            if self.book.fin[r] >= 0:
                self.cache.write(r, self.written(r))
        return self.cache.keys()

    def step(
        self, t: float, duration: float, sched: list[tuple[int, int]], admitted: list[tuple[int, int]], lost: list[int],
        returned: list[int],
    ) -> Step:
        """What happened in this tick, up to the ends of requests."""
        step, book = Step(), self.book
        step.view, step.replica, step.index, step.start, step.duration = self, self.number, len(self.starts) - 1, t, duration
        step.sched, step.admitted, step.preempted, step.swapped_in = sched, admitted, lost, returned
        step.swapped = [r for r in lost if r in self.swapped]
        step.running = [r for r in self.order if book.finish[r] < 0.0]
        step.waiting = self.swapped[::-1] + self.front[::-1] + [r for _, _, r in sorted(self.urgent)]
        if self.s.scheduling_policy == "fcfs":
            step.waiting += self.arrived[self.pointer : bisect_right(self.arrivals, t, self.pointer)]
        step.free, step.events = self.free, self.events
        return step


def _result(
    s: Scenario, requests: Requests, book: Book, step_time: Any, blocks: int, replicas: list[Replica],
    refusals: dict[int, SimError],
) -> Run:
    n = len(requests)
    parts = [_ticks(replica) for replica in replicas]
    ticks = Ticks.joined([part for part, _ in parts])
    steady = [weights for _, weights in parts]
    order = np.argsort(np.concatenate([part.start for part, _ in parts]), kind="stable") if len(parts) > 1 else None
    weights = np.concatenate(steady)
    finish = np.array(book.finish)
    status = np.full(n, UNFINISHED, np.int8)
    status[finish >= 0.0] = FINISHED
    status[list(refusals)] = REFUSED
    arrival = np.array(book.arrival)
    status[np.isinf(arrival)] = NEVER_ISSUED
    scheduled = np.array(book.scheduled)
    end = max((replica.clock for replica in replicas if replica.clock < INF), default=0.0)
    known = np.array(book.length, np.int64)
    for replica in replicas:
        for r in replica.order:
            if book.fin[r] >= 0:
                known[r] = replica.written(r) + 1
    generated = np.where(finish >= 0.0, np.array(book.last, np.int64) + 1, known) - requests.prompt
    generated[(status == REFUSED) | (status == NEVER_ISSUED)] = 0
    waited = np.where(scheduled >= 0.0, scheduled, end) - arrival
    queued = float(waited[(status == FINISHED) | (status == UNFINISHED)].sum()) + sum(r.requeued for r in replicas)
    for replica in replicas:
        again = [*replica.swapped, *replica.front, *(r for _, _, r in replica.urgent if book.preemptions[r])]
        queued += sum(max(end - book.since[r], 0.0) for r in again)
    nothing = np.nan
    return Run(
        scenario=s, requests=requests, ticks=ticks, step_time=step_time, num_gpu_blocks=blocks, arrival=arrival,
        first_scheduled=np.where(scheduled >= 0.0, scheduled, nothing),
        first_token=np.where(np.array(book.first) >= 0.0, book.first, nothing),
        finish=np.where(finish >= 0.0, finish, nothing),
        preemptions=np.array(book.preemptions, np.int64), cached=np.array(book.cached, np.int64),
        recomputed=np.array(book.lost, np.int64), generated=generated, status=status,
        replica=np.array(book.replica, np.int64),
        gaps=np.array([gap for r in replicas for gap in r.gaps]),
        gap_weights=np.array([w for r in replicas for w in r.gap_weights], np.int64),
        cached_tokens=sum(replica.cached_tokens for replica in replicas),
        steady=weights if order is None else weights[order], queued_s=queued, refusals=refusals,
        stopped=next((replica.stopped for replica in replicas if replica.stopped), ""),
    )


def _ticks(replica: Replica) -> tuple[Ticks, Any]:
    """One replica's ticks from its notes: stretches of equal ticks spread out, and the steady weights."""
    start = np.fromiter(replica.starts, np.float64, len(replica.starts))
    free = np.fromiter(replica.frees, np.int64, len(replica.frees))
    count = len(start)
    lasting, seqs, context = np.array(replica.stretches, np.int64).reshape(-1, 3).T
    before = np.cumsum(lasting) - lasting
    cohort = np.repeat(seqs, lasting)
    summed = np.repeat(context - before * seqs, lasting) + cohort * np.arange(count)
    steady = cohort.copy()
    steady[replica.late] = 0
    at, *columns, seated = np.array(replica.particular, np.int64).reshape(-1, 10).T
    spread = np.zeros((9, count), np.int64)
    for row, column in zip(spread, [*columns, np.diff(seated, prepend=0)], strict=True):
        row[at] = column
    l_seqs, l_context, p_seqs, p_tokens, p_pairs, p_context, fresh, preempted, admitted = spread
    end = np.empty(count)
    if count:
        end[:-1] = start[1:]
        end[-1] = replica.clock if not replica.pauses or replica.pauses[-1][0] != count - 1 else replica.pauses[-1][1]
        for tick, when in replica.pauses:
            end[tick] = when
    freed = np.array(replica.freed, np.int64).reshape(-1, 3).T
    finished, free_end = np.zeros(count, np.int64), free.copy()
    finished[freed[0]] = freed[2]
    free_end[freed[0]] += freed[1]
    swapped, swap_s = np.zeros(count, np.int64), np.zeros(count)
    for tick, blocks, seconds in replica.swap_log:
        swapped[tick], swap_s[tick] = blocks, seconds
    taken = np.cumsum(admitted - preempted)
    gone = np.cumsum(finished) - finished
    arrived = np.searchsorted(np.array(replica.arrivals[:-1]), start, side="right")
    ticks = Ticks(
        start=start, duration=end - start, running=taken - gone, waiting=arrived - taken, decode_seqs=cohort + l_seqs,
        decode_context=summed + l_context, prefill_seqs=p_seqs, prefill_tokens=p_tokens, prefill_pairs=p_pairs,
        prefill_context=p_context, sampled=cohort + fresh, free_blocks=free, free_end=free_end, preempted=preempted,
        admitted=admitted, finished=finished, swapped_blocks=swapped, swap_s=swap_s,
        replica=np.full(count, replica.number, np.int64),
    )
    return ticks, steady
