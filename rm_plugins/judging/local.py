"""A judge that runs here: a language model that writes, and is asked how likely two verdicts are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rm_plugins.conversation import Message
from rm_plugins.engine.generation import Generator
from rm_plugins.engine.runner import Engine
from rm_plugins.engine.tree import agreement
from rm_plugins.engine.vocabulary import VocabularyHead
from rm_plugins.errors import ConversationError, OptionError, TextError
from rm_plugins.family import Progress
from rm_plugins.judging.asking import Question
from rm_plugins.remote.parallel import Failure
from rm_plugins.text.encoder import ChatEncoder, Encoded
from rm_plugins.text.reasoning import CLOSE, OPEN
from rm_plugins.text.rules import TextRules


class LocalWriter:
    """Implements `Writer` with a transformers model.

    Args:
        model: a causal language model.
        tokenizer: its own.
        rules: its record's; a question and the longest answer to it must fit in their `max_length`.
        max_new_tokens: most tokens of an answer; a judge that thinks in a turn of its own may use as many for it.
        temperature: 0 for the likeliest tokens.
        max_tokens_in_flight: as in `Engine`.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        rules: TextRules,
        *,
        max_new_tokens: int,
        temperature: float,
        max_tokens_in_flight: int | None = None,
    ) -> None:
        room = None if rules.max_length is None else rules.max_length - max_new_tokens
        if room is not None and room < 1:
            raise OptionError(
                f"max_new_tokens={max_new_tokens} leaves no room for a question: the model reads {rules.max_length} "
                "tokens."
            )
        self.encoder = ChatEncoder(tokenizer, replace(rules, max_length=room))
        self._engine = Engine(model.base_model, max_tokens_in_flight=max_tokens_in_flight)
        self._generator = Generator(model, tokenizer)
        self._head = VocabularyHead(model)
        self._new, self._temperature = max_new_tokens, temperature

    def write(
        self, questions: Sequence[Question], seeds: Sequence[int], progress: Progress | None = None
    ) -> list[str | Failure]:
        """Answers in order; one that thought in a turn of its own begins with it, in <think> tags."""
        if not any(question.reasoning_role for question in questions):
            prompts = [self._encoded(question.messages) for question in questions]
            return self._written(prompts, seeds, progress)
        openings = [self._encoded(question.messages, question.reasoning_role) for question in questions]
        thoughts = self._written(openings, seeds, None)
        prompts = [self._behind(question, thought) for question, thought in zip(questions, thoughts, strict=True)]
        said = self._written(prompts, seeds, progress)
        return [
            text if isinstance(text, Failure) else f"{OPEN}{thought}{CLOSE}{text}"
            for thought, text in zip(thoughts, said, strict=True)
        ]

    def log_odds(
        self, questions: Sequence[Question], before: Sequence[str], labels: tuple[str, str]
    ) -> list[float | Failure]:
        """Compares the two tokens in which the labels differ, behind all that they share."""
        found: list[float | Failure] = [Failure("not asked")] * len(questions)
        asked: dict[tuple[int, int], list[tuple[int, Encoded]]] = {}
        for row, (question, text) in enumerate(zip(questions, before, strict=True)):
            prompt, said = self._continued(question, text)
            if isinstance(prompt, Failure):
                found[row] = prompt
                continue
            first, second = ((*prompt.ids, *self.encoder.encode_continuation(said + label)) for label in labels)
            place = agreement(first, second)
            targets = first[place], second[place]
            asked.setdefault(targets, []).append((row, Encoded(first[:place], (place - 1,), "")))
        for targets, rows in asked.items():
            values = self._engine.log_probs([seen for _, seen in rows], self._head, list(targets))
            for (row, _), value in zip(rows, values, strict=True):
                found[row] = (value[0, 0] - value[0, 1]).item()
        return found

    def _continued(self, question: Question, text: str) -> tuple[Encoded | Failure, str]:
        """The prompt, and what the judge has said behind it."""
        if not question.reasoning_role:
            return self._encoded(question.messages), text
        thought, _, said = text.removeprefix(OPEN).rpartition(CLOSE)
        return self._behind(question, thought), said

    def _behind(self, question: Question, thought: str | Failure) -> Encoded | Failure:
        if isinstance(thought, Failure):
            return thought
        return self._encoded((*question.messages, {"role": question.reasoning_role, "content": thought}))

    def _encoded(self, messages: Sequence[Message], role: str = "") -> Encoded | Failure:
        try:
            return self.encoder.encode_prompt(messages, add_generation_prompt=True, role=role)
        except (TextError, ConversationError) as error:
            return Failure(str(error))

    def _written(
        self, prompts: Sequence[Encoded | Failure], seeds: Sequence[int], progress: Progress | None
    ) -> list[str | Failure]:
        ready = [(prompt.ids, seed) for prompt, seed in zip(prompts, seeds, strict=True) if isinstance(prompt, Encoded)]
        if progress and len(ready) < len(prompts):
            progress(len(prompts) - len(ready))
        texts = self._generator.write(
            [ids for ids, _ in ready],
            max_new_tokens=self._new,
            temperature=self._temperature,
            seeds=[seed for _, seed in ready],
            progress=progress,
        )
        left = iter(texts)
        return [next(left) if isinstance(prompt, Encoded) else prompt for prompt in prompts]
