"""Terms that depend on how long an answer is; each is added to the reward, and none multiplies it.

A factor would raise a negative reward. Lengths are in tokens of the policy where the trainer passes their ids, else of
the reward model, or in characters.
"""

from __future__ import annotations

import logging
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field, PrivateAttr, model_validator

from rm_plugins.errors import OptionError
from rm_plugins.shaping.batch import Array, Batch, Rows, spread
from rm_plugins.shaping.step import Stage, Step

logger = logging.getLogger(__name__)


class _OfLength(Step):
    stage: ClassVar[Stage] = "penalty"
    unit: Literal["tokens", "characters"] = "tokens"
    _told: str = PrivateAttr("")

    def measure(self, rows: Rows) -> list[float]:
        """Lengths; the log says once whose tokens they are."""
        lengths = rows.lengths(self.unit)
        source = "characters" if self.unit == "characters" else rows.token_source
        if source != self._told:
            logger.info("shaping step %r: lengths are in %s", self.name, source)
            self._told = source
        return lengths

    def apply(self, batch: Batch) -> Array:
        """The reward and the term."""
        return batch.values + self._term(batch.numbers(), batch)

    def _term(self, lengths: Array, batch: Batch) -> Array:
        raise NotImplementedError


class Linear(_OfLength):
    """r - slope * length. A slope per token of 1 / max_length is that of PAR; 0.001 per character has been used too."""

    name: ClassVar[str] = "linear_length"
    slope: float = Field(allow_inf_nan=False)

    def _term(self, lengths: Array, batch: Batch) -> Array:
        return -self.slope * lengths


class Budget(_OfLength):
    """r - slope * (length beyond the budget); nothing within it."""

    name: ClassVar[str] = "budget"
    budget: int = Field(ge=0)
    slope: float = Field(gt=0, allow_inf_nan=False)

    def _term(self, lengths: Array, batch: Batch) -> Array:
        return -self.slope * np.maximum(0.0, lengths - self.budget)


class SoftOverlong(_OfLength):
    """DAPO's soft overlong punishment (arXiv 2503.14476): 0 up to `max_length - cache`, then straight down to -weight.

    Clamped: an answer beyond `max_length` loses `weight` and no more, as in TRL and OpenRLHF.
    """

    name: ClassVar[str] = "soft_overlong"
    max_length: int = Field(ge=1)
    cache: int = Field(ge=1)
    weight: float = Field(1.0, gt=0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _shorter(self) -> SoftOverlong:
        if self.cache > self.max_length:
            raise ValueError(f"cache={self.cache} must not be above max_length={self.max_length}")
        return self

    def _term(self, lengths: Array, batch: Batch) -> Array:
        return self.weight * np.clip((self.max_length - self.cache - lengths) / self.cache, -1.0, 0.0)


class Cosine(_OfLength):
    """Adds half a cosine from `short` at length 0 to `long` at `max_length` and beyond (Yeo et al. 2025, Open-R1)."""

    name: ClassVar[str] = "cosine"
    max_length: int = Field(ge=1)
    short: float = Field(1.0, allow_inf_nan=False)
    long: float = Field(-1.0, allow_inf_nan=False)

    def _term(self, lengths: Array, batch: Batch) -> Array:
        share = np.minimum(lengths / self.max_length, 1.0)
        return self.long + 0.5 * (self.short - self.long) * (1 + np.cos(np.pi * share))


class TargetLength(_OfLength):
    """r - slope * |length - target|: the closer, the higher (L1, arXiv 2503.04697)."""

    name: ClassVar[str] = "target_length"
    target: int = Field(ge=0)
    slope: float = Field(gt=0, allow_inf_nan=False)

    def _term(self, lengths: Array, batch: Batch) -> Array:
        return -self.slope * np.abs(lengths - self.target)


class GroupLength(_OfLength):
    """r - weight * z-score of the length among the rewarded answers to its prompt; 0 where they are equally long."""

    name: ClassVar[str] = "group_length"
    weight: float = Field(gt=0, allow_inf_nan=False)

    def _term(self, lengths: Array, batch: Batch) -> Array:
        rewarded = np.where(np.isnan(batch.values), np.nan, lengths)
        return -self.weight * batch.each(_standard, of=rewarded)


class LengthCurve(_OfLength):
    """r - alpha * (the average reward of answers of this length): LOWESS calibration (Huang et al., arXiv 2409.17407).

    The curve is fitted on a pool, by `fit` or `rm-plugins fit`; between its points it is straight, beyond them level.
    Where length carries quality, alpha=1 takes that away too: look at the correlations before and after.

    Attributes:
        lengths, rewards: points of the curve; empty until it is fitted.
        share: of the pool that each point of the curve is fitted on.
    """

    name: ClassVar[str] = "length_curve"
    alpha: float = Field(1.0, ge=0, le=1)
    share: float = Field(0.3, gt=0, le=1)
    lengths: tuple[float, ...] = ()
    rewards: tuple[float, ...] = ()
    _curve: tuple[tuple[float, ...], tuple[float, ...]] = PrivateAttr(((), ()))

    @model_validator(mode="after")
    def _points(self) -> LengthCurve:
        if len(self.lengths) != len(self.rewards) or list(self.lengths) != sorted(set(self.lengths)):
            raise ValueError("lengths must rise and be as many as rewards")
        self._curve = (self.lengths, self.rewards)
        return self

    def fit(self, batch: Batch) -> None:
        """Fits the curve to a pool.

        Raises:
            MissingExtraError: the extra `fit` is not installed.
            OptionError: fewer than three lengths.
        """
        from rm_plugins.shaping.lowess import curve

        known = ~np.isnan(batch.values)
        self._curve = curve(batch.numbers()[known], batch.values[known], self.share)

    def state_dict(self) -> dict[str, Any]:
        """The points of the curve."""
        return {"lengths": list(self._curve[0]), "rewards": list(self._curve[1])}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes the points of a curve."""
        self._curve = (tuple(state["lengths"]), tuple(state["rewards"]))

    def _term(self, lengths: Array, batch: Batch) -> Array:
        if not self._curve[0]:
            raise OptionError("shaping step 'length_curve' has no curve; fit one with rm-plugins fit.")
        return -self.alpha * np.interp(lengths, *self._curve)


def _standard(values: Array) -> Array:
    deviation = spread(values)
    return (values - values.mean()) / deviation if deviation else 0 * values
