"""Scores of reasoning steps, and the named rules that make one number of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any, Literal, TypeAlias, get_args

from rm_plugins.errors import OptionError
from rm_plugins.family import Score
from rm_plugins.text.rules import check_choice

Aggregate: TypeAlias = Literal["last", "min", "prod", "mean"]
Total: TypeAlias = Literal["last", "min", "mean"]
AGGREGATE = {"aggregate": "one number of the steps' probabilities: last, min, mean, or prod (its logarithm)"}
"""The option of families that score steps."""
PARTS = ("last", "min", "prod", "mean", "steps")
"""The parts of such a score: the steps' probabilities by each rule, and how many there are."""


class Steps:
    """A rule that makes one number of the probabilities that steps are right; higher is better.

    `last`, `min` and `mean` lie in [0, 1]. `prod` is the logarithm of the product, at most 0: it ranks as the product
    does, and hundreds of steps do not underflow to 0. The part `prod` is the product itself.

    Args:
        aggregate: the rule; None if neither the caller nor the model's card named one.

    Raises:
        OptionError: no rule, or one that does not exist.
    """

    def __init__(self, aggregate: Aggregate | None) -> None:
        self._aggregate = _named(aggregate, Aggregate)

    def score(self, log_probs: Sequence[float]) -> Score:
        """The score of an answer.

        Args:
            log_probs: natural logarithm of each step's probability, at least one.
        """
        steps = [math.exp(value) for value in log_probs]
        total = math.fsum(log_probs)
        parts = dict(zip(PARTS, (steps[-1], min(steps), math.exp(total), fmean(steps), float(len(steps))), strict=True))
        value = total if self._aggregate == "prod" else parts[self._aggregate]
        return Score(value, parts, tuple(steps))


def running(aggregate: str | None) -> Callable[[Sequence[float]], Score]:
    """A rule that makes one number of running totals, one a step; they are no probabilities, so there is no product.

    Args:
        aggregate: `last`, `min` or `mean`; None if neither the caller nor the model's card named one.

    Raises:
        OptionError: no rule, or one that does not exist.
    """
    _named(aggregate, Total)
    rules: dict[str | None, Callable[[Sequence[float]], float]] = {"last": lambda v: v[-1], "min": min, "mean": fmean}
    return lambda totals: Score(rules[aggregate](totals), steps=tuple(totals))


def _named(aggregate: str | None, kind: Any) -> Any:
    if aggregate is None:
        choices = ", ".join(get_args(kind))
        raise OptionError(f"This model's card names no rule for its steps; give aggregate=, one of {choices}.")
    check_choice("aggregate", aggregate, kind)
    return aggregate
