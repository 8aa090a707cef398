"""A reward family of an outside project: the share of wanted words that an answer uses, in [0, 1].

`load_reward("keyword:whale,crab")` names the words; a data-set column `keywords` overrides them row by row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rm_plugins import Conversation, Family, Score, hookimpl
from rm_plugins.errors import ConversationError


class Keyword:
    """Scores answers by words; a row without words has no score."""

    def __init__(self, words: Sequence[str]) -> None:
        self.words = words

    def score(self, conversations: Sequence[Conversation], progress: object = None) -> list[Score]:
        """One score per conversation, in order."""
        return [self._score(conversation) for conversation in conversations]

    def _score(self, conversation: Conversation) -> Score:
        words = conversation.columns.get("keywords", self.words)
        if not words:
            return Score(None, error="no keywords were given")
        try:
            said = conversation.answer.lower()
        except ConversationError as error:  # a picture, say
            return Score(None, error=str(error))
        return Score(sum(word.lower() in said for word in words) / len(words))


@hookimpl
def rm_families() -> Iterable[Family]:
    """Yields the keyword family."""
    yield Family(
        name="keyword",
        kind="rule",
        summary="share of wanted words that an answer uses",
        load=lambda spec: Keyword([word for word in spec.target.split(",") if word]),
    )
