"""Text of models that judge an answer by one that is known to be good: each behind the prompt, one after the other."""

from __future__ import annotations

from typing import Any

from rm_plugins.conversation import Conversation, plain_text
from rm_plugins.errors import ConversationError, TextError
from rm_plugins.family import Explanation
from rm_plugins.text.control import ControlTokens
from rm_plugins.text.encoder import Encoded, explained, refuse_surrogates
from rm_plugins.text.reasoning import strip_reasoning
from rm_plugins.text.rules import TextRules


class ReferenceEncoder:
    """Writes prompt, reference, separator, prompt, answer and the token that is read; roles are not written.

    Too long, an answer and the reference keep their last quarter of the limit each, and the prompt its end.

    Args:
        tokenizer: the model's own.
        rules: the record's; `suffix` is the token that is read.
        column: data-set column with the reference: text, or messages whose contents are joined.
        separator: what stands between the reference and the second prompt.
    """

    def __init__(self, tokenizer: Any, rules: TextRules, column: str, separator: str) -> None:
        self.tokenizer = tokenizer
        self._rules, self._column, self._separator = rules, column, separator
        self._controls = ControlTokens(tokenizer, source=separator + rules.suffix)

    def encode(self, conversation: Conversation) -> Encoded:
        """Joins, guards, shortens and tokenizes.

        Raises:
            ConversationError: the row has no reference.
            TextError: a turn that is no text, or a limit that leaves no room for the prompt.
        """
        if (known := conversation.columns.get(self._column)) is None:
            raise ConversationError(f"The row has no {self._column!r} to compare the answer with.")
        answer, flags = conversation.answer, set()
        if self._rules.reasoning == "strip":
            stripped = strip_reasoning(answer)
            answer, flags = stripped.answer, {"truncated"} if stripped.truncated else set()
        texts = [_joined(conversation.messages[:-1]), _joined(known), answer]
        refuse_surrogates(texts)
        if any(self._controls.found_in(text) or self._separator in text for text in texts):
            flags.add("control_tokens")
        if not answer.strip():
            flags.add("empty")
        short = self._shortened(texts)
        if short != texts:
            flags.add("truncated")
        text, ids = self._write(*short)
        return Encoded(tuple(ids), (len(ids) - 1,), text, frozenset(flags))

    def explain(self, conversation: Conversation) -> Explanation:
        """What the model will see of the conversation."""
        return explained(self.tokenizer, self.encode(conversation))

    def _write(self, prompt: str, known: str, answer: str) -> tuple[str, list[int]]:
        bos, suffix = self.tokenizer.bos_token or "", self._rules.suffix
        mark = self._controls.mark_for([prompt, known, answer])
        prompt, known, answer = (self._controls.break_spellings(text, mark) for text in (prompt, known, answer))
        text = f"{bos}{prompt}\n{known}{self._separator}{prompt}\n{answer}{suffix}"
        return text.replace(mark, ""), self._controls.encode_marked(text, mark, add_special_tokens=False)

    def _shortened(self, texts: list[str]) -> list[str]:
        limit = self._rules.max_length
        if limit is None or len(self._write(*texts)[1]) <= limit:
            return texts
        prompt, *answers = texts
        answers = [self._end(text, limit // 4) for text in answers]
        frame = len(self._write("", *answers)[1])
        kept = [self._end(prompt, (limit - frame) // 2), *answers]
        if (left := len(self._write(*kept)[1])) > limit:
            raise TextError(f"The shortest form of the text has {left} tokens and max_length is {limit}.")
        return kept

    def _end(self, text: str, room: int) -> str:
        """The longest end of a text that is at most `room` tokens."""
        low, high = 0, len(text)
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if len(self._controls.encode_text(text[middle:])) <= room else (middle + 1, high)
        return text[low:]


def _joined(turns: Any) -> str:
    return turns if isinstance(turns, str) else "\n".join(plain_text(turn.get("content")) for turn in turns)
