"""Text of encoders, which have no template: a question and its answer, each between the tokenizer's own marks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rm_plugins.conversation import Conversation, Message, plain_text
from rm_plugins.errors import TextError
from rm_plugins.family import Explanation
from rm_plugins.text.control import ControlTokens
from rm_plugins.text.encoder import Encoded, explained, refuse_surrogates
from rm_plugins.text.reasoning import strip_reasoning
from rm_plugins.text.rules import TextRules
from rm_plugins.text.truncate import shorten


class QuestionAnswerEncoder:
    """Writes `[CLS] question [SEP] answer [SEP]`, as a tokenizer does with two texts, and reads the first token.

    Several turns before the answer become one question, an empty line between them, flagged `turns_merged`. A mark that
    a text spells is text.

    Args:
        tokenizer: the model's own.
        rules: the record's rules; only the longest text and the treatment of reasoning count.

    Raises:
        TextError: the tokenizer has no [CLS] or no [SEP].
    """

    def __init__(self, tokenizer: Any, rules: TextRules) -> None:
        if tokenizer.cls_token_id is None or tokenizer.sep_token_id is None:
            raise TextError(f"{type(tokenizer).__name__} has no cls_token or no sep_token to put between two texts.")
        self.tokenizer = tokenizer
        self._rules = rules
        self._controls = ControlTokens(tokenizer)

    def encode(self, conversation: Conversation) -> Encoded:
        """Joins the turns, guards and tokenizes them; too long, the question loses its middle first.

        Raises:
            TextError, ConversationError: a turn that is no text, or a limit below the marks.
        """
        asked = [plain_text(turn.get("content")) for turn in conversation.messages[:-1]]
        answer, flags = conversation.answer, {"turns_merged"} if len(asked) > 1 else set()
        if self._rules.reasoning == "strip":
            stripped = strip_reasoning(answer)
            answer, flags = stripped.answer, flags | ({"truncated"} if stripped.truncated else set())
        refuse_surrogates([*asked, answer])
        if any(map(self._controls.found_in, [*asked, answer])):
            flags.add("control_tokens")
        if not answer.strip():
            flags.add("empty")
        turns: list[Message] = [
            {"role": "user", "content": "\n\n".join(asked)},
            {"role": "assistant", "content": answer},
        ]
        limit = self._rules.max_length
        if limit is not None and len(self._ids(turns)) > limit:
            turns, flags = shorten(turns, self._ids, limit), flags | {"truncated"}
        cls, sep = self.tokenizer.cls_token, self.tokenizer.sep_token
        text = cls + sep.join(turn["content"] for turn in turns) + sep
        return Encoded(tuple(self._ids(turns)), (0,), text, frozenset(flags))

    def explain(self, conversation: Conversation) -> Explanation:
        """What the model will see of the conversation."""
        return explained(self.tokenizer, self.encode(conversation))

    def _ids(self, turns: Sequence[Message]) -> list[int]:
        ids = [self.tokenizer.cls_token_id]
        for turn in turns:
            ids += [*self._controls.encode_text(turn["content"]), self.tokenizer.sep_token_id]
        return ids
