"""Traffic: a Scenario's arrivals and lengths, drawn once before the loop, so that A and B see the same requests.

Every kind of draw has a random stream of its own (common random numbers): a change of the rate moves the same requests
closer together, a change of the mean stretches the same prompts, and nothing else moves. Times are rounded to 1 us and
lengths to tokens, so that a last bit of some machine's `log` does not make another run of the same link.
"""

from __future__ import annotations

import tomllib
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from sim import traces
from sim.requests import Floats, Ints, Prefix, Requests
from sim.scenario import SETTINGS, Scenario, SimError

__all__ = ["MAX_REQUESTS", "TRAFFIC", "Requests", "draw"]

MAX_REQUESTS = 200_000
"""A run holds at most this many requests."""

_NAMES = list(SETTINGS)
TRAFFIC = tuple(_NAMES[: _NAMES.index("seed") + 1])
"""The fields `draw` looks at: two scenarios that agree in these have the same requests."""

_MAX_TOKENS = 1_000_000
_FASTEST_STEP_S = 0.0005  # no server answers faster than this a token: bounds how many requests a client can ask for
_GRID = 2.0**32  # unit gaps are rounded to this grid, which makes their sums exact in any order


def draw(scenario: Scenario) -> Requests:
    """The requests of a scenario, in order of arrival; those released by a completion (arrival inf) come last.

    Prompts are not cut to max_model_len: the engine refuses those that do not fit, as vLLM does. With chat_turns > 1
    `request_rate` still counts requests, so that conversations begin at request_rate / chat_turns.
    Raises SimError: too_many_requests, trace_needs_upload, unknown_trace, empty_window.
    """
    return _draw(tuple(getattr(scenario, name) for name in TRAFFIC))


@lru_cache(maxsize=4)
def _draw(key: tuple[Any, ...]) -> Requests:
    scenario = Scenario(**dict(zip(TRAFFIC, key, strict=True)))
    if scenario.arrival == "trace":
        return _replay(scenario)
    if scenario.arrival == "closed":
        return _closed(scenario)
    return _open(scenario)


# --- when they come


def _open(s: Scenario) -> Requests:
    begins = _arrivals(s)
    if s.chat_turns == 1:
        return _requests(s, begins, np.full(len(begins), -1, np.int64), 1, len(begins))
    # Conversation c begins with request c; turn k of it is request k*n + c, released by turn k-1.
    n = len(begins)
    total = min(n * s.chat_turns, s.num_requests or MAX_REQUESTS)
    arrival = np.full(total, np.inf)
    arrival[:n] = begins[:total]
    return _requests(s, arrival, np.arange(total) - n, s.chat_turns, n)


def _closed(s: Scenario) -> Requests:
    """Clients in a ring: request r*n + c is the r-th of client c, released by the one before it."""
    clients = min(s.num_clients, s.num_requests or s.num_clients)
    if s.num_requests:
        total = s.num_requests
    else:
        sample = _outputs(s, 1000)
        rounds = s.duration_s / (float(sample.mean()) * _FASTEST_STEP_S + s.think_time_s)
        total = int(min(clients * (np.ceil(rounds) + 2), MAX_REQUESTS))
    arrival = np.full(total, np.inf)
    # They do not all begin at once: each has just read something, unless nobody ever does.
    begins = np.minimum(_think(s, clients, "begin"), s.duration_s)
    arrival[:clients] = np.sort(begins)
    return _requests(s, arrival, np.arange(total) - clients, s.chat_turns, clients)


def _arrivals(s: Scenario) -> Floats:
    """Times of an open loop in s, rounded to us, below duration_s.

    Unit-rate arrivals pushed through the inverse of the cumulated rate, which is how a rate that changes over time is
    drawn exactly (Cinlar 1975, "Introduction to stochastic processes", 4.7).
    """
    rate = s.request_rate / s.chat_turns
    expected = rate * mean_factor(s) * s.duration_s  # how many units of the unit-rate clock the duration holds
    limit = -(-s.num_requests // s.chat_turns) or MAX_REQUESTS // s.chat_turns
    clock = _unit_arrivals(s, expected, limit + 1)
    if len(clock) > limit and not s.num_requests:
        raise SimError(
            "too_many_requests",
            f"{s.request_rate:g} req/s for {s.duration_s:g} s is about {expected * s.chat_turns:,.0f} requests, more "
            f"than {MAX_REQUESTS:,}: lower request_rate or duration_s, or set num_requests",
            field="duration_s", value=expected * s.chat_turns, high=MAX_REQUESTS,
        )
    clock = clock[:limit]
    duration = s.duration_s
    if s.arrival == "spike":
        corners = np.array([0.0, 0.4, 0.6, 1.0]) * duration
        passed = rate * duration * np.array([0.0, 0.4, 0.4 + 0.2 * s.spike_factor, 0.8 + 0.2 * s.spike_factor])
        times = np.interp(clock, passed, corners)
    elif s.arrival == "ramp" and s.spike_factor > 1.0:
        slope = rate * (s.spike_factor - 1.0) / duration
        times = 2.0 * clock / (rate + np.sqrt(rate * rate + 2.0 * slope * clock))
    else:
        times = clock / rate
    return np.minimum(np.rint(times * 1e6) / 1e6, duration)


def mean_factor(s: Scenario) -> float:
    """The mean rate of an open loop as a multiple of `request_rate`, which is that of its quiet part."""
    return {"spike": (4.0 + s.spike_factor) / 5.0, "ramp": (1.0 + s.spike_factor) / 2.0}.get(s.arrival, 1.0)


def _unit_arrivals(s: Scenario, expected: float, limit: int) -> Floats:
    """Arrivals at rate 1 before `expected`, at most `limit`."""
    if s.arrival == "constant":
        return np.arange(min(np.ceil(expected), limit), dtype=np.float64)
    random = _stream(s.seed, "arrival")
    spread = s.burst_cv if s.arrival == "bursty" else 1.0
    size = int(min(expected + 6.0 * max(spread, 1.0) * np.sqrt(expected) + 16, limit))
    parts, passed, count = [], 0.0, 0
    while passed < expected and count < limit:
        if s.arrival == "bursty":
            gaps = random.standard_gamma(1.0 / spread**2, size) * spread**2
        else:
            gaps = -np.log1p(-random.random(size))
        part = np.cumsum(np.rint(gaps * _GRID) / _GRID) + passed
        parts.append(part)
        passed, count = float(part[-1]), count + size
    clock = np.concatenate(parts) if len(parts) > 1 else parts[0]
    return clock[: np.searchsorted(clock, expected)][:limit]


# --- what they are


def _requests(s: Scenario, arrival: Floats, after: Ints, turns: int, stride: int) -> Requests:
    """`stride` chains side by side: request i continues i - stride, and is turn (i // stride) % turns of a chat."""
    n = len(arrival)
    after = np.maximum(after, -1)
    own = _prompts(s, n)
    output = _outputs(s, n)
    think = _think(s, n, "think")
    think[:stride] = 0.0
    prompt, prefix = own, None
    if s.system_prompt_tokens or turns > 1:
        prompt, prefix = _shared(s, own, output, turns, stride)
    return Requests(arrival, prompt, output, _priorities(s, n), after, think, prefix)


def _shared(s: Scenario, own: Ints, output: Ints, turns: int, stride: int) -> tuple[Ints, tuple[Prefix, ...]]:
    """Prompts with what they share in front: a system prompt, and the turns before with their answers."""
    system: list[Prefix] = [()]
    if s.system_prompt_tokens:
        system = [((("s", k), s.system_prompt_tokens),) for k in range(s.num_system_prompts)]
    which = (_stream(s.seed, "system").random(stride) * len(system)).astype(np.int64).tolist()
    owned, answers = own.tolist(), output.tolist()
    prefix: list[Prefix] = []
    lengths = own.copy()
    for i, length in enumerate(owned):
        if (i // stride) % turns:
            before = i - stride
            head = (*prefix[before], (("o", before), answers[before]))
            lengths[i] += lengths[before] + answers[before]
        else:
            head = system[which[i % stride]]
            lengths[i] += s.system_prompt_tokens
        prefix.append((*head, (("u", i), length)))
    return lengths, tuple(prefix)


def _prompts(s: Scenario, n: int) -> Ints:
    if s.lengths == "fixed":
        return np.full(n, s.prompt_tokens, np.int64)
    if s.lengths in ("lognormal", "mixture"):
        short = _lognormal(s.prompt_tokens, s.prompt_cv, _stream(s.seed, "prompt"), n)
        if s.lengths == "lognormal":
            return short
        return np.where(_stream(s.seed, "long").random(n) < s.long_share, s.long_prompt_tokens, short)
    return _empirical(s.lengths, "prompt", _stream(s.seed, "prompt"), n)


def _outputs(s: Scenario, n: int) -> Ints:
    if s.lengths == "fixed":
        return np.full(n, s.output_tokens, np.int64)
    if s.lengths in ("lognormal", "mixture"):
        return _lognormal(s.output_tokens, s.output_cv, _stream(s.seed, "output"), n)
    return _empirical(s.lengths, "output", _stream(s.seed, "output"), n)


def _lognormal(mean: float, cv: float, random: np.random.Generator, n: int) -> Ints:
    variance = np.log1p(cv * cv)
    return _tokens(np.exp(random.standard_normal(n) * np.sqrt(variance) + (np.log(mean) - variance / 2.0)))


def _empirical(name: str, what: str, random: np.random.Generator, n: int) -> Ints:
    shape = shapes()[name]
    return _tokens(np.interp(random.random(n), shape["quantiles"], shape[what]))


@cache
def shapes() -> dict[str, Any]:
    """The measured shapes of sim/workloads.toml: name -> about, source, licence, quantiles, prompt, output (tokens)."""
    with (Path(__file__).parent / "workloads.toml").open("rb") as file:
        return tomllib.load(file)


def _tokens(lengths: Floats) -> Ints:
    return np.clip(np.rint(lengths), 1, _MAX_TOKENS).astype(np.int64)


def _think(s: Scenario, n: int, stream: str) -> Floats:
    """Pauses, exponential around think_time_s: people do not read in lockstep."""
    return np.rint(_stream(s.seed, stream).standard_exponential(n) * (s.think_time_s * 1e6)) / 1e6


def _priorities(s: Scenario, n: int) -> Ints:
    return (_stream(s.seed, "priority").random(n) >= s.urgent_share).astype(np.int64)


_STREAMS = ("arrival", "prompt", "output", "long", "system", "priority", "think", "begin")


def _stream(seed: int, name: str) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(_STREAMS.index(name),))))


# --- recorded traffic


def _replay(s: Scenario) -> Requests:
    if s.trace == "upload":
        raise SimError("trace_needs_upload", "this scenario replays an uploaded trace: give its requests too",
                       field="trace")
    recorded, _ = traces.replay(
        s.trace, start_s=s.trace_start_s, duration_s=s.duration_s, rate_scale=s.rate_scale,
        limit=s.num_requests or MAX_REQUESTS,
    )
    priority = _priorities(s, len(recorded))
    return Requests.of(recorded.arrival, recorded.prompt, recorded.output, priority=priority, prefix=recorded.prefix)
