"""Normalization by all the rewards of the training so far; what they learn is the same on every process."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from pydantic import Field, PrivateAttr

from rm_plugins.shaping.batch import Array, Batch
from rm_plugins.shaping.moments import Moments
from rm_plugins.shaping.step import Stage, Step


class Running(Step):
    """(r - mean) / deviation of all rewards of the training so far, this batch included: unbounded.

    Its state is count, mean and sum of squares, the same on every process. Until `min_count` rewards were seen they
    pass unchanged, because a deviation of few numbers is no scale.
    """

    name: ClassVar[str] = "running"
    stage: ClassVar[Stage] = "normalize"
    learns: ClassVar[bool] = True
    min_count: int = Field(32, ge=2)
    _seen: Moments = PrivateAttr(default_factory=Moments)

    def update(self, batch: Batch) -> None:
        """Counts the rewards of a batch."""
        self._seen = self._seen.merged(Moments.of(batch.known))

    def apply(self, batch: Batch) -> Array:
        """See the class."""
        if self._seen.count < self.min_count:
            return batch.values
        return (batch.values - self._seen.mean) / (self._seen.deviation() or 1.0)

    def state_dict(self) -> dict[str, Any]:
        """Count, mean and sum of squared deviations."""
        return {"count": self._seen.count, "mean": self._seen.mean, "m2": self._seen.m2}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from there."""
        self._seen = Moments(**state)


class RunningMinMax(Step):
    """(r - min) / (max - min) of all rewards of the training so far: in [0, 1] in training."""

    name: ClassVar[str] = "running_minmax"
    stage: ClassVar[Stage] = "normalize"
    learns: ClassVar[bool] = True
    _seen: tuple[float, float] | None = PrivateAttr(None)

    def update(self, batch: Batch) -> None:
        """Widens the range."""
        if len(known := batch.known):
            low, high = self._seen or (np.inf, -np.inf)
            self._seen = (min(low, float(known.min())), max(high, float(known.max())))

    def apply(self, batch: Batch) -> Array:
        """See the class; before the first batch of training they pass unchanged."""
        if self._seen is None:
            return batch.values
        low, high = self._seen
        return (batch.values - low) / (high - low) if high > low else batch.values - low

    def state_dict(self) -> dict[str, Any]:
        """The range."""
        return {"seen": self._seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from there."""
        self._seen = tuple(state["seen"]) if state["seen"] else None
