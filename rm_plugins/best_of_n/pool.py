"""Candidates: what a policy answered to one prompt, and what is known of each answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rm_plugins.conversation import Conversation, Message
from rm_plugins.errors import ScoringError
from rm_plugins.family import Score

Array: TypeAlias = NDArray[np.float64]
Finish: TypeAlias = Literal["stop", "length", ""]


@dataclass(frozen=True)
class Candidate:
    """One answer.

    Attributes:
        text: decoded.
        ids: token ids, the end of sequence included if there was one; empty where a server gives none.
        finish: `stop` if the policy ended it, `length` if it was cut, "" where that is not known.
        log_prob: sum of its tokens' log-probabilities under the distribution that was sampled; None if not known.
        certainty: mean self-certainty of its tokens (Kang et al. 2025, arXiv 2502.18581); None if not known.
        score: what the reward model says; None before it was asked.
    """

    text: str
    ids: tuple[int, ...] = ()
    finish: Finish = ""
    log_prob: float | None = None
    certainty: float | None = None
    score: Score | None = None

    @property
    def length(self) -> int:
        """Tokens, or characters where the tokens are not known."""
        return len(self.ids) or len(self.text)


@dataclass(frozen=True)
class Pool:
    """All candidates for one prompt, in the order in which they were drawn.

    Attributes:
        prompt: the turns that were answered.
        candidates: at least one.
        columns: data-set columns of the prompt's row.
    """

    prompt: tuple[Message, ...]
    candidates: tuple[Candidate, ...]
    columns: dict[str, object] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.candidates)

    @property
    def rewards(self) -> Array:
        """(n,) of the candidates, NaN for one that failed or was not asked about."""
        values = [candidate.score.value if candidate.score else None for candidate in self.candidates]
        return np.array([np.nan if value is None else value for value in values], dtype=np.float64)

    @property
    def conversations(self) -> list[Conversation]:
        """What a reward model judges, one for each candidate."""
        return [
            Conversation((*self.prompt, {"role": "assistant", "content": candidate.text}), self.columns)
            for candidate in self.candidates
        ]

    def known_rewards(self) -> Array:
        """`rewards`, of which at least one is known.

        Raises:
            ScoringError: all of them failed; it says why.
        """
        rewards = self.rewards
        if np.isnan(rewards).all():
            raise ScoringError(f"None of {len(self)} candidates has a reward: {self._causes()}.")
        return rewards

    def _causes(self) -> str:
        errors = [c.score.error or "no value" if c.score else "not asked" for c in self.candidates]
        counts = {error: errors.count(error) for error in dict.fromkeys(errors)}
        return "; ".join(f"{error} ({count}x)" for error, count in counts.items())


def numbers(pool: Pool, name: Literal["log_prob", "certainty"]) -> Array:
    """A number of each candidate, (n,), NaN where it is not known.

    Raises:
        ScoringError: no candidate has it.
    """
    found: Sequence[float | None] = [getattr(candidate, name) for candidate in pool.candidates]
    if all(value is None for value in found):
        raise ScoringError(f"No candidate has a {name}; the policy that drew them gives none.")
    return np.array([np.nan if value is None else value for value in found], dtype=np.float64)
