"""Rewards against those of reference answers to the same prompt, which the same reward model gives, once each."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field, PrivateAttr
from scipy.special import expit, log_expit, ndtri

from rm_plugins.conversation import Conversation, Message
from rm_plugins.errors import OptionError
from rm_plugins.shaping.batch import Array, Batch, Rows, spread
from rm_plugins.shaping.step import Stage, Step

logger = logging.getLogger(__name__)


class Reference(Step):
    """Centres each reward on the rewards q of its references; without any it has no reward.

    `par`: mean of sigmoid(scale * (r - q)), in (0, 1) (Fu et al. 2025, arXiv 2502.18770). `lsc`: log sigmoid of
    r - the quantile of a normal fitted to the q, below 0; of one reference it is that reference. `subtract`: r - the
    mean of the q, which changes nothing for a trainer that centres each prompt's rewards itself.

    Attributes:
        column: of the data set; an answer, or a list of answers, each text or messages.
        rewards: the q themselves, the same for every prompt, in place of a column; `rm-plugins fit` finds them.
    """

    name: ClassVar[str] = "reference"
    stage: ClassVar[Stage] = "normalize"
    rule: Literal["par", "lsc", "subtract"] = "par"
    column: str = "reference"
    rewards: tuple[float, ...] = ()
    scale: float = Field(1.0, gt=0, allow_inf_nan=False)
    quantile: float = Field(0.85, gt=0, lt=1)
    _rated: dict[str, float | None] = PrivateAttr(default_factory=dict)

    def measure(self, rows: Rows) -> list[list[float]]:
        """Rewards of each row's references.

        Raises:
            OptionError: the rewards that are shaped cannot be asked of other answers.
        """
        if self.rewards:
            return [list(self.rewards)] * len(rows.conversations)
        if rows.rate is None:
            raise OptionError("shaping step 'reference': this reward cannot be asked of the references.")
        asked = [self._references(row) for row in rows.conversations]
        new = {_key(reference): reference for row in asked for reference in row}
        todo = [reference for key, reference in new.items() if key not in self._rated]
        if todo:
            self._rated.update(zip(map(_key, todo), rows.rate(todo), strict=True))
        found = [[self._rated[_key(reference)] for reference in row] for row in asked]
        if lost := sum(not any(value is not None for value in row) for row in found):
            logger.warning("%d of %d rows have no rewarded answer in column %r", lost, len(found), self.column)
        return [[value for value in row if value is not None] for row in found]

    def apply(self, batch: Batch) -> Array:
        """See the class."""
        references = [self.rewards] * len(batch.values) if self.rewards else batch.measured
        rows = zip(batch.values, references, strict=True)
        return np.array([self._centred(value, np.array(q)) if len(q) else np.nan for value, q in rows])

    def _centred(self, value: float, references: Array) -> float:
        if self.rule == "par":
            return float(np.mean(expit(self.scale * (value - references))))
        if self.rule == "subtract":
            return float(value - np.mean(references))
        level = np.mean(references) + ndtri(self.quantile) * spread(references)
        return float(log_expit(value - level))

    def _references(self, row: Conversation) -> list[Conversation]:
        given = row.columns.get(self.column)
        if given is None:
            return []
        several = not isinstance(given, str) and all(not isinstance(answer, dict) for answer in given)
        return [_answered(row, answer) for answer in (given if several else [given])]


def _answered(row: Conversation, answer: str | Sequence[Message]) -> Conversation:
    turns: Sequence[Message] = [{"role": "assistant", "content": answer}] if isinstance(answer, str) else answer
    return Conversation((*row.messages[:-1], *turns), row.columns)


def _key(conversation: Conversation) -> str:
    return json.dumps(conversation.messages, sort_keys=True, default=repr)
