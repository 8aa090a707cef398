"""Bounds: each reward by itself, whatever stands beside it."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from pydantic import Field, model_validator
from scipy.special import expit

from rm_plugins.shaping.batch import Array, Batch
from rm_plugins.shaping.step import Stage, Step


class Tanh(Step):
    """tanh(scale * r): in (-1, 1)."""

    name: ClassVar[str] = "tanh"
    stage: ClassVar[Stage] = "normalize"
    scale: float = Field(1.0, gt=0, allow_inf_nan=False)

    def apply(self, batch: Batch) -> Array:
        """See the class."""
        return np.tanh(self.scale * batch.values)


class Sigmoid(Step):
    """1 / (1 + exp(-scale * (r - centre))): in (0, 1)."""

    name: ClassVar[str] = "sigmoid"
    stage: ClassVar[Stage] = "normalize"
    scale: float = Field(1.0, gt=0, allow_inf_nan=False)
    centre: float = Field(0.0, allow_inf_nan=False)

    def apply(self, batch: Batch) -> Array:
        """See the class."""
        return np.asarray(expit(self.scale * (batch.values - self.centre)))


class Clip(Step):
    """min(max(r, low), high); it may stand anywhere among the steps.

    Raises:
        OptionError: no bound, or a low one that is not below the high one.
    """

    name: ClassVar[str] = "clip"
    stage: ClassVar[Stage] = "clip"
    low: float | None = Field(None, allow_inf_nan=False)
    high: float | None = Field(None, allow_inf_nan=False)

    @model_validator(mode="after")
    def _ordered(self) -> Clip:
        if self.low is None and self.high is None:
            raise ValueError("it needs low=, high= or both")
        if self.low is not None and self.high is not None and self.low >= self.high:
            raise ValueError(f"low={self.low} must be below high={self.high}")
        return self

    def apply(self, batch: Batch) -> Array:
        """See the class."""
        return np.clip(batch.values, self.low, self.high)
