"""What a trainer should log of a batch of scores."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rm_plugins.family import Score

SHARES = ("truncated", "empty", "control_tokens")


def summarize(scores: Sequence[Score], lengths: Sequence[int], parts: Sequence[str] = ()) -> dict[str, float]:
    """Shares of flagged rows in [0, 1], how far rewards follow length, and the mean of each part.

    Args:
        scores: one batch, at least one row.
        lengths: length of each answer: policy tokens if known, else characters.
        parts: names of the parts that the model's scores have.

    Returns:
        `truncated`, `empty`, `control_tokens`, `failed`; `length_correlation` (Pearson, in [-1, 1]; NaN unless at least
        two rewards and two lengths differ); the parts (NaN if no row has one). The names never depend on the batch: TRL
        1.12 gathers every metric over its processes, and waits forever for one that only some of them log.
    """
    shares = {flag: sum(flag in score.flags for score in scores) / len(scores) for flag in SHARES}
    shares["failed"] = sum(score.value is None for score in scores) / len(scores)
    pairs = [(s.value, float(n)) for s, n in zip(scores, lengths, strict=True) if s.value is not None]
    means = {name: _mean([score.parts[name] for score in scores if name in score.parts]) for name in parts}
    return shares | {"length_correlation": _pearson(pairs)} | means


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def _pearson(pairs: Sequence[tuple[float, float]]) -> float:
    import numpy as np

    rewards, lengths = np.array(pairs, dtype=float).reshape(-1, 2).T
    if len(rewards) < 2 or np.ptp(rewards) == 0 or np.ptp(lengths) == 0:
        return math.nan
    return float(np.corrcoef(rewards, lengths)[0, 1])
