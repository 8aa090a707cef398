"""Rules that draw a candidate by chances, so that the pick stays nearer to what the policy would have said."""

from __future__ import annotations

import math

import numpy as np
from scipy.optimize import brentq

from rm_plugins.best_of_n.pool import Array, Pool
from rm_plugins.best_of_n.rules import Selection, ranked, selection
from rm_plugins.errors import OptionError


class Lots:
    """Draws a candidate by probabilities."""

    def select(self, pool: Pool, rng: np.random.Generator) -> Selection:
        """See the class."""
        chances = self.chances(pool)
        index = int(rng.choice(len(pool), p=chances))
        top = chances.max()
        return selection(pool, index, chances, ranked(chances), ties=int((chances == top).sum()))

    def chances(self, pool: Pool) -> Array:
        """(n,), summing to 1."""
        raise NotImplementedError


class Random(Lots):
    """Any candidate: a control."""

    def chances(self, pool: Pool) -> Array:
        """All the same."""
        return np.full(len(pool), 1 / len(pool))


class Soft(Lots):
    """Softmax of the rewards: temperature 0 would be best-of-n, a high one is random.

    Args:
        temperature: in units of the reward.
    """

    def __init__(self, temperature: float) -> None:
        if not 0 < temperature < math.inf:
            raise OptionError(f"temperature={temperature!r} must be a number above 0.")
        self._temperature = temperature

    def chances(self, pool: Pool) -> Array:
        """Softmax; 0 for a candidate without a reward."""
        rewards = pool.known_rewards()
        weights = np.where(np.isnan(rewards), 0.0, np.exp((rewards - np.nanmax(rewards)) / self._temperature))
        return np.asarray(weights / weights.sum())


class TopK(Lots):
    """Any of the k best, all the same.

    Args:
        k: at least 1.
    """

    def __init__(self, k: int) -> None:
        if type(k) is not int or k < 1:
            raise OptionError(f"k={k!r} must be a whole number of at least 1.")
        self._k = k

    def chances(self, pool: Pool) -> Array:
        """1 / k for the k best."""
        best = [index for index in ranked(pool.known_rewards()) if not np.isnan(pool.rewards[index])][: self._k]
        chances = np.zeros(len(pool))
        chances[best] = 1 / len(best)
        return chances


class Pessimistic(Lots):
    """Inference-time pessimism (Huang et al., arXiv 2503.21878): chances rise with reward, and more draws do not harm.

    The weights are relu(reward - lambda) / beta with the lambda at which their mean is 1.

    Args:
        beta: in units of the reward; small is greedy.
    """

    def __init__(self, beta: float) -> None:
        if not 0 < beta < math.inf:
            raise OptionError(f"beta={beta!r} must be a number above 0.")
        self._beta = beta

    def chances(self, pool: Pool) -> Array:
        """The weights over their sum."""
        rewards = pool.known_rewards()
        known = rewards[~np.isnan(rewards)]
        low, high = known.min() - self._beta - 1.0, known.max()
        level = brentq(lambda x: np.maximum((known - x) / self._beta, 0).mean() - 1, low, high)
        weights = np.where(np.isnan(rewards), 0.0, np.maximum((rewards - level) / self._beta, 0))
        return np.asarray(weights / weights.sum())
