"""The fast engine is the naive scheduler, bit for bit, in every mode."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sim.engine import simulate
from sim.requests import Requests
from sim.results import FINISHED, NEVER_ISSUED, REFUSED, UNFINISHED, Ticks
from sim.scenario import Scenario
from tests import reference_scheduler


class Clock:
    """A step time with every dependence the contract allows: pieces of lines, jitter, swapping."""

    block_bytes = 2**21

    def __init__(self, jitter=(), in_step=False):
        self.jitter, self.in_step = jitter, in_step

    def together(self, batches):
        return max(self.seconds(*batch) for batch in batches if batch) + 1e-4 * sum(batch is None for batch in batches)

    def decode(self, num_seqs, context):
        if context <= 40 * num_seqs:
            return 0.003 + 1e-5 * num_seqs, 0.0, 40 * num_seqs
        return 0.001 + 1e-5 * num_seqs, 7e-6, float("inf")

    def seconds(self, d_seqs, d_context, p_seqs, p_tokens, p_pairs, p_context, sampled):
        fixed, slope, _ = self.decode(d_seqs, d_context)
        step = fixed + slope * d_context
        if p_tokens:
            step += 1e-5 * p_tokens + 3e-8 * p_pairs + 1e-6 * p_context + 2e-5 * p_seqs + 1e-6 * sampled
        return step


@st.composite
def runs(draw):
    """A small server under more traffic than it likes, in any mode."""
    size = draw(st.sampled_from([1, 2, 4, 8, 16]))
    seats = draw(st.integers(1, 10))
    max_len = draw(st.sampled_from([40, 100, 200]))
    batching = draw(st.sampled_from(["continuous"] * 4 + ["prefill_first", "static"]))
    chunked = draw(st.booleans()) or draw(st.booleans())
    budget = draw(st.integers(max(seats, 1 if chunked else max_len), 300 if not chunked else max(seats, 120)))
    threshold = draw(st.sampled_from([0, 0, 0, 1, 5, 16, 30]))
    replicas = draw(st.sampled_from([1, 1, 1, 2, 3]))
    s = Scenario(
        duration_s=1.0, block_size=size, max_num_seqs=seats, max_model_len=max_len, batching=batching,
        max_num_active_seqs=draw(st.sampled_from([0, 0, 3])), max_num_batched_tokens=budget,
        enable_chunked_prefill=chunked, long_prefill_token_threshold=threshold,
        long_prefill_token_threshold_adaptive=draw(st.booleans()), enable_prefix_caching=draw(st.booleans()),
        scheduling_policy=draw(st.sampled_from(["fcfs", "fcfs", "priority"])),
        scheduler_reserve_full_isl=draw(st.booleans()), watermark=draw(st.sampled_from([0.0, 0.0, 0.1])),
        static_timeout_s=draw(st.sampled_from([0.0, 0.02, 0.3])),
        preemption_mode=draw(st.sampled_from(["recompute", "recompute", "swap"])),
        swap_space_gib=draw(st.sampled_from([0.0, 0.02, 1.0])),
        victim=draw(st.sampled_from(["last_admitted"] * 3 + ["fewest_remaining", "longest"])),
        data_parallel_size=replicas, router=draw(st.sampled_from(["round_robin", "least_loaded", "vllm"])),
    )
    count = draw(st.integers(1, 40))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    closed = draw(st.sampled_from([0, 0, 0, 3]))
    spread = draw(st.sampled_from([0.0, 0.05, 0.3, 3.0]))
    arrival = np.sort(np.round(random.random(count) * spread, draw(st.sampled_from([2, 6]))))
    after = np.full(count, -1, np.int64)
    if closed:
        arrival[closed:] = np.inf
        after[closed:] = np.arange(count - closed) if count > closed else after[closed:]
    long = draw(st.sampled_from([10, 30, 60, max_len + 3]))
    output = random.integers(1, draw(st.sampled_from([2, 20, 60])) + 1, count)
    prefix = None
    if draw(st.booleans()):
        prefix = _prefixes(random, count, long, output, chats=draw(st.booleans()))
        prompt = np.array([sum(length for _, length in p) for p in prefix])
    else:
        prompt = random.integers(1, long + 1, count)
    requests = Requests.of(
        arrival, prompt, output, priority=random.integers(0, 3, count), after=after,
        think=np.round(random.random(count) * draw(st.sampled_from([0.0, 0.05])), 3), prefix=prefix,
    )
    blocks = draw(st.integers(2, 12)) + int(draw(st.sampled_from([0.5, 1.0, 2.0, 6.0])) * max_len / size)
    jitter = draw(st.sampled_from([(), (1.0, 1.25, 0.75, 1.1)]))
    refuse = replicas > 1 or draw(st.sampled_from([True, True, True, False]))
    return s, requests, blocks, Clock(jitter, in_step=replicas > 1 and draw(st.booleans())), refuse


def _prefixes(random, count, long, output, chats):
    """Prompts that share beginnings; in chats each quotes an earlier one and its answer, which may not be there yet."""
    prefixes = []
    for i in range(count):
        if chats and i and random.random() < 0.6:
            j = int(random.integers(max(i - 4, 0), i))
            prefixes.append((*prefixes[j], (("o", j), int(random.integers(1, output[j] + 1))), (("p", i), int(random.integers(1, 12)))))
        else:
            prefixes.append(_prefix(random, i, long))
    return tuple(prefixes)


def _prefix(random, i, long):
    parts = []
    if random.random() < 0.7:
        parts.append((f"s{random.integers(0, 2)}", int(random.integers(1, long + 1))))
    while i and random.random() < 0.5:
        parts.append((("o", int(random.integers(0, i))), int(random.integers(1, 25))))
        if random.random() < 0.3:
            parts.append((f"t{random.integers(0, 3)}", int(random.integers(1, 10))))
    if not parts or random.random() < 0.7:
        parts.append((("p", i), int(random.integers(1, 20))))
    return tuple(parts)


def check(s, requests, blocks, clock, refuse, observer=None):
    theirs = reference_scheduler.simulate(s, requests, step_time=clock, num_gpu_blocks=blocks, refuse=refuse)
    ours = simulate(s, requests, step_time=clock, num_gpu_blocks=blocks, refuse=refuse, observer=observer)
    assert ours.stopped == theirs.stopped
    for field in sorted(fields(Ticks), key=lambda field: field.name in ("start", "duration")):
        mine = getattr(ours.ticks, field.name).tolist()
        other = [getattr(row, field.name) for row in theirs.ticks]
        if mine != other:
            where = next((i for i, (a, b) in enumerate(zip(mine, other, strict=False)) if a != b), "length")
            raise AssertionError(f"{field.name} differs at {where} of {len(mine)}, {len(other)}: {mine[:60]} {other[:60]}")

    def times(name):
        return [np.nan if getattr(r, name) is None else getattr(r, name) for r in theirs.requests]

    np.testing.assert_array_equal(ours.first_scheduled, times("first_scheduled"))
    np.testing.assert_array_equal(ours.first_token, times("first_token"))
    np.testing.assert_array_equal(ours.finish, times("finish"))
    np.testing.assert_array_equal(ours.arrival, [r.arrival for r in theirs.requests])
    for ours_name, name in (
        ("preemptions", "preemptions"), ("cached", "cached"), ("recomputed", "lost"), ("generated", "generated"),
        ("replica", "replica"),
    ):
        assert getattr(ours, ours_name).tolist() == [getattr(r, name) for r in theirs.requests], name
    status = [
        NEVER_ISSUED if r.arrival == np.inf else REFUSED if r.index in theirs.refused
        else UNFINISHED if r.finish is None else FINISHED for r in theirs.requests
    ]
    assert ours.status.tolist() == status
    values, weights = ours.itl()
    assert sorted(np.repeat(values, weights).tolist()) == theirs.gaps
    return ours


@settings(max_examples=400, suppress_health_check=list(HealthCheck))
@given(runs())
def test_engine_equals_the_naive_scheduler_bit_for_bit(run):
    check(*run)


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(runs())
def test_watching_a_run_changes_nothing(run):
    steps = []
    ours = check(*run, observer=steps.append)
    assert len(steps) == len(ours.ticks)


def test_a_prompt_may_quote_an_answer_that_is_still_being_generated():
    """Two copies of a block get their key in the same step; the one of the request that runs first is the one found."""
    head = (("s", 5), (("o", 0), 7))
    prefix = (
        (("s", 5),), (*head, (("p", 1), 2)), (*head, (("p", 2), 4)),
        (*head, (("p", 1), 2), (("o", 1), 2), (("p", 3), 1)), (*head, (("p", 1), 2), (("o", 1), 3), (("p", 4), 1)),
    )
    prompt = np.array([sum(length for _, length in parts) for parts in prefix])
    requests = Requests.of(np.array([0.03, 0.04, 0.04, 0.04, 0.04]), prompt, np.array([9, 13, 7, 6, 5]), prefix=prefix)
    s = Scenario(
        duration_s=1.0, block_size=4, max_num_seqs=4, max_model_len=100, max_num_batched_tokens=6,
        enable_prefix_caching=True, scheduler_reserve_full_isl=False,
    )
    check(s, requests, 11, Clock(), True)


def test_a_run_can_be_cut_short_and_says_so():
    scenario = Scenario(duration_s=10.0)
    whole, part = simulate(scenario), simulate(scenario, most_ticks=200)
    assert part.stopped == "too_long" and 200 < len(part.ticks) < 1000 < len(whole.ticks)
    assert not part.summary().drained and part.ticks.start.tolist() == whole.ticks.start[: len(part.ticks)].tolist()
