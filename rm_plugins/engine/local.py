"""A reward model that runs here: encoder, engine and head, joined."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from torch import Tensor

from rm_plugins.conversation import Conversation
from rm_plugins.engine.runner import Engine
from rm_plugins.errors import ConversationError, TextError
from rm_plugins.family import Explanation, Progress, Score
from rm_plugins.text.encoder import Encoded

Head: TypeAlias = Callable[[Tensor], Score]
"""Takes the float32 hidden states (positions, hidden) of one conversation and returns its score, without flags."""


class Encoder(Protocol):
    """Turns a conversation into ids and read positions; raises TextError or ConversationError where it cannot."""

    def encode(self, conversation: Conversation) -> Encoded:
        """Encodes one conversation."""

    def explain(self, conversation: Conversation) -> Explanation:
        """Shows what `encode` made."""


class LocalModel:
    """Implements `RewardModel` for a family that is an encoder, a backbone and a head."""

    def __init__(self, encoder: Encoder, engine: Engine, head: Head) -> None:
        self.encoder = encoder
        self.engine = engine
        self._head = head

    def score(self, conversations: Sequence[Conversation], progress: Progress | None = None) -> list[Score]:
        """Scores in order; a conversation the text rules refuse has no value, the flag `failed` and the reason."""
        seen = [self._encode(conversation) for conversation in conversations]
        states = iter(self.engine.hidden([e for e in seen if isinstance(e, Encoded)], progress))
        return [self._read(e, next(states)) if isinstance(e, Encoded) else e for e in seen]

    def explain(self, conversation: Conversation) -> Explanation:
        """What the model will see."""
        return self.encoder.explain(conversation)

    def _encode(self, conversation: Conversation) -> Encoded | Score:
        try:
            return self.encoder.encode(conversation)
        except (TextError, ConversationError) as error:
            return Score(None, flags=frozenset({"failed"}), error=str(error))

    def _read(self, encoded: Encoded, state: Tensor) -> Score:
        score = self._head(state)
        return Score(score.value, score.parts, score.steps, score.flags | encoded.flags, score.error)
