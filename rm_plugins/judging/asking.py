"""Questions to a judge, and the protocol of what answers them, here or on a server."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from rm_plugins.conversation import Conversation, Message, plain_text
from rm_plugins.errors import ConversationError
from rm_plugins.family import Progress
from rm_plugins.judging.formats import Format
from rm_plugins.remote.parallel import Failure


@dataclass(frozen=True)
class Question:
    """What a judge is asked.

    Attributes:
        messages: the turns, the one that asks last.
        reasoning_role: role of the turn in which the judge thinks first, if it has one of its own.
    """

    messages: tuple[Message, ...]
    reasoning_role: str = ""

    def seed(self, sample: int = 0) -> int:
        """A seed that depends on the question's words and the sample's number alone, not on its place in a batch."""
        words = json.dumps([self.messages, sample], sort_keys=True, default=repr)
        return int.from_bytes(hashlib.sha256(words.encode()).digest()[:6], "big")


class Writer(Protocol):
    """Answers questions. A question that cannot be put or was not answered is a `Failure`; the others are not lost."""

    def write(
        self, questions: Sequence[Question], seeds: Sequence[int], progress: Progress | None = None
    ) -> list[str | Failure]:
        """What the judge says to each question, in order."""

    def log_odds(
        self, questions: Sequence[Question], before: Sequence[str], labels: tuple[str, str]
    ) -> list[float | Failure]:
        """Log p(first label) - log p(second) where the two part, after what the judge has said `before`."""


class Asker:
    """Makes questions of conversations.

    Args:
        form: the format.
        given: what the user gave for the places `rubric` and `principle`.
    """

    def __init__(self, form: Format, given: Mapping[str, str]) -> None:
        self.form, self._given = form, given

    def about(self, conversation: Conversation, other: Conversation | None = None) -> Question:
        """The question about one answer, or about two to the same prompt.

        Raises:
            ConversationError: content that is no text, or a row without the reference answer that the format shows.
        """
        *prompt, answer = conversation.messages
        values = dict(self._given) | {"question": transcript(prompt), "answer": plain_text(answer.get("content"))}
        if other:
            values |= {"first": values["answer"], "second": other.answer}
        if "reference" in self.form.places:
            values["reference"] = _reference(conversation)
        asks: Message = {"role": self.form.role, "content": self.form.fill(values)}
        return self.question([asks] if self.form.turns == "question" else [*conversation.messages, asks])

    def question(self, turns: Sequence[Message]) -> Question:
        """The question that the turns ask, with the format's system turn."""
        system: list[Message] = [{"role": "system", "content": self.form.system}] if self.form.system else []
        return Question((*system, *turns), self.form.reasoning_role)


def transcript(prompt: Sequence[Message]) -> str:
    """A prompt as text: the words of a single user turn; otherwise every turn under its role."""
    texts = [plain_text(turn.get("content")) for turn in prompt]
    if [turn["role"] for turn in prompt] == ["user"]:
        return texts[0]
    return "\n\n".join(f"{turn['role'].capitalize()}: {text}" for turn, text in zip(prompt, texts, strict=True))


def _reference(conversation: Conversation) -> str:
    if (reference := conversation.columns.get("reference")) is None:
        raise ConversationError("The row has no 'reference' column, and this judge is shown a reference answer.")
    return reference if isinstance(reference, str) else plain_text(reference[-1]["content"])
