"""Several rewards of one answer made into one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
from pydantic import Field, PrivateAttr, model_validator

from rm_plugins.errors import ScoringError
from rm_plugins.shaping.batch import Array, Batch, Rows, spread
from rm_plugins.shaping.scale import ZScore
from rm_plugins.shaping.step import Stage, Step

Rule: TypeAlias = Literal["sum", "normalized_sum", "product", "minimum", "constrained"]


class Combine(Step):
    """One reward of several; an answer that lacks one of them has none, unless that one weighs 0.

    `sum`: weighted sum. `normalized_sum`: weighted sum of z-scores among a prompt's answers, so that no reward counts
    for more because its numbers are larger (GDPO). `product`: of gates in [0, 1]; another number is an error, because
    a factor turns a negative reward the wrong way. `minimum`: of the weighted rewards. `constrained`: weighted sum of
    the others minus lambda * (cost - limit), where lambda rises by `rate` times the mean excess of a batch and never
    below 0 (dual ascent, as in Safe RLHF, arXiv 2310.12773).

    Attributes:
        weights: name of a reward -> its weight.
        cost: `constrained`: the reward whose negative is a cost; this library's cost models are negated, higher is
            better.
        limit: `constrained`: highest mean cost that is wanted.
        rate: `constrained`: how fast lambda moves.
        start: `constrained`: lambda at the beginning.
    """

    name: ClassVar[str] = "combine"
    stage: ClassVar[Stage] = "weights"
    learns: ClassVar[bool] = True
    weights: dict[str, float]
    rule: Rule = "sum"
    cost: str | None = None
    limit: float = Field(0.0, allow_inf_nan=False)
    rate: float = Field(0.1, gt=0, allow_inf_nan=False)
    start: float = Field(1.0, ge=0, allow_inf_nan=False)
    _multiplier: float = PrivateAttr(1.0)

    @model_validator(mode="after")
    def _whole(self) -> Combine:
        if (self.rule == "constrained") != (self.cost is not None):
            raise ValueError("rule='constrained' and cost= belong together")
        if self.cost is not None and self.cost not in self.weights:
            raise ValueError(f"cost={self.cost!r} is none of {', '.join(self.weights)}")
        self._multiplier = self.start
        return self

    def measure(self, rows: Rows) -> Sequence[Sequence[float | None]]:
        """The rewards of each row, in the order of `weights`."""
        return rows.components

    def update(self, batch: Batch) -> None:
        """Moves lambda."""
        if self.cost is None:
            return
        costs = -self._columns(batch)[self.cost]
        if len(known := costs[~np.isnan(costs)]):
            self._multiplier = max(0.0, self._multiplier + self.rate * (float(known.mean()) - self.limit))

    def apply(self, batch: Batch) -> Array:
        """See the class."""
        counted = {name: column for name, column in self._columns(batch).items() if self.weights[name] or self.cost}
        if self.rule == "product":
            return _product(counted)
        parts = self.parts(batch)
        if self.rule == "minimum":
            return np.asarray(np.minimum.reduce(list(parts.values())))
        return np.asarray(sum(parts.values()))

    def parts(self, batch: Batch) -> dict[str, Array]:
        """What each reward adds to a sum; those that weigh 0 are left out."""
        parts = {}
        for name, column in self._columns(batch).items():
            if name == self.cost:
                parts[name] = self._multiplier * (column + self.limit)
            elif self.weights[name]:
                scaled = ZScore().apply(batch.rewarded(column)) if self.rule == "normalized_sum" else column
                parts[name] = self.weights[name] * scaled
        return parts

    def shares(self, batch: Batch) -> dict[str, float]:
        """Share of each reward in the spread within groups, in [0, 1]; NaN where nothing differs."""
        spreads = {name: _mean_spread(batch.rewarded(part)) for name, part in self.parts(batch).items()}
        total = sum(spreads.values())
        return {name: found / total if total else np.nan for name, found in spreads.items()}

    def state_dict(self) -> dict[str, Any]:
        """Lambda."""
        return {"multiplier": self._multiplier}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes lambda back."""
        self._multiplier = state["multiplier"]

    def _columns(self, batch: Batch) -> dict[str, Array]:
        rows = np.array(batch.measured, dtype=np.float64).reshape(len(batch.values), len(self.weights))
        return dict(zip(self.weights, rows.T, strict=True))


def _product(gates: Mapping[str, Array]) -> Array:
    for name, gate in gates.items():
        known = gate[~np.isnan(gate)]
        if len(known) and not (known.min() >= 0 and known.max() <= 1):
            raise ScoringError(
                f"rule='product' multiplies gates in [0, 1], and {name} gave {known.min():g} to {known.max():g}; "
                "bring it there with sigmoid or minmax, or use another rule."
            )
    return np.asarray(np.multiply.reduce(list(gates.values())))


def _mean_spread(batch: Batch) -> float:
    spreads = batch.each(lambda values: np.full(len(values), spread(values)))
    known = spreads[~np.isnan(spreads)]
    return float(known.mean()) if len(known) else 0.0
