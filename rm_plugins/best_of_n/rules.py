"""Rules that choose among candidates. A candidate without a number never wins, and ties go to the lowest index."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np

from rm_plugins.best_of_n.divergence import kl_bound, soft_kl_bound
from rm_plugins.best_of_n.pool import Array, Pool, numbers
from rm_plugins.errors import OptionError

Utility: TypeAlias = Callable[[Sequence[str]], Array]
"""Takes texts and returns how alike they are, (n, n)."""


@dataclass(frozen=True)
class Selection:
    """What a rule chose.

    Attributes:
        index: of the chosen candidate.
        probabilities: (n,) with which each would be chosen; one of them is 1 for a rule that draws no lot.
        ranking: indices, best first, as far as the rule ranks them; the chosen one need not be the first.
        ties: how many candidates are as good as the best, itself included.
        calls: comparisons that the rule asked for.
        kl_bound: how far the choice can move the answers from the policy's own.
    """

    index: int
    probabilities: tuple[float, ...]
    ranking: tuple[int, ...]
    ties: int
    calls: int
    kl_bound: float


class Rule(Protocol):
    """Chooses one candidate of a pool."""

    def select(self, pool: Pool, rng: np.random.Generator) -> Selection:
        """The choice; lots are drawn from `rng` alone."""


class ByNumber:
    """Chooses the candidate with the highest number."""

    def select(self, pool: Pool, rng: np.random.Generator) -> Selection:
        """See the class."""
        values = self.numbers(pool)
        best = np.nanmax(values)
        ranking = ranked(values)
        certain = np.zeros(len(pool))
        certain[ranking[0]] = 1.0
        return selection(pool, ranking[0], certain, ranking, ties=int((values == best).sum()))

    def numbers(self, pool: Pool) -> Array:
        """(n,), NaN for a candidate that cannot win; at least one is a number."""
        raise NotImplementedError


class Best(ByNumber):
    """Best-of-n: the highest reward."""

    def numbers(self, pool: Pool) -> Array:
        """The rewards."""
        return pool.known_rewards()


class Likelihood(ByNumber):
    """The highest log-probability per token under the policy: a control that needs no reward."""

    def numbers(self, pool: Pool) -> Array:
        """Mean log-probabilities."""
        tokens = np.array([max(1, len(candidate.ids)) for candidate in pool.candidates])
        return np.asarray(numbers(pool, "log_prob") / tokens)


class SelfCertainty(ByNumber):
    """The highest mean self-certainty of its tokens."""

    def numbers(self, pool: Pool) -> Array:
        """Certainties."""
        return numbers(pool, "certainty")


class Longest(ByNumber):
    """The longest answer: a control."""

    def numbers(self, pool: Pool) -> Array:
        """Lengths."""
        return np.array([float(candidate.length) for candidate in pool.candidates])


class Shortest(ByNumber):
    """The shortest answer: a control."""

    def numbers(self, pool: Pool) -> Array:
        """Lengths, negative."""
        return np.array([-float(candidate.length) for candidate in pool.candidates])


class Regularized(ByNumber):
    """Reward plus beta times the mean likeness to all candidates, itself included (Jinnai et al., arXiv 2404.01054).

    Args:
        beta: in units of the reward; bring rewards to one scale first, or it means something else for each model.
        utility: likeness of texts; share of common words by default.
    """

    def __init__(self, beta: float, utility: Utility | None = None) -> None:
        if not beta >= 0:
            raise OptionError(f"beta={beta!r} must be at least 0.")
        self._beta, self._utility = beta, utility or word_overlap

    def numbers(self, pool: Pool) -> Array:
        """Regularised rewards."""
        likeness = np.asarray(self._utility([c.text for c in pool.candidates]), dtype=np.float64)
        return np.asarray(pool.known_rewards() + self._beta * likeness.mean(1))


class MinimumBayesRisk(ByNumber):
    """The candidate most like all of them; needs no reward.

    Args:
        utility: likeness of texts; share of common words by default.
    """

    def __init__(self, utility: Utility | None = None) -> None:
        self._utility = utility or word_overlap

    def numbers(self, pool: Pool) -> Array:
        """Mean likeness."""
        likeness = np.asarray(self._utility([c.text for c in pool.candidates]), dtype=np.float64)
        return np.asarray(likeness.mean(1))


def selection(
    pool: Pool, index: int, probabilities: Array, ranking: Sequence[int], *, ties: int = 1, calls: int = 0
) -> Selection:
    """A selection with the smaller of the bounds that hold for it."""
    n = len(pool)
    lots = (probabilities > 0).sum() > 1
    bound = min(kl_bound(n), soft_kl_bound(probabilities)) if lots else kl_bound(n)
    return Selection(index, tuple(probabilities.tolist()), tuple(ranking), ties, calls, bound)


def ranked(values: Array) -> list[int]:
    """Indices by number, highest first, equal ones as they stand, NaN last."""
    order: list[int] = np.argsort(np.where(np.isnan(values), np.inf, -values), kind="stable").tolist()
    return order


def word_overlap(texts: Sequence[str]) -> Array:
    """Twice the common words over all words of two texts, (n, n) in [0, 1]; 1 for two empty ones."""
    words = [set(text.lower().split()) for text in texts]
    return np.array([[_dice(a, b) for b in words] for a in words], dtype=np.float64)


def _dice(a: set[str], b: set[str]) -> float:
    return 2 * len(a & b) / (len(a) + len(b)) if a or b else 1.0
