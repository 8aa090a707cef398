"""The curve of rewards over lengths, by statsmodels' LOWESS."""

from __future__ import annotations

import numpy as np

from rm_plugins.errors import MissingExtraError, OptionError
from rm_plugins.shaping.batch import Array

_POINTS = 50
"""More of a smooth curve would say nothing more."""


def curve(lengths: Array, rewards: Array, share: float) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Rising lengths and the average reward at each.

    Args:
        lengths: (n,) of a pool.
        rewards: (n,) of the same answers, none NaN.
        share: of the pool that each point is fitted on.

    Raises:
        MissingExtraError: statsmodels is not installed.
        OptionError: fewer than three different lengths.
    """
    try:
        from statsmodels.nonparametric.smoothers_lowess import lowess
    except ImportError as error:
        raise MissingExtraError("Fitting a curve needs statsmodels: pip install 'rm-plugins[fit]'") from error
    if (different := len(np.unique(lengths))) < 3:
        raise OptionError(f"The pool has {different} different lengths; a curve needs at least 3.")
    found = lowess(rewards, lengths, frac=share, return_sorted=True)
    x, first = np.unique(found[:, 0], return_index=True)
    keep = np.unique(np.linspace(0, len(x) - 1, _POINTS).round().astype(int))
    return tuple(x[keep].tolist()), tuple(found[first[keep], 1].tolist())
