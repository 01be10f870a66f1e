"""How evenly a router spreads tokens over experts, and what that costs: functions a page can plot.

The popularity of experts follows Zipf's law with exponent `skew` (0: even). A token picks `experts_per_token` different
experts. Placement over ranks is contiguous in a fixed shuffled order, as checkpoints know nothing of popularity.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from sim.catalog import Model

Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
Places = np.ndarray[tuple[int, ...], np.dtype[np.int64]]
PLACEMENT_SEED = 12345  # any fixed shuffle will do; pages and runs must agree on one


@lru_cache(maxsize=256)
def _pick_probability(experts: int, per_token: int, skew: float) -> Array:
    shares = np.arange(1, experts + 1, dtype=float) ** -skew
    shares /= shares.sum()
    chance = np.zeros(experts)
    open_ = np.ones(experts, bool)
    # an expert is picked at most once a token: what exceeds 1 goes to the others in proportion
    while True:
        left = per_token - (~open_).sum()
        chance[open_] = left * shares[open_] / shares[open_].sum()
        over = open_ & (chance > 1)
        if not over.any():
            break
        chance[over] = 1.0
        open_ &= ~over
    chance.setflags(write=False)
    return chance


def expert_load(model: Model, skew: float) -> Array:
    """[experts] chance that a token goes to each expert, most popular first; the sum is experts_per_token."""
    return _pick_probability(model.experts, model.experts_per_token, skew)


def hot_expert_ratio(model: Model, skew: float) -> float:
    """Load of the most popular expert over the mean load."""
    load = expert_load(model, skew)
    return float(load.max() / load.mean())


def distinct_experts(model: Model, skew: float, tokens: float) -> float:
    """Expected count of experts of one layer that a batch of `tokens` touches: sum of 1 - (1 - p)^tokens."""
    return float(touched(expert_load(model, skew), tokens).sum())


def touched(chance: Array, tokens: float) -> Array:
    """Probability that each expert is picked at least once by a batch of `tokens`."""
    result: Array = -np.expm1(tokens * np.log1p(-np.minimum(chance, 1 - 1e-12)))
    return result


def placed(model: Model, skew: float, ranks: int, redundant: int = 0) -> tuple[Array, ...]:
    """For each rank, the chances of the expert copies it holds (a copy of r carries 1/r of its expert).

    With `redundant` copies the hottest experts are doubled first and copies are dealt to the least loaded rank, as EPLB
    does; without, ranks hold equal runs of a shuffled order.
    """
    return _placed(model.experts, model.experts_per_token, skew, ranks, redundant)[1]


def holders(model: Model, skew: float, ranks: int, redundant: int = 0) -> tuple[Places, ...]:
    """For each rank, whose copies it holds: places in the order of popularity (0: the hottest), as `placed` orders them."""
    return _placed(model.experts, model.experts_per_token, skew, ranks, redundant)[0]


@lru_cache(maxsize=512)
def _placed(
    experts: int, per_token: int, skew: float, ranks: int, redundant: int
) -> tuple[tuple[Places, ...], tuple[Array, ...]]:
    chance = _pick_probability(experts, per_token, skew)
    if ranks == 1 or not redundant:
        order = np.arange(experts)
        if ranks > 1:
            order = np.random.default_rng(PLACEMENT_SEED).permutation(experts)
        whole = tuple(np.array_split(order, ranks))
        return whole, tuple(chance[part] for part in whole)
    copies = np.ones(experts, int)
    for _ in range(redundant):
        copies[np.argmax(chance / copies)] += 1
    owner = np.repeat(np.arange(experts), copies)
    share = (chance / copies)[owner]
    seats = -(-(experts + redundant) // ranks)
    held: list[list[int]] = [[] for _ in range(ranks)]
    load = np.zeros(ranks)
    for i in np.argsort(-share, kind="stable"):
        rank = min((r for r in range(ranks) if len(held[r]) < seats), key=lambda r: load[r])
        held[rank].append(i)
        load[rank] += share[i]
    return tuple(owner[part] for part in held), tuple(share[part] for part in held)


def rank_load(model: Model, skew: float, ranks: int, redundant: int = 0) -> Array:
    """[ranks] expected expert visits a token makes on each rank; the sum is experts_per_token, the largest sets the step."""
    return np.array([part.sum() for part in placed(model, skew, ranks, redundant)])


def rank_imbalance(model: Model, skew: float, ranks: int, redundant: int = 0) -> float:
    """Largest rank load over the mean: how much longer than a balanced one the expert part of a step takes."""
    load = rank_load(model, skew, ranks, redundant)
    return float(load.max() / load.mean())


def rank_distinct(model: Model, skew: float, tokens: float, ranks: int, redundant: int = 0) -> Array:
    """[ranks] expected count of expert copies of one layer that a batch of `tokens` touches on each rank."""
    return np.array([touched(part, tokens).sum() for part in placed(model, skew, ranks, redundant)])
