"""One number an answer, from the comparisons between the answers to one prompt."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import TypeAlias

Wins: TypeAlias = Mapping[tuple[int, int], float]
"""(a, b) -> probability in [0, 1] that answer a is better than answer b; a pair that could not be told is absent."""

_PRIOR = 1.0
"""How many even comparisons with an answer of strength 0 every answer is given, so that strengths stay finite."""


def mean_win_rate(answers: Sequence[int], wins: Wins) -> dict[int, float]:
    """Mean probability to win against the others, in [0, 1]; an answer that was compared with none is left out."""
    won: dict[int, list[float]] = {answer: [] for answer in answers}
    for (a, b), first in wins.items():
        won[a].append(first)
        won[b].append(1 - first)
    return {answer: fmean(each) for answer, each in won.items() if each}


def bradley_terry(answers: Sequence[int], wins: Wins) -> dict[int, float]:
    """Log-strengths that make the comparisons likeliest, centred on 0; one that was compared with none is left out.

    P(a wins against b) = sigmoid(s_a - s_b) (Bradley and Terry, 1952). A weak prior draws strengths together: an answer
    that always wins has a finite one, and those of a cycle are equal.
    """
    import numpy as np
    from scipy.optimize import minimize
    from scipy.special import expit, log_expit

    compared = [answer for answer in answers if any(answer in pair for pair in wins)]
    if not compared:
        return {}
    place = {answer: i for i, answer in enumerate(compared)}
    a, b = (np.array([place[pair[side]] for pair in wins]) for side in (0, 1))
    first = np.array(list(wins.values()))

    def loss(s: np.ndarray) -> tuple[float, np.ndarray]:
        gap = s[a] - s[b]
        likely = (first * log_expit(gap) + (1 - first) * log_expit(-gap)).sum()
        likely += _PRIOR * (log_expit(s) + log_expit(-s)).sum() / 2
        pull = first - expit(gap)
        slope = _PRIOR * (0.5 - expit(s))
        np.add.at(slope, a, pull)
        np.add.at(slope, b, -pull)
        return -likely, -slope

    s = minimize(loss, np.zeros(len(compared)), jac=True, method="BFGS", options={"gtol": 1e-9}).x
    return {answer: float(s[i] - s.mean()) for answer, i in place.items()}


RULES: dict[str, Callable[[Sequence[int], Wins], dict[int, float]]] = {
    "mean_win_rate": mean_win_rate,
    "bradley_terry": bradley_terry,
}
