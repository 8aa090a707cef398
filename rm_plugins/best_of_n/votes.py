"""Votes: candidates with the same extracted answer stand together."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from rm_plugins.best_of_n.pool import Array, Pool
from rm_plugins.best_of_n.rules import Selection, selection
from rm_plugins.errors import OptionError, ScoringError

Extract: TypeAlias = Callable[[str], str | None]
"""The answer that a text gives, in one form for all that are the same; None where it gives none."""


class Majority:
    """The answer that most candidates give; of those candidates the one with the highest reward, else the first.

    Equal numbers of votes are decided by the sum of the rewards, then their mean, then by what came first. A candidate
    without an answer has no vote.

    Args:
        extract: finds an answer in a text.
    """

    def __init__(self, extract: Extract) -> None:
        self._extract = extract

    def select(self, pool: Pool, rng: np.random.Generator) -> Selection:
        """See the class.

        Raises:
            ScoringError: no candidate gives an answer.
        """
        groups: dict[str, list[int]] = {}
        for index, candidate in enumerate(pool.candidates):
            if (answer := self._extract(candidate.text)) is not None:
                groups.setdefault(answer, []).append(index)
        if not groups:
            raise ScoringError(f"None of {len(pool)} candidates gives an answer to vote for.")
        rewards = self._rewards(pool)
        known = np.where(np.isnan(rewards), 0.0, rewards)
        strength = {answer: self._strength(known[rows]) for answer, rows in groups.items()}
        order = sorted(groups, key=lambda answer: (*strength[answer], -groups[answer][0]), reverse=True)
        ranking = [row for answer in order for row in sorted(groups[answer], key=lambda row: (-known[row], row))]
        certain = np.zeros(len(pool))
        certain[ranking[0]] = 1.0
        ties = sum(strength[answer][0] == strength[order[0]][0] for answer in order)
        return selection(pool, ranking[0], certain, ranking, ties=ties)

    def _rewards(self, pool: Pool) -> Array:
        return pool.rewards

    def _strength(self, rewards: Array) -> tuple[float, ...]:
        return (float(len(rewards)), float(rewards.sum()), float(rewards.mean()))


class WeightedMajority(Majority):
    """The answer whose candidates have the highest sum of rewards, which must not be negative.

    A sum of rewards depends on their zero: shifted, the same rewards elect another answer. Bring them to [0, 1] first,
    `Sigmoid()` in `shaping=` say.
    """

    def _rewards(self, pool: Pool) -> Array:
        rewards = pool.known_rewards()
        if (lowest := float(np.nanmin(rewards))) < 0:
            raise OptionError(
                f"A weighted vote adds rewards up and one is {lowest:.3g}; bring them to [0, 1] first, with Sigmoid()."
            )
        return rewards

    def _strength(self, rewards: Array) -> tuple[float, ...]:
        return (float(rewards.sum()), float(rewards.mean()), float(len(rewards)))


def boxed(text: str) -> str | None:
    r"""What the last \boxed{} of a text holds, without blanks; None if there is none.

    Args:
        text: an answer to a mathematical question.
    """
    start = text.rfind(r"\boxed{")
    if start < 0:
        return None
    depth, begin = 0, start + len(r"\boxed{")
    for place in range(begin - 1, len(text)):
        depth += (text[place] == "{") - (text[place] == "}")
        if depth == 0:
            return "".join(text[begin:place].split())
    return None
