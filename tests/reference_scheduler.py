"""The scheduler once more, naive and readable: every request and every block is an object, every tick a loop over all.

It follows the rules one by one and knows nothing of the engine's structure; the engine must be equal to it bit for bit.
`simulate` takes what sim.engine.simulate takes and returns plain lists.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from types import SimpleNamespace

INF = float("inf")


def cdiv(a, b):
    return -(-a // b)


class Block:
    def __init__(self):
        self.ref, self.key = 0, None


class Pool:
    """Blocks with vLLM's free queue. Block 0, the null block, is left out."""

    def __init__(self, num_gpu_blocks):
        self.queue = OrderedDict((Block(), None) for _ in range(num_gpu_blocks - 1))
        self.cached = {}  # key -> its blocks, oldest first

    @property
    def free(self):
        return len(self.queue)

    def take(self, count):
        taken = []
        for _ in range(count):
            block, _ = self.queue.popitem(last=False)
            if block.key is not None:
                self.cached[block.key].remove(block)
                block.key = None
            block.ref = 1
            taken.append(block)
        return taken

    def share(self, blocks):
        for block in blocks:
            if block.ref == 0:
                del self.queue[block]
            block.ref += 1

    def give_back(self, blocks):
        unhashed = []
        for block in reversed(blocks):
            block.ref -= 1
            if block.ref == 0:
                if block.key is None:
                    unhashed.append(block)
                else:
                    self.queue[block] = None
        for block in reversed(unhashed):
            self.queue[block] = None
            self.queue.move_to_end(block, last=False)

    def hash(self, block, key):
        block.key = key
        self.cached.setdefault(key, []).append(block)

    def lookup(self, keys):
        hits = []
        for key in keys:
            if not self.cached.get(key):
                break
            hits.append(self.cached[key][0])
        return hits


class Request:
    def __init__(self, index, requests, s):
        self.index = index
        self.prompt = int(requests.prompt[index])
        self.output = int(requests.output[index])
        self.priority = int(requests.priority[index])
        self.arrival = float(requests.arrival[index])
        self.max_len = s.max_model_len
        self.num_tokens, self.computed = self.prompt, 0
        self.blocks, self.hashed = [], 0
        self.swapped = False
        self.held = False  # static: done, but the batch is not
        self.first_scheduled = self.first_token = self.finish = None
        self.token_times = []
        self.cached = self.lost = self.preemptions = 0
        self.replica = 0
        self.tokens, self.keys = None, []
        if s.enable_prefix_caching:
            segments = requests.prefix[index] if requests.prefix else ((("p", index), self.prompt),)
            self.tokens = [(name, j) for name, length in segments for j in range(length)]
            self.block_size = s.block_size
            self.rehash()

    @property
    def generated(self):
        return self.num_tokens - self.prompt

    @property
    def done(self):
        return self.generated >= self.output or self.num_tokens >= self.max_len

    @property
    def last(self):
        """Its computed length when it is done."""
        return self.prompt + min(self.output, max(self.max_len - self.prompt, 1)) - 1

    @property
    def urgency(self):
        return (self.priority, self.arrival, self.index)

    def rehash(self):
        while (len(self.keys) + 1) * self.block_size <= len(self.tokens):
            at = len(self.keys) * self.block_size
            parent = self.keys[-1] if self.keys else None
            self.keys.append(hash_chain(parent, tuple(self.tokens[at : at + self.block_size])))

    def append_token(self, now):
        if self.tokens is not None:
            self.tokens.append((("o", self.index), self.generated))
            self.rehash()
        self.num_tokens += 1
        self.token_times.append(now)
        if self.first_token is None:
            self.first_token = now


_chain = {}


def hash_chain(parent, tokens):
    return _chain.setdefault((parent, tokens), len(_chain))


class Server:
    """One replica."""

    def __init__(self, s, requests, step_time, num_gpu_blocks, number):
        self.s, self.step_time, self.number = s, step_time, number
        self.pool = Pool(num_gpu_blocks)
        self.usable = num_gpu_blocks - 1
        self.watermark = int(s.watermark * num_gpu_blocks)
        self.seats = min(s.max_num_active_seqs or s.max_num_seqs, s.max_num_seqs)
        self.caching = s.enable_prefix_caching and s.batching != "static"
        block_bytes = step_time.block_bytes
        self.swap_free = int(s.swap_space_gib * 2**30 // block_bytes) if block_bytes else 0
        self.block_swap_s = block_bytes / (s.pcie_gb_s * 1e9)
        longest = max((r.last for r in requests), default=1)
        chunk = min(s.max_num_batched_tokens, s.long_prefill_token_threshold or s.max_num_batched_tokens)
        self.patience = 1000 + 4 * cdiv(longest, chunk)
        self.waiting, self.running = [], []
        self.now = 0.0
        self.quiet = self.idle = 0
        self.stopped = ""
        self.ticks = []

    # --- when

    def next_start(self):
        if self.stopped or not (self.waiting or self.running):
            return INF
        if self.running:
            return self.now
        latest = max(r.arrival for r in self.waiting)
        oldest = min(r.arrival for r in self.waiting)
        if self.s.batching != "static":
            return max(self.now, oldest)
        if len(self.waiting) >= self.seats:
            return max(self.now, latest)
        return max(self.now, oldest + self.s.static_timeout_s)

    # --- the queue: swapped ones first, then fcfs with preempted ones at the head, or by priority

    def push(self, r):
        self.waiting.append(r)
        self.sort()

    def push_back(self, r):
        self.waiting.insert(0, r)
        self.sort()

    def sort(self):
        if self.s.scheduling_policy == "priority":
            self.waiting.sort(key=lambda r: r.urgency)
        if self.s.preemption_mode == "swap":
            self.waiting.sort(key=lambda r: not r.swapped)

    # --- blocks

    def allocate(self, r, n, hits=(), admission=False):
        """Blocks for n more tokens (and the cached ones in `hits`), or False and nothing changed."""
        size = self.s.block_size
        held = len(r.blocks) + len(hits)
        computed = r.computed + len(hits) * size
        free = self.pool.free - sum(block.ref == 0 for block in hits)
        if admission and self.running:
            free -= self.watermark
        need = cdiv(computed + n, size) - held
        if admission and (self.s.scheduler_reserve_full_isl or self.s.batching != "continuous"):
            whole = cdiv(min(r.num_tokens, self.s.max_model_len), size) - held
        else:
            whole = 0
        if max(need, whole) > free:
            return False
        self.pool.share(hits)
        r.blocks += hits
        r.hashed = max(r.hashed, len(hits))
        r.blocks += self.pool.take(need)
        if self.caching:
            full = min(computed + n, r.num_tokens) // size
            for i in range(r.hashed, full):
                self.pool.hash(r.blocks[i], r.keys[i])
            r.hashed = max(r.hashed, full)
        return True

    def free(self, r):
        self.pool.give_back(r.blocks)
        r.blocks, r.hashed = [], 0

    # --- schedule()

    def cap(self, n):
        return min(n, self.threshold) if self.threshold else n

    def schedule(self):
        s = self.s
        self.sched, self.preempted, self.admitted, self.moved = OrderedDict(), [], [], 0
        known = len(self.running) + len(self.waiting)
        self.threshold = 0
        if s.batching == "continuous" and s.long_prefill_token_threshold and known > 1:
            self.threshold = s.long_prefill_token_threshold
            if s.long_prefill_token_threshold_adaptive:
                self.threshold = max(self.threshold, s.max_num_batched_tokens // known)
        if s.batching == "continuous":
            self.budget = s.max_num_batched_tokens
            self.schedule_running()
            if not self.preempted:
                self.schedule_waiting()
        elif s.batching == "prefill_first":
            self.budget = s.max_num_batched_tokens
            if not (self.waiting and self.waiting[0].swapped):
                self.schedule_waiting()
            if not self.admitted:
                self.budget = INF
                self.schedule_running()
                if not self.preempted:
                    self.schedule_waiting(only_swapped=True)
        elif not self.running:
            self.schedule_batch()
        else:
            self.budget = INF
            self.schedule_running()

    def schedule_running(self):
        i = 0
        while i < len(self.running) and self.budget > 0:
            r = self.running[i]
            if r.held:
                i += 1
                continue
            n = min(self.cap(r.num_tokens - r.computed), self.budget)
            while not self.allocate(r, n):
                victim = self.choose_victim()
                at = self.running.index(victim)
                del self.running[at]
                if at < i:
                    i -= 1
                self.budget += self.sched.pop(victim, 0)
                self.preempt(victim)
                if victim is r:
                    return
            self.sched[r] = n
            self.budget -= n
            i += 1

    def choose_victim(self):
        """Of equals, the one that stands last in `running`."""
        rule = self.s.victim
        if rule == "fewest_remaining":
            return min(reversed(self.running), key=lambda r: r.last - r.computed)
        if rule == "longest":
            return max(reversed(self.running), key=lambda r: r.computed)
        if self.s.scheduling_policy == "priority":
            return max(self.running, key=lambda r: r.urgency)
        return self.running[-1]

    def preempt(self, r):
        self.free(r)
        r.preemptions += 1
        self.preempted.append(r)
        blocks = cdiv(r.computed, self.s.block_size)
        if self.s.preemption_mode == "swap" and blocks <= self.swap_free:
            self.swap_free -= blocks
            self.moved += blocks
            r.swapped = True
        else:
            r.lost += r.computed
            r.computed = 0
        self.push_back(r)

    def schedule_waiting(self, only_swapped=False):
        s = self.s
        while self.waiting and self.budget > 0 and len(self.running) < self.seats:
            r = self.waiting[0]
            if only_swapped and not r.swapped:
                return
            hits = []
            if self.caching and not r.swapped:
                hits = self.pool.lookup(r.keys[: (r.num_tokens - 1) // s.block_size])
            cached = r.computed if r.swapped else len(hits) * s.block_size
            n = self.cap(r.num_tokens - cached)
            if n > self.budget:
                if s.batching == "prefill_first":
                    if self.admitted:  # a prompt longer than the budget has a step to itself
                        return
                elif not s.enable_chunked_prefill:
                    return
                else:
                    n = self.budget
            if not self.allocate(r, n, hits, admission=True):
                return
            self.admit(r, cached, n)

    def schedule_batch(self):
        """Static: the next batch, as many as will fit with all they will ever write."""
        room = self.usable
        while self.waiting and len(self.running) < self.seats:
            r = self.waiting[0]
            room -= cdiv(r.last, self.s.block_size)
            if room < 0:
                return
            assert self.allocate(r, r.num_tokens)
            self.admit(r, 0, r.num_tokens)

    def admit(self, r, cached, n):
        del self.waiting[0]
        self.running.append(r)
        self.admitted.append(r)
        if r.swapped:
            blocks = cdiv(r.computed, self.s.block_size)
            self.swap_free += blocks
            self.moved += blocks
            r.swapped = False
        elif r.first_scheduled is not None:
            r.lost -= cached
        if r.first_scheduled is None:
            r.first_scheduled, r.cached = self.now, cached
        r.computed = cached
        self.sched[r] = n
        self.budget = getattr(self, "budget", 0) - n

    # --- a step

    def tick(self, start, more_to_come):
        batch = self.begin(start)
        duration = self.step_time.seconds(*batch)
        if self.step_time.jitter:
            duration *= self.step_time.jitter[len(self.ticks) % len(self.step_time.jitter)]
        return self.end(duration + self.moved * self.block_swap_s, more_to_come)

    def begin(self, start):
        """Schedule a step; what it computes, as StepTime.seconds takes it."""
        self.now = start
        self.schedule()
        d_seqs = d_context = p_seqs = p_tokens = p_pairs = p_context = sampled = 0
        for r, n in self.sched.items():
            c = r.computed
            ends = c + n == r.num_tokens
            sampled += ends
            if n == 1 and c and ends:
                d_seqs += 1
                d_context += c + 1
            else:
                p_seqs += 1
                p_tokens += n
                p_pairs += n * c + n * (n + 1) // 2
                p_context += c + n
        self.row = SimpleNamespace(
            start=start, running=len(self.running), waiting=len(self.waiting), decode_seqs=d_seqs,
            decode_context=d_context, prefill_seqs=p_seqs, prefill_tokens=p_tokens, prefill_pairs=p_pairs,
            prefill_context=p_context, sampled=sampled, free_blocks=self.pool.free, preempted=len(self.preempted),
            admitted=len(self.admitted), swapped_blocks=self.moved, swap_s=self.moved * self.block_swap_s,
            replica=self.number,
        )
        return d_seqs, d_context, p_seqs, p_tokens, p_pairs, p_context, sampled

    def end(self, duration, more_to_come):
        """The step that has begun takes so long. Who finished."""
        row = self.row
        self.now = row.start + duration
        row.duration = self.now - row.start
        finished = self.update()
        row.finished, row.free_end = len(finished), self.pool.free
        self.ticks.append(row)
        self.quiet = 0 if row.sampled else self.quiet + 1
        self.idle = 0 if self.sched or self.preempted or more_to_come else self.idle + 1
        if self.idle == 3 or self.quiet > self.patience:
            self.stopped = "stalled" if self.idle == 3 else "livelock"
        return finished

    def update(self):
        finished = []
        for r, n in self.sched.items():
            r.computed += n
            if r.computed == r.num_tokens:
                r.append_token(self.now)
                if r.done:
                    finished.append(r)
        if self.s.batching == "static":
            for r in finished:
                r.held = True
            finished = list(self.running) if all(r.held for r in self.running) else []
        for r in finished:
            r.finish = self.now
            self.free(r)
        self.running = [r for r in self.running if r.finish is None]
        return finished

    def load(self):
        return len(self.waiting), len(self.running), 1.0 - self.pool.free / self.usable


def simulate(s, requests, *, step_time, num_gpu_blocks, refuse=True):
    """Run to the end. Returns .ticks (rows sorted by start), .requests, .refused, .stopped, .gaps (sorted)."""
    _chain.clear()
    everyone = [Request(i, requests, s) for i in range(len(requests))]
    refused = {
        r.index
        for r in everyone
        if r.prompt >= s.max_model_len or (refuse and r.last > (num_gpu_blocks - 1) * s.block_size)
    }
    servers = [Server(s, everyone, step_time, num_gpu_blocks, i) for i in range(s.data_parallel_size)]
    followers = {}
    for r in everyone:
        followers.setdefault(int(requests.after[r.index]), []).append(r)
    in_flight = [0] * len(servers)
    coming = []
    turn = 0

    def release(done, now):
        for r in followers.get(done.index, []):
            when = now + float(requests.think[r.index])
            if when <= s.duration_s:
                r.arrival = when
                arrive(r)

    def arrive(r):
        if r.index in refused:
            release(r, r.arrival)
        else:
            heapq.heappush(coming, (r.arrival, r.index))

    def score(i):
        waiting, running, usage = servers[i].load()
        if s.router == "vllm":
            return max(float(in_flight[i]), float(waiting + running)) + waiting * 6.0 * max(0.0, usage - 0.5)
        return 0 if s.router == "round_robin" else in_flight[i]

    for r in [r for r in everyone if r.arrival < INF]:
        arrive(r)
    end = 0.0  # of the latest step, where all step together
    steps = 0
    while True:
        server = min(servers, key=lambda server: server.next_start())
        start = max(server.next_start(), end)
        if coming and coming[0][0] <= start:
            _, index = heapq.heappop(coming)
            count = len(servers)
            chosen = min(range(count), key=lambda i: (score(i), (i - turn) % count))
            turn = chosen + 1
            in_flight[chosen] += 1
            everyone[index].replica = chosen
            servers[chosen].push(everyone[index])
            continue
        if start == INF:
            break
        if step_time.in_step:
            began = {server: server.begin(start) for server in servers if server.next_start() <= start}
            duration = step_time.together([began.get(server) for server in servers])
            if step_time.jitter:
                duration *= step_time.jitter[steps % len(step_time.jitter)]
            duration += max(server.moved * server.block_swap_s for server in began)
            end = start + duration
            steps += 1
            ended = [(server, r) for server in began for r in server.end(duration, bool(coming))]
        else:
            ended = [(server, r) for r in server.tick(start, bool(coming))]
        for server, r in ended:
            in_flight[r.replica] -= 1
            release(r, server.now)
    ticks = sorted((row for server in servers for row in server.ticks), key=lambda row: (row.start, row.replica))
    gaps = sorted(b - a for r in everyone for a, b in zip(r.token_times, r.token_times[1:], strict=False))
    stopped = next((server.stopped for server in servers if server.stopped), "")
    _chain.clear()
    return SimpleNamespace(ticks=ticks, requests=everyone, refused=refused, gaps=gaps, stopped=stopped)
