"""How far a choice among n draws can move the answers from the policy's own: Kullback-Leibler bounds and estimates.

All of them are from the distribution that was sampled (its temperature and top-p included), not from the model at
temperature 1.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq


def kl_bound(n: int | float) -> float:
    """Log n - (n - 1) / n: no rule that returns one of n draws moves further (Beirami et al. 2024, arXiv 2401.01879).

    It is reached where no two draws are alike, and far from tight where few answers exist. Where a rule stops early,
    n is the most that it may draw, not what it drew.
    """
    return math.log(n) - (n - 1) / n


def soft_kl_bound(probabilities: ArrayLike) -> float:
    """Log n - H(p) for a rule that chooses among n draws with probabilities p; the smaller of the two bounds holds."""
    p = np.asarray(probabilities, dtype=np.float64)
    entropy = -float(np.sum(p[p > 0] * np.log(p[p > 0])))
    return math.log(len(p)) - entropy


def kl_estimate(n: int, probability: float) -> float:
    """KL of best-of-n where the chosen answer has this probability under the policy: below `kl_bound`.

    Args:
        n: draws.
        probability: of the chosen answer, in (0, 1).
    """
    kept = (1 - probability) ** n
    tail = (1 - kept) * math.log((1 - kept) / probability)
    return kept * (math.log(n) + (n - 1) * math.log1p(-probability) - (n - 1) / n) + tail


def kl_exact(probabilities: ArrayLike, n: int) -> float:
    """KL of best-of-n over outcomes in the order of their rewards, lowest first, no two of them equal."""
    p = np.asarray(probabilities, dtype=np.float64)
    up_to = np.cumsum(p)
    chosen = up_to**n - (up_to - p) ** n
    some = chosen > 0
    return float(np.sum(chosen[some] * np.log(chosen[some] / p[some])))


def n_for_kl(bound: float) -> float:
    """The n at which `kl_bound` has this value, at least 1."""
    return float(brentq(lambda n: kl_bound(n) - bound, 1.0, 1e12)) if bound > 0 else 1.0


def gao_fit(kl: ArrayLike, gold: ArrayLike) -> tuple[float, float]:
    """Alpha and beta of gold = d (alpha - beta d), d the square root of KL (Gao et al. 2022, arXiv 2210.10760).

    Gold counts from its value at n = 1; it peaks at d = alpha / (2 beta).

    Args:
        kl: (k,) bounds or estimates.
        gold: (k,) gains over n = 1.
    """
    d = np.sqrt(np.asarray(kl, dtype=np.float64))
    found, *_ = np.linalg.lstsq(np.stack([d, -(d**2)], axis=1), np.asarray(gold, dtype=np.float64), rcond=None)
    return float(found[0]), float(found[1])
