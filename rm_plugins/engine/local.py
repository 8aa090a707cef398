"""A reward model that runs here: encoder, engine and head, joined."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol, TypeAlias

from torch import Tensor

from rm_plugins.conversation import Conversation
from rm_plugins.engine.runner import Engine
from rm_plugins.engine.store import ScoreStore
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


_WINDOW = 1024
"""Conversations encoded and run together; what is held at once does not grow with how many there are."""


class LocalModel:
    """Implements `RewardModel` for a family that is an encoder, a backbone and a head.

    Identical conversations of a call are encoded and scored once. With a store, what it holds is not computed again.
    """

    def __init__(self, encoder: Encoder, engine: Engine, head: Head) -> None:
        self.encoder = encoder
        self.engine = engine
        self.store: ScoreStore | None = None
        self._head = head

    def score(self, conversations: Sequence[Conversation], progress: Progress | None = None) -> list[Score]:
        """Scores in order; a conversation the text rules refuse has no value, the flag `failed` and the reason."""
        scores: list[Score] = []
        for start in range(0, len(conversations), _WINDOW):
            scores += self._window(conversations[start : start + _WINDOW], progress)
        return scores

    def explain(self, conversation: Conversation) -> Explanation:
        """What the model will see."""
        return self.encoder.explain(conversation)

    def _window(self, conversations: Sequence[Conversation], progress: Progress | None) -> list[Score]:
        names = [json.dumps(c.messages, sort_keys=True, default=repr) for c in conversations]
        unique = dict(zip(names, conversations, strict=True))
        seen = {name: self._encode(conversation) for name, conversation in unique.items()}
        readable = [encoded for encoded in seen.values() if isinstance(encoded, Encoded)]
        known = self.store.find(readable) if self.store else {}
        todo = [encoded for encoded in readable if encoded not in known]
        if progress:
            progress(len(conversations) - len(todo))
        fresh = {e: self._head(state) for e, state in zip(todo, self.engine.hidden(todo, progress), strict=True)}
        if self.store:
            self.store.keep(fresh)
        found = known | fresh
        return [_flagged(found[e], e) if isinstance(e := seen[name], Encoded) else e for name in names]

    def _encode(self, conversation: Conversation) -> Encoded | Score:
        try:
            return self.encoder.encode(conversation)
        except (TextError, ConversationError) as error:
            return Score(None, flags=frozenset({"failed"}), error=str(error))


def _flagged(score: Score, encoded: Encoded) -> Score:
    return replace(score, flags=score.flags | encoded.flags)
