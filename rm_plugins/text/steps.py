"""Answers in steps, for process models: what is written, and which token of each step is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rm_plugins.conversation import Conversation, Message, plain_text
from rm_plugins.errors import TextError
from rm_plugins.family import Explanation
from rm_plugins.records import StepFacts
from rm_plugins.text.control import ControlTokens
from rm_plugins.text.encoder import ChatEncoder, Encoded, explained, refuse_surrogates
from rm_plugins.text.reasoning import strip_reasoning
from rm_plugins.text.rules import TextRules
from rm_plugins.text.template import texts_of
from rm_plugins.text.truncate import shorten_prompt

_TOO_LONG = "The steps alone are longer than max_length={}; allow more tokens."


def single_token(tokenizer: Any, text: str) -> int:
    """The id of a text that is one token.

    Raises:
        TextError: it is several.
    """
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    if len(ids) != 1:
        raise TextError(f"{text!r} is {len(ids)} tokens of this tokenizer and must be one.")
    return int(ids[0])


def split_steps(answer: str, facts: StepFacts) -> list[str]:
    """The steps of an answer.

    Raises:
        TextError: there are none.
    """
    steps = answer.split(facts.separator) if facts.separator else [answer]
    if facts.separator and not facts.blank:
        steps = [step.strip() for step in steps if step.strip()]
    if not any(step.strip() for step in steps):
        raise TextError(f"The answer has no steps; the separator of steps is {facts.separator!r}.")
    return steps


class StepEncoder(ChatEncoder):
    """Writes steps with a chat template, and reads each at its tag, or before it where the tag is predicted.

    A tag that the prompt or a step spells is text and is never read.

    Args:
        tokenizer: the model's own.
        rules: the record's rules.
        facts: how steps are written, in the form `answer` or `turns`.

    Raises:
        TextError: the tag is no single token.
    """

    def __init__(self, tokenizer: Any, rules: TextRules, facts: StepFacts) -> None:
        super().__init__(tokenizer, rules)
        self._facts = facts
        self._tag = single_token(tokenizer, facts.tag)
        self._tags = (self._tag,)

    def encode(self, conversation: Conversation) -> Encoded:
        """Writes prompt and steps; a prompt that is too long loses its middle, steps lose nothing.

        Raises:
            TextError: there are no steps, they alone are too long, or a tag is no token of its own in the text.
        """
        (*prompt, answer), flags = self._prepare(conversation)
        steps = split_steps(answer["content"], self._facts)
        place = self._controls.mark_for(texts_of([*prompt, answer]))
        if self._facts.system and prompt[:1] and prompt[0]["role"] != "system":
            prompt = [{"role": "system", "content": self._facts.system}, *prompt]
        limit = self.rules.max_length
        seen = self._tagged(prompt, steps, place)
        if limit is not None and len(seen.ids) > limit:
            shorter = shorten_prompt(prompt, lambda turns: len(self._tagged(turns, steps, place).ids) <= limit)
            if shorter is None:
                raise TextError(_TOO_LONG.format(limit))
            seen, flags = self._tagged(shorter, steps, place), flags | {"truncated"}
        return replace(seen, flags=flags)

    def _tagged(self, prompt: Sequence[Message], steps: Sequence[str], place: str) -> Encoded:
        turns = self._turns(prompt, steps, place)
        text, mark, specials = self._marked(turns)
        ids, at = self._controls.encode_tagged(text, mark, place, self._facts.tag, add_special_tokens=specials)
        if lost := [step for step, i in zip(steps, at, strict=True) if i is None or ids[i] != self._tag]:
            raise TextError(f"{self._facts.tag!r} is no token of its own behind the step {lost[0]!r:.60}.")
        shift = 1 if self._facts.form == "turns" else 0
        read_at = tuple(i - shift for i in at if i is not None)
        shown = text.replace(mark, "") if mark else text
        return Encoded(tuple(self._finished(ids, False)), read_at, shown.replace(place, self._facts.tag))

    def _turns(self, prompt: Sequence[Message], steps: Sequence[str], place: str) -> list[Message]:
        facts = self._facts
        if facts.form == "answer":
            text = facts.join.join(f"{step}{facts.lead}{place}" for step in steps)
            return [*prompt, {"role": "assistant", "content": text}]
        first = {**prompt[-1], "content": f"{prompt[-1]['content']} {steps[0]}"}
        users = [first, *({"role": "user", "content": step} for step in steps[1:])]
        tagged: Message = {"role": "assistant", "content": place}
        return [*prompt[:-1], *(turn for user in users for turn in (user, tagged))]


class PieceEncoder:
    """Writes no template: a BOS where the tokenizer has one, the prompt, and each step and its tag, piece by piece.

    Args:
        tokenizer: the model's own.
        rules: the record's rules; only the longest text counts.
        facts: how steps are written, in the form `pieces`.

    Raises:
        TextError: the tag is no single token.
    """

    def __init__(self, tokenizer: Any, rules: TextRules, facts: StepFacts) -> None:
        self.tokenizer = tokenizer
        self._rules, self._facts = rules, facts
        self._tag = single_token(tokenizer, facts.tag)
        self._controls = ControlTokens(tokenizer)

    def encode(self, conversation: Conversation) -> Encoded:
        """Writes prompt and steps; as `StepEncoder.encode`."""
        prompt = [plain_text(turn.get("content")) for turn in conversation.messages[:-1]]
        answer = conversation.answer
        if self._rules.reasoning == "strip":
            answer = strip_reasoning(answer).answer
        refuse_surrogates([*prompt, answer])
        steps = split_steps(answer, self._facts)
        flags = {"turns_merged"} if len(prompt) > 1 else set()
        if any(map(self._controls.found_in, [*prompt, answer])):
            flags.add("control_tokens")
        question, limit = "\n\n".join(prompt), self._rules.max_length
        seen = self._joined(question, steps)
        if limit is not None and len(seen.ids) > limit:
            asked = [{"role": "user", "content": question}]
            shorter = shorten_prompt(asked, lambda t: len(self._joined(t[0]["content"], steps).ids) <= limit)
            if shorter is None:
                raise TextError(_TOO_LONG.format(limit))
            seen = self._joined(shorter[0]["content"], steps)
            flags.add("truncated")
        return replace(seen, flags=frozenset(flags))

    def explain(self, conversation: Conversation) -> Explanation:
        """What the model will see of the conversation."""
        return explained(self.tokenizer, self.encode(conversation))

    def _joined(self, question: str, steps: Sequence[str]) -> Encoded:
        bos, facts = self.tokenizer.bos_token_id, self._facts
        ids = [*([] if bos is None else [bos]), *self._controls.encode_text(question + facts.prompt_end)]
        read_at = []
        for step in steps:
            ids += [*self._controls.encode_text(step), self._tag]
            read_at.append(len(ids) - 1)
        start = "" if bos is None else self.tokenizer.bos_token
        text = start + question + facts.prompt_end + "".join(step + facts.tag for step in steps)
        return Encoded(tuple(ids), tuple(read_at), text)
