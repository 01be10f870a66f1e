"""Data-parallel replicas behind a router, and the arrivals that completions release.

With one replica the router only hands arrivals over. With several, requests are routed in order of arrival, and each
sees the replicas as they are after the latest step they have begun. Replicas that share the experts of a model begin
their steps together and end them together: the slowest sets the pace, and who has nothing to do waits with the rest.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Generator
from contextlib import suppress
from heapq import heapify, heappop, heappush
from math import nextafter
from typing import TYPE_CHECKING, Any

import numpy as np

from sim.requests import Requests
from sim.scenario import Scenario, SimError

if TYPE_CHECKING:
    from sim.engine import Book, Replica

INF = float("inf")


def _sent(life: Generator[float, float, None], value: float) -> float:
    """A replica's answer: when it would begin its next step, inf where it never will."""
    try:
        return life.send(value)
    except StopIteration:
        return INF


class Router:
    """Brings each request to a replica when its time has come."""

    def __init__(
        self, s: Scenario, requests: Requests, book: Book, replicas: list[Replica], refusals: dict[int, SimError],
        step_time: Any,
    ) -> None:
        self.s, self.book, self.replicas, self.refusals, self.step_time = s, book, replicas, refusals, step_time
        self.followers: dict[int, list[int]] = {}
        after = requests.after
        for r in (after >= 0).nonzero()[0].tolist():
            self.followers.setdefault(int(after[r]), []).append(r)
        self.think: list[float] = requests.think.tolist()
        self.coming: list[tuple[float, int]] = []  # heap of arrivals not routed yet
        self.turn = 0
        self.in_flight = [0] * len(replicas)
        arrival = book.arrival
        known = np.flatnonzero(np.isfinite(requests.arrival)).tolist()
        if not refusals:
            self.coming = [(arrival[r], r) for r in known]  # sorted, which is a heap
            return
        for r in known:
            if r in refusals:
                self._release(r, arrival[r])
            else:
                self.coming.append((arrival[r], r))
        heapify(self.coming)

    def run(self) -> None:
        """Run all replicas until nobody has anything to do."""
        if len(self.replicas) == 1:
            self._alone(self.replicas[0])
        elif self.replicas[0].together:
            self._in_step()
        else:
            self._several()

    def _alone(self, replica: Replica) -> None:
        coming = sorted(self.coming)
        replica.arrivals[:] = [when for when, _ in coming] + [INF]
        replica.arrived[:] = [r for _, r in coming]
        self.coming = []
        if self.followers:
            replica.on_finish = self._insert
        life = replica.ticks()
        next(life)
        with suppress(StopIteration):
            life.send(INF)

    def _insert(self, r: int, now: float) -> float:
        """A completion: what it releases goes straight into the only replica's arrivals."""
        if r in self.followers:
            self._release(r, now)
            replica = self.replicas[0]
            while self.coming:
                self._hand(*heappop(self.coming), replica)
        return INF

    def _hand(self, when: float, r: int, replica: Replica) -> None:
        at = bisect_right(replica.arrivals, when, replica.pointer)
        while at > replica.pointer and replica.arrivals[at - 1] == when and replica.arrived[at - 1] > r:
            at -= 1
        replica.arrivals.insert(at, when)
        replica.arrived.insert(at, r)
        self.book.replica[r] = replica.number

    def _release(self, r: int, now: float) -> None:
        """r is done (or refused) at `now`: those that wait for it come after their pause, unless the time is over."""
        for follower in self.followers.get(r, ()):
            when = now + self.think[follower]
            if when > self.s.duration_s:
                continue
            self.book.arrival[follower] = when
            if follower in self.refusals:
                self._release(follower, when)
            else:
                heappush(self.coming, (when, follower))

    def _ended(self, r: int, now: float) -> float:
        self.in_flight[self.book.replica[r]] -= 1
        if r not in self.followers:
            return INF
        self._release(r, now)
        return self.coming[0][0] if self.coming else INF

    def _begin(self) -> list[Generator[float, float, None]]:
        lives = []
        for replica in self.replicas:
            replica.on_finish = self._ended
            lives.append(replica.ticks())
            next(lives[-1])
        return lives

    def _route(self, clocks: list[float]) -> None:
        """The next request goes to its replica, whose next step (`clocks`) may now be earlier."""
        when, r = heappop(self.coming)
        number = self._choose()
        self.in_flight[number] += 1
        replica = self.replicas[number]
        self._hand(when, r, replica)
        if not replica.stopped:  # it may have been idle, or still at its latest step
            clocks[number] = min(clocks[number], max(when, replica.clock))

    def _several(self) -> None:
        by_turns = bool(self.followers)  # what one of them ends may come to another
        lives = self._begin()
        clocks = [INF] * len(lives)
        while True:
            first = min(range(len(lives)), key=clocks.__getitem__)
            if self.coming and self.coming[0][0] <= clocks[first]:
                self._route(clocks)
                continue
            if clocks[first] == INF:
                return
            horizon = self.coming[0][0] if self.coming else INF
            if by_turns:
                others = min((clock for i, clock in enumerate(clocks) if i != first), default=INF)
                horizon = min(horizon, others)
                if horizon <= clocks[first]:
                    horizon = nextafter(clocks[first], INF)  # just the ticks that start now
            clocks[first] = _sent(lives[first], horizon)

    def _in_step(self) -> None:
        lives, jitter = self._begin(), self.step_time.jitter
        clocks = [INF] * len(lives)
        at, steps = 0.0, 0  # the end of the latest step
        while True:
            start = max(at, min(clocks))
            if self.coming and self.coming[0][0] <= start:
                self._route(clocks)
                continue
            if start == INF:
                return
            began = [i for i, clock in enumerate(clocks) if clock <= start]
            for i in began:
                self.replicas[i].at = start
                clocks[i] = _sent(lives[i], nextafter(start, INF))
            began = [i for i in began if self.replicas[i].batch]
            if not began:  # a static batch is not together yet
                continue
            duration = self.step_time.together([replica.batch for replica in self.replicas])
            if jitter:
                duration *= jitter[steps % len(jitter)]
            duration += max(self.replicas[i].moving for i in began)
            steps += 1
            at = start + duration
            for i in began:
                self.replicas[i].batch = None
                clocks[i] = _sent(lives[i], duration)

    def _choose(self) -> int:
        """Which replica the next request goes to; ties go round."""
        count = len(self.replicas)
        if self.s.router == "round_robin":
            chosen = self.turn % count
        else:
            score = self._vllm_score if self.s.router == "vllm" else self._load
            chosen = min(range(count), key=lambda i: (score(i), (i - self.turn) % count))
        self.turn = chosen + 1
        return chosen

    def _load(self, i: int) -> float:
        return float(self.in_flight[i])

    def _vllm_score(self, i: int) -> float:
        """vLLM's internal load balancer: max(in flight, waiting + running) + waiting * 6 * max(0, kv_usage - 0.5)."""
        waiting, running, usage = self.replicas[i].load()
        return max(float(self.in_flight[i]), float(waiting + running)) + waiting * 6.0 * max(0.0, usage - 0.5)

