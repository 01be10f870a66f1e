"""Requests: what the traffic generators and the trace readers make, and the engine runs."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sim.scenario import SimError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Prefix = tuple[tuple[Hashable, int], ...]
"""The whole prompt as segments (id, length): token j of a segment is the same token wherever that segment is quoted,
and a segment always starts at its token 0. What request i generates is the segment ("o", i)."""


@dataclass(frozen=True, slots=True, eq=False)
class Requests:
    """The requests of one run in order of arrival; n of them. The arrays are read-only.

    arrival   (n,) s; inf: released by a completion, see `after`
    prompt    (n,) tokens, the whole prompt
    output    (n,) tokens the model will generate
    priority  (n,) smaller goes first
    after     (n,) index of the request whose completion releases this one, always a smaller one; -1: none
    think     (n,) s between that completion and this request
    prefix    a Prefix a request, None if no prompt shares anything
    ids       names, where they come from outside

    A prompt may exceed what the model takes: refusing it is the engine's business, as it is vLLM's.
    Raises SimError("bad_requests") on arrays that do not describe traffic.
    """

    arrival: Floats
    prompt: Ints
    output: Ints
    priority: Ints
    after: Ints
    think: Floats
    prefix: tuple[Prefix, ...] | None = None
    ids: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        n = len(self.arrival)
        columns = (self.arrival, self.prompt, self.output, self.priority, self.after, self.think)
        _require(all(column.shape == (n,) for column in columns), "the columns differ in length")
        _require(self.prefix is None or len(self.prefix) == n, "prefix differs in length")
        _require(self.ids is None or len(self.ids) == n, "ids differ in length")
        for column in columns:
            column.setflags(write=False)
        if not n:
            return
        released = self.after >= 0
        _require(not np.isnan(self.arrival).any() and self.arrival.min() >= 0.0, "arrivals must be times from 0 on")
        _require(bool((np.isinf(self.arrival) == released).all()), "either arrival or after says when a request comes")
        _require(bool((self.after < np.arange(n)).all()), "after must name an earlier request")
        _require(bool((self.arrival[1:] >= self.arrival[:-1]).all()), "requests must stand in order of arrival")
        _require(bool(np.isfinite(self.think).all()) and self.think.min() >= 0.0, "think times must be 0 or longer")
        _require(int(self.prompt.min()) >= 1, "a prompt has at least one token")
        _require(int(self.output.min()) >= 1, "an answer has at least one token")

    def __len__(self) -> int:
        return len(self.arrival)

    @classmethod
    def of(
        cls, arrival: Floats, prompt: Ints, output: Ints, *, priority: Ints | None = None, after: Ints | None = None,
        think: Floats | None = None, prefix: tuple[Prefix, ...] | None = None, ids: tuple[str, ...] | None = None,
    ) -> Requests:
        """Requests from the columns that matter; the others get their neutral value."""
        n = len(arrival)
        return cls(
            arrival, prompt, output,
            np.zeros(n, np.int64) if priority is None else priority,
            np.full(n, -1, np.int64) if after is None else after,
            np.zeros(n) if think is None else think,
            prefix, ids,
        )


def _require(right: bool, what: str) -> None:
    if not right:
        raise SimError("bad_requests", f"not a list of requests: {what}", what=what)
