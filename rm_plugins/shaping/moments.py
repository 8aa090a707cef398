"""Count, mean and sum of squared deviations, merged exactly (Chan, Golub and LeVeque, 1983)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rm_plugins.shaping.batch import Array


@dataclass(frozen=True)
class Moments:
    """Of numbers seen so far; float64.

    Attributes:
        count: how many.
        mean: 0 for none.
        m2: sum of squared deviations from the mean.
    """

    count: int = 0
    mean: float = 0.0
    m2: float = 0.0

    @classmethod
    def of(cls, values: Array) -> Moments:
        """Of some numbers, none of them NaN; equal ones have an `m2` of exactly 0."""
        if not len(values):
            return cls()
        mean = float(values[0]) if np.ptp(values) == 0 else float(np.mean(values))
        return cls(len(values), mean, float(np.sum((values - mean) ** 2)))

    def merged(self, other: Moments) -> Moments:
        """Of both sets of numbers together."""
        count = self.count + other.count
        if not (self.count and other.count):
            return self if self.count else other
        delta = other.mean - self.mean
        mean = self.mean + delta * other.count / count
        return Moments(count, mean, self.m2 + other.m2 + delta**2 * self.count * other.count / count)

    def deviation(self, ddof: int = 1) -> float:
        """Standard deviation; 0 where there are too few numbers."""
        return float(np.sqrt(self.m2 / (self.count - ddof))) if self.count > ddof else 0.0
