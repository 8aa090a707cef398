"""Normalization: rewards in units of their own spread, over a prompt's answers or a batch, or of a known one.

A set without spread (one reward, or equal ones) becomes the middle of the scale: 0 for scores, 0.5 for ranks; min-max
gives 0. Nothing is divided by zero. Rewards that are NaN stay so and count nowhere.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator
from scipy.special import ndtri
from scipy.stats import rankdata

from rm_plugins.shaping.batch import Array, Batch
from rm_plugins.shaping.moments import Moments
from rm_plugins.shaping.step import Scope, Stage, Step

_QUARTILE = float(ndtri(0.75))
"""Of a normal distribution: the MAD in standard deviations."""


class _Scoped(Step):
    stage: ClassVar[Stage] = "normalize"
    scope: Scope = "group"

    def apply(self, batch: Batch) -> Array:
        """See the class."""
        return batch.each(self._of, by_group=self.scope == "group")

    def _of(self, values: Array) -> Array:
        raise NotImplementedError


class ZScore(_Scoped):
    """(r - mean) / (deviation + eps) within a prompt's answers or a batch: unbounded, mean 0.

    Attributes:
        ddof: 1 for the sample's standard deviation (torch.std), 0 for the population's.
        eps: added to the deviation; TRL adds 1e-4.
    """

    name: ClassVar[str] = "zscore"
    ddof: Literal[0, 1] = 1
    eps: float = Field(0.0, ge=0, allow_inf_nan=False)

    def _of(self, values: Array) -> Array:
        moments = Moments.of(values)
        return (values - moments.mean) / (moments.deviation(self.ddof) + self.eps) if moments.m2 else 0 * values


class MinMax(_Scoped):
    """(r - min) / (max - min): in [0, 1]."""

    name: ClassVar[str] = "minmax"

    def _of(self, values: Array) -> Array:
        width = np.ptp(values)
        return (values - values.min()) / width if width else 0 * values


class Robust(_Scoped):
    """0.6745 (r - median) / MAD, the robust z-score of Iglewicz and Hoaglin (1993): unbounded.

    Where more than half of the rewards are equal the MAD is 0, and 1.2533 times the mean absolute deviation from the
    median stands for it, as they advise.
    """

    name: ClassVar[str] = "robust"

    def _of(self, values: Array) -> Array:
        from_median = values - np.median(values)
        if mad := np.median(np.abs(from_median)):
            return np.asarray(_QUARTILE * from_median / mad)
        mean = np.mean(np.abs(from_median))
        return np.asarray(from_median / (np.sqrt(np.pi / 2) * mean) if mean else 0 * values)


class Rank(_Scoped):
    """(rank - 1) / (n - 1), ties averaged: in [0, 1]. Ranks of groups of different sizes do not compare."""

    name: ClassVar[str] = "rank"

    def _of(self, values: Array) -> Array:
        if len(values) == 1:
            return np.full(1, 0.5)
        return np.asarray((rankdata(values) - 1) / (len(values) - 1))


class GaussianRank(_Scoped):
    """Normal quantiles of the ranks, (rank - 3/8) / (n + 1/4), ties averaged (Blom, 1958): about -3 to 3."""

    name: ClassVar[str] = "gaussian_rank"

    def _of(self, values: Array) -> Array:
        return np.asarray(ndtri((rankdata(values) - 0.375) / (len(values) + 0.25)))


class Fixed(Step):
    """(r - mean) / deviation with numbers that are given: of a data set, by `fit` or `rm-plugins fit`, or a file.

    Attributes:
        mean, deviation: the statistics.
        file: JSON with `mean` and `deviation`, in place of them.

    Raises:
        OptionError: neither, or both; a deviation of 0.
    """

    name: ClassVar[str] = "fixed"
    stage: ClassVar[Stage] = "normalize"
    mean: float | None = Field(None, allow_inf_nan=False)
    deviation: float | None = Field(None, gt=0, allow_inf_nan=False)
    file: Path | None = None

    @model_validator(mode="before")
    @classmethod
    def _read(cls, settings: dict[str, Any]) -> dict[str, Any]:
        given = settings.get("mean") is not None and settings.get("deviation") is not None
        if given == (settings.get("file") is not None):
            raise ValueError("it needs mean and deviation, or a file that has them, to normalize with")
        if given:
            return settings
        try:
            found = json.loads(Path(settings["file"]).read_text(encoding="utf-8"))
            return {"mean": found["mean"], "deviation": found["deviation"]}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{settings['file']} has no mean and deviation as JSON: {error!r}") from error

    @classmethod
    def of(cls, values: Array) -> Fixed:
        """With the statistics of some rewards."""
        moments = Moments.of(values[~np.isnan(values)])
        return cls(mean=moments.mean, deviation=moments.deviation())

    def apply(self, batch: Batch) -> Array:
        """See the class."""
        assert self.mean is not None and self.deviation is not None
        return (batch.values - self.mean) / self.deviation
