"""What a step sees: the rewards of a batch, which of them answer one prompt, and what the step measured of each row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rm_plugins.conversation import Conversation
from rm_plugins.errors import OptionError

Array: TypeAlias = NDArray[np.float64]
Count: TypeAlias = Callable[[str], int]
Rate: TypeAlias = Callable[[Sequence[Conversation]], Sequence[float | None]]


@dataclass(frozen=True)
class Rows:
    """The conversations of this process, for steps that measure them.

    Attributes:
        conversations: one per row.
        completion_ids: the policy's token ids of each answer; None where nobody passed them.
        count: tokens of a text in the reward model's tokenizer; None where it has none.
        rate: raw rewards of other conversations, by the reward that is being shaped.
        eos: ids that end an answer of the policy; empty where they are not known.
        components: the rewards of each row that are to be combined, where there are several.
    """

    conversations: Sequence[Conversation]
    completion_ids: Sequence[Sequence[int]] | None = None
    count: Count | None = None
    rate: Rate | None = None
    eos: frozenset[int] = frozenset()
    components: Sequence[Sequence[float | None]] = ()

    def lengths(self, unit: str) -> list[float]:
        """Length of each answer in `tokens` (the policy's, else the reward model's) or `characters`.

        Raises:
            OptionError: tokens, and there is neither.
        """
        if unit == "characters":
            return [float(len(row.answer)) for row in self.conversations]
        if self.completion_ids is not None:
            return [float(len(ids)) for ids in self.completion_ids]
        if self.count is None:
            raise OptionError("There are no token ids of the answers and no tokenizer to count with; use characters.")
        return [float(self.count(row.answer)) for row in self.conversations]

    @property
    def token_source(self) -> str:
        """Whose tokens `lengths` counts."""
        return "the policy's completion ids" if self.completion_ids is not None else "the reward model's tokenizer"


@dataclass(frozen=True)
class Batch:
    """The rewards of all processes.

    Attributes:
        values: (n,) float64; NaN where there is no reward.
        groups: (n,), the same number for answers to the same prompt.
        measured: what the step measured of each row.
    """

    values: Array
    groups: NDArray[np.int64]
    measured: Sequence[Any] = field(default=())

    @classmethod
    def of(cls, values: Sequence[float | None], groups: Sequence[Any] = (), measured: Sequence[Any] = ()) -> Batch:
        """A batch of plain lists; None is a row without a reward, and no groups are one group."""
        names = list(groups) or [0] * len(values)
        number = {name: place for place, name in enumerate(dict.fromkeys(names))}
        rewards = np.array([np.nan if value is None else value for value in values], dtype=np.float64)
        return cls(rewards, np.array([number[name] for name in names], dtype=np.int64), measured)

    def rewarded(self, values: Array) -> Batch:
        """The same rows with other rewards."""
        return replace(self, values=values)

    @property
    def known(self) -> Array:
        """The rewards that there are."""
        return self.values[~np.isnan(self.values)]

    def numbers(self) -> Array:
        """What was measured, as (n,) floats; NaN where nothing was."""
        return np.array([np.nan if found is None else found for found in self.measured], dtype=np.float64)

    def each(self, function: Callable[[Array], Array], *, of: Array | None = None, by_group: bool = True) -> Array:
        """What `function` makes of each group's numbers, or of all of them at once; NaN stays where it was.

        Args:
            function: (k,) numbers, none of them NaN, to (k,) numbers.
            of: numbers of each row; the rewards by default.
            by_group: False to take all rows as one group.
        """
        values = self.values if of is None else of
        result = np.full(len(values), np.nan)
        for group in np.unique(self.groups) if by_group else [None]:
            at = ~np.isnan(values) & (True if group is None else self.groups == group)
            if at.any():
                result[at] = function(values[at])
        return result


def spread(values: Array) -> float:
    """Sample standard deviation; 0 for fewer than two numbers, and exactly 0 for equal ones."""
    return float(np.std(values, ddof=1)) if len(values) > 1 and np.ptp(values) > 0 else 0.0
