"""What best-of-n gives at every n up to N, estimated from one pool of N candidates without bias.

Stiennon et al. (2020) and Nakano et al. (2021): the mean over all subsets of n of the pool, in closed form. Candidates
with equal rewards share the mass of their ranks, so that the order in which they were drawn says nothing. Candidates
without a reward are left out; where fewer than n remain there is no estimate.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rm_plugins.errors import OptionError

Array: TypeAlias = NDArray[np.float64]


def rank_weights(count: int, n: int, place: int = 1) -> Array:
    """Probability of each rank, lowest reward first, to be the `place`-th best of a random subset.

    Args:
        count: candidates in the pool.
        n: of the subset, at most `count`.
        place: 1 for the best.

    Returns:
        (count,), summing to 1.
    """
    _check(n, count)
    if not 1 <= place <= n:
        raise OptionError(f"place={place} must be between 1 and n={n}.")
    top = count - place + 1  # nothing above it can be the place-th best
    taken = np.arange(place)
    first = np.prod((n - taken) / (count - taken))
    rank = np.arange(top, n - place + 1, -1)  # each is got from the one above: no large binomials
    steps = (rank - 1 - n + place) / (rank - 1) * (count - rank + 1) / (count - rank + 2 - place)
    weights = np.zeros(count)
    weights[n - place : top] = (first * np.cumprod([1.0, *steps]))[::-1]
    return weights


def best_of_n(rewards: ArrayLike, values: ArrayLike, n: int) -> float:
    """Expected value of the candidate that a reward picks out of n.

    Args:
        rewards: (N,) of the candidates, NaN where there is none.
        values: (N,) of the same: the rewards themselves, a gold score, correctness, a length.
        n: candidates that are drawn.

    Returns:
        NaN if fewer than n candidates have a reward and a value.
    """
    reward, value = (np.asarray(column, dtype=np.float64) for column in (rewards, values))
    known = ~np.isnan(reward) & ~np.isnan(value)
    reward, value = reward[known], value[known]
    if n < 1:
        raise OptionError(f"n={n} must be at least 1.")
    if n > len(reward):
        return float("nan")
    order = np.argsort(reward, kind="stable")
    weights = rank_weights(len(reward), n)
    total = 0.0
    for block in _ties(reward[order]):
        total += float(weights[block].sum() * value[order][block].mean())
    return total


def curve(rewards: ArrayLike, values: ArrayLike, sizes: Sequence[int]) -> list[float]:
    """`best_of_n` for several n."""
    return [best_of_n(rewards, values, n) for n in sizes]


def mean_curve(pools: Sequence[tuple[ArrayLike, ArrayLike]], sizes: Sequence[int]) -> Array:
    """Mean over prompts of their curves, (sizes,); a prompt without an estimate at some n does not count there."""
    rows = np.array([curve(rewards, values, sizes) for rewards, values in pools]).reshape(len(pools), len(sizes))
    known = ~np.isnan(rows)
    counts = known.sum(0)
    return np.where(counts > 0, np.where(known, rows, 0).sum(0) / np.maximum(counts, 1), np.nan)


def bootstrap(rows: ArrayLike, *, repeats: int = 2000, seed: int = 0, level: float = 0.95) -> tuple[Array, Array]:
    """Percentile interval of the mean over prompts, which are what is drawn again; candidates are not independent.

    Args:
        rows: (prompts, k), one row a prompt; NaN does not count.
        repeats: draws of the prompts.
        seed: of the draws.
        level: of the interval.

    Returns:
        Low and high, (k,) each.
    """
    table = np.asarray(rows, dtype=np.float64)
    if not len(table):
        raise OptionError("An interval needs at least one prompt.")
    draws = np.random.default_rng(seed).integers(len(table), size=(repeats, len(table)))
    known = ~np.isnan(table)
    sums = np.where(known, table, 0.0)[draws].sum(1)
    counts = known[draws].sum(1)
    means = np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
    low, high = np.nanquantile(means, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return low, high


def _ties(ordered: Array) -> Iterator[slice]:
    """Slices of equal neighbours."""
    edges = np.flatnonzero(np.diff(ordered) != 0) + 1
    starts, stops = [0, *edges.tolist()], [*edges.tolist(), len(ordered)]
    yield from map(slice, starts, stops)


def _check(n: int, count: int) -> None:
    if n < 1:
        raise OptionError(f"n={n} must be at least 1.")
    if n > count:
        raise OptionError(f"n={n} candidates cannot be drawn from a pool of {count}.")
