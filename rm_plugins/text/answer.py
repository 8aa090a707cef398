"""The tokens of an answer, for models whose log-probabilities of it are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rm_plugins.conversation import Conversation, Message
from rm_plugins.engine.tree import agreement
from rm_plugins.errors import TextError
from rm_plugins.records import StepFacts
from rm_plugins.text.encoder import ChatEncoder, Encoded
from rm_plugins.text.rules import TextRules
from rm_plugins.text.steps import split_steps
from rm_plugins.text.truncate import shorten


@dataclass(frozen=True)
class Answer(Encoded):
    """A conversation read before every token of its answer.

    Attributes:
        ends: how many of those tokens the first step has, the first two, and so on; empty without steps.
    """

    ends: tuple[int, ...] = ()


class AnswerEncoder(ChatEncoder):
    """Writes conversations; what stands behind the template's opening of the answer is the answer, its end included.

    A token that spans both is the answer's. Where the prompt opens otherwise than the answer's own turn does, the
    answer begins where they part.

    Args:
        tokenizer: the model's own.
        rules: the record's rules.
        steps: for models that score steps, how the answer is cut into them.
        rewardbench: write what RewardBench writes: a BOS, or else an EOS, before the text and an EOS behind it,
            whatever the template wrote; the header of the answer's turn counts as answer.
    """

    def __init__(
        self, tokenizer: Any, rules: TextRules, steps: StepFacts | None = None, *, rewardbench: bool = False
    ) -> None:
        super().__init__(tokenizer, rules)
        self._steps = steps
        self._rewardbench = rewardbench

    def encode(self, conversation: Conversation) -> Answer:
        """Writes one conversation and finds its answer.

        Raises:
            TextError: the template refuses it, it cannot be made to fit, or the answer has no token or no step.
        """
        turns, flags = self._prepare(conversation)
        steps = split_steps(turns[-1]["content"], self._steps) if self._steps else []
        if self._steps:
            turns[-1] = {**turns[-1], "content": self._steps.separator.join(steps)}
        limit = self.rules.max_length
        if limit is not None and len(self._whole(turns)[1]) > limit:
            if steps:
                raise TextError(f"The conversation is longer than max_length={limit}, and its steps cannot be cut.")
            turns = shorten(turns, lambda t: self._whole(t)[1], limit)
            flags |= {"truncated"}
        text, ids = self._whole(turns)
        start, ends = self._first_and_ends(turns, ids, steps)
        if not 0 < start < len(ids):
            raise TextError("The answer has no token behind the prompt whose probability could be read.")
        read_at = tuple(range(start - 1, (ends[-1] if ends else len(ids)) - 1))
        marks = tuple(end - start for end in ends)
        return Answer(tuple(ids), read_at, text, flags, self._notes(turns, ids), marks)

    def _whole(self, turns: Sequence[Message], opening: bool = False) -> tuple[str, list[int]]:
        text, ids = self._write(turns, opening)
        if not self._rewardbench:
            return text, ids
        bos, eos = self.tokenizer.bos_token_id, self.tokenizer.eos_token_id
        return text, [eos if bos is None else bos, *ids, eos]

    def _first_and_ends(
        self, turns: Sequence[Message], ids: Sequence[int], steps: Sequence[str]
    ) -> tuple[int, tuple[int, ...]]:
        """Index of the answer's first token, and the index behind each step's last one."""
        if steps:
            return self._of_steps(turns, steps)
        prompt = self._whole(turns[:-1])[1][:-1] if self._rewardbench else self._whole(turns[:-1], opening=True)[1]
        return agreement(tuple(ids), tuple(prompt)), ()

    def _of_steps(self, turns: Sequence[Message], steps: Sequence[str]) -> tuple[int, tuple[int, ...]]:
        """Where the answer begins and each step ends, as the card of EurusPRM counts.

        Both lie a token off the text's own bounds: its indices are of the turn's end in a text that ends with the step.
        """
        assert self._steps
        separator = self._steps.separator
        joint = len(self.tokenizer(separator, add_special_tokens=False)["input_ids"])
        answers = [separator.join(steps[:n]) for n in range(len(steps) + 1)]
        lengths = [self._length([*turns[:-1], {**turns[-1], "content": text}]) for text in answers]
        return lengths[0] - 2, (*(length + joint for length in lengths[1:-1]), lengths[-1])

    def _length(self, turns: Sequence[Message]) -> int:
        """Number of tokens without the white space that ends the text."""
        ids = self._write(turns)[1]
        while ids and not self.tokenizer.decode(ids[-1:]).strip():
            ids = ids[:-1]
        return len(ids)
