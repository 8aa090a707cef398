"""Reward models with several named outputs, and the rule that makes one reward of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rm_plugins.errors import OptionError
from rm_plugins.family import Score

CARD = "card"
COMBINE = {"combine": "how attributes become one reward: card (the card's own rule), a name, or weights {name: number}"}
"""The option of families that use `Attributes`."""


class Attributes:
    """Names of a model's outputs, in the order of its head, and a rule to combine them.

    Args:
        names: one per output.
        combine: "card" for the model's own number, a name for that attribute alone, or weights for a sum of some.
        has_card: False for a model whose card gives no one number; `combine` must then be given.

    Raises:
        OptionError: a name that the model does not have, a weight that is no number, or no rule.
    """

    def __init__(self, names: Sequence[str], combine: Any = CARD, *, has_card: bool = True) -> None:
        self.names = tuple(names)
        shown = ", ".join(self.names)
        if combine == CARD and not has_card:
            raise OptionError(f"This model's card combines its attributes in no way; give combine=, of {shown}.")
        self._weights = {combine: 1.0} if isinstance(combine, str) and combine != CARD else combine
        if self._weights == CARD:
            return
        if not isinstance(self._weights, Mapping) or not self._weights:
            raise OptionError(f"combine={combine!r} must be 'card', one of {shown}, or weights of some of them.")
        if unknown := [name for name in self._weights if name not in self.names]:
            raise OptionError(f"combine= names {unknown[0]!r}, which is no attribute of this model; it has {shown}.")
        for name, weight in self._weights.items():
            if not isinstance(weight, int | float) or not math.isfinite(weight):
                raise OptionError(f"combine= gives {name!r} the weight {weight!r}, which is no finite number.")

    def score(self, values: Sequence[float], card: float | None = None) -> Score:
        """A score with every attribute in its parts.

        Args:
            values: the outputs, in the order of the names.
            card: the model's own number.
        """
        parts = dict(zip(self.names, map(float, values), strict=True))
        if self._weights == CARD:
            return Score(card, parts=parts)
        return Score(sum(weight * parts[name] for name, weight in self._weights.items()), parts=parts)
