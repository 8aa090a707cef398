"""Terms that depend on the form of an answer: whether it ended, repeats itself, or pleases another reward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field, PrivateAttr

from rm_plugins.errors import OptionError
from rm_plugins.shaping.batch import Array, Batch, Rows, spread
from rm_plugins.shaping.step import Stage, Step


class MissingEnd(Step):
    """What an answer loses that the policy did not end itself. Only the completion's ids are looked at.

    `subtract`: r - amount. `replace`: the reward becomes -amount. `floor`: it becomes -amount if it was higher. In
    units of `spread` the amount counts in standard deviations of the rewards of its prompt's answers, and `replace` and
    `floor` count from their mean: TRL's usual 1.0 in units of `reward` can outweigh all that the rewards say.

    Attributes:
        eos_token_id: ids that end an answer; by default the policy tokenizer's, which `reward.callback()` learns.
    """

    name: ClassVar[str] = "missing_end"
    stage: ClassVar[Stage] = "penalty"
    rule: Literal["subtract", "replace", "floor"] = "subtract"
    amount: float = Field(1.0, gt=0, allow_inf_nan=False)
    unit: Literal["spread", "reward"] = "spread"
    eos_token_id: int | tuple[int, ...] | None = None

    def measure(self, rows: Rows) -> list[bool]:
        """Whether each answer lacks its end.

        Raises:
            OptionError: no completion ids, or nobody says which ids end an answer.
        """
        given = self.eos_token_id
        ends = rows.eos if given is None else {given} if isinstance(given, int) else set(given)
        if rows.completion_ids is None or not ends:
            lacking = (
                "completion ids, which this caller does not pass" if ends else "eos_token_id= or reward.callback()"
            )
            raise OptionError(f"shaping step 'missing_end' needs {lacking}.")
        return [not ends.intersection(ids) for ids in rows.completion_ids]

    def apply(self, batch: Batch) -> Array:
        """See the class."""
        in_spread = self.unit == "spread"
        amount = self.amount * (batch.each(lambda v: np.full(len(v), spread(v))) if in_spread else 1.0)
        level = (batch.each(lambda v: np.full(len(v), v.mean())) if in_spread else 0.0) - amount
        changed = {
            "subtract": batch.values - amount,
            "replace": np.where(np.isnan(batch.values), np.nan, level),
            "floor": np.minimum(batch.values, level),
        }[self.rule]
        return np.where(np.array(batch.measured, dtype=bool), changed, batch.values)


class Repetition(Step):
    """r - weight * (1 - different n-grams / n-grams) of the policy's token ids, or of words where there are none.

    Attributes:
        size: tokens of an n-gram; an answer shorter than that repeats nothing.
    """

    name: ClassVar[str] = "repetition"
    stage: ClassVar[Stage] = "penalty"
    size: int = Field(3, ge=1)
    weight: float = Field(1.0, gt=0, allow_inf_nan=False)

    def measure(self, rows: Rows) -> list[float]:
        """Share of n-grams of each answer that were there before: in [0, 1)."""
        answers: Sequence[Sequence[Any]] = rows.completion_ids or [row.answer.split() for row in rows.conversations]
        return [self._repeated(answer) for answer in answers]

    def _repeated(self, answer: Sequence[Any]) -> float:
        grams = [tuple(answer[start : start + self.size]) for start in range(len(answer) - self.size + 1)]
        return 1 - len(set(grams)) / len(grams) if grams else 0.0

    def apply(self, batch: Batch) -> Array:
        """See the class."""
        return batch.values - self.weight * batch.numbers()


class Term(Step):
    """r + weight * another reward of the same answer: a format rule, say; without that reward there is none.

    Attributes:
        reward: what `load_reward` takes: "verifiable:format".
        options: of that reward's family.
    """

    name: ClassVar[str] = "term"
    stage: ClassVar[Stage] = "penalty"
    reward: str
    weight: float = Field(1.0, allow_inf_nan=False)
    options: dict[str, Any] = Field(default_factory=dict)
    _loaded: Any = PrivateAttr(None)

    def measure(self, rows: Rows) -> list[float | None]:
        """The other rewards."""
        if self._loaded is None:
            from rm_plugins.reward.load import load_reward

            self._loaded = load_reward(self.reward, **self.options)
        return [score.value for score in self._loaded.score(rows.conversations)]

    def apply(self, batch: Batch) -> Array:
        """See the class."""
        return batch.values + self.weight * batch.numbers()
