"""One conversation in, the reward model's own token ids and read positions out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from rm_plugins.conversation import Conversation, Message
from rm_plugins.errors import TextError
from rm_plugins.family import Explanation
from rm_plugins.records import BosPolicy
from rm_plugins.text.bos import apply_bos, derive_policy, leading_bos
from rm_plugins.text.control import ControlTokens
from rm_plugins.text.locate import Locate
from rm_plugins.text.reasoning import strip_reasoning
from rm_plugins.text.roles import fit_roles
from rm_plugins.text.rules import TextRules
from rm_plugins.text.template import ChatTemplate, map_texts, texts_of
from rm_plugins.text.truncate import shorten

_PROMPTS = 64
"""Prompts whose ids are remembered; answers to one prompt come together."""
_SURROGATE = re.compile("[\ud800-\udfff]")
_PLACE = "\U0010ffff"
"""Stands for words that are still to be written."""
_PROBE: tuple[Message, ...] = tuple({"role": r, "content": "x"} for r in ("user", "assistant", "user", "assistant"))


@dataclass(frozen=True)
class Encoded:
    """A conversation as the model reads it.

    Attributes:
        ids: token ids, without padding.
        read_at: positions in `ids` whose hidden state the head reads.
        text: the rendered text.
        flags: see `Score.flags`.
        notes: choices made on the way, one sentence each.
    """

    ids: tuple[int, ...]
    read_at: tuple[int, ...]
    text: str
    flags: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()


def explained(tokenizer: Any, seen: Encoded) -> Explanation:
    """What was encoded, for a person."""
    tokens = tuple(tokenizer.decode([i]) for i in seen.ids)
    return Explanation(seen.text, seen.ids, tokens, seen.read_at, seen.flags, seen.notes)


def refuse_surrogates(texts: Iterable[str]) -> None:
    """Raises TextError for half of a surrogate pair."""
    if any(map(_SURROGATE.search, texts)):
        raise TextError("The text holds half of a surrogate pair, which is no character and has no tokens.")


class ChatEncoder:
    """Writes conversations with a chat template.

    Args:
        tokenizer: the reward model's own.
        rules: the record's rules.
        locate: the positions to read, where it is not just the one that the rules pool.

    Raises:
        TextError: there is no chat template, or the suffix is no token of its own.
    """

    _tags: tuple[int, ...] = ()
    """Ids that are written beside the template's own."""

    def __init__(self, tokenizer: Any, rules: TextRules, locate: Locate | None = None) -> None:
        self.tokenizer = tokenizer
        self.rules = rules
        self._template = ChatTemplate(tokenizer, rules.template)
        self._locate = locate or (lambda ids, pooled: (pooled,))
        if rules.suffix and len(tokenizer(rules.suffix, add_special_tokens=False)["input_ids"]) != 1:
            raise TextError(f"The text must end in {rules.suffix!r}, which is no single token of this tokenizer.")
        self._head_ids = lru_cache(maxsize=_PROMPTS)(self._ids_of)

    @cached_property
    def _controls(self) -> ControlTokens:
        ids = self.tokenizer(self._render(_PROBE), add_special_tokens=False)["input_ids"]
        return ControlTokens(self.tokenizer, [*ids, *self._tags], self._template.source)

    @cached_property
    def bos(self) -> BosPolicy:
        """The BOS policy in force."""
        if self.rules.bos != "derive":
            return self.rules.bos
        return derive_policy(self.tokenizer, self._render(_PROBE))

    def encode(self, conversation: Conversation) -> Encoded:
        """Renders, guards, tokenizes and if need be shortens one conversation.

        Raises:
            TextError: the template refuses it, or it cannot be made to fit.
        """
        turns, flags = self._prepare(conversation)
        text, ids = self._write(turns)
        limit = self.rules.max_length
        if limit is not None and len(ids) > limit:
            text, ids = self._write(shorten(turns, lambda t: self._write(t)[1], limit))
            flags |= {"truncated"}
        if not ids:
            raise TextError("The conversation became no tokens at all; there is nothing to read a score from.")
        at = self._locate(ids, self.rules.position(ids))
        return Encoded(tuple(ids), at, text, flags, self._notes(turns, ids))

    def encode_prompt(
        self, messages: Sequence[Message], *, add_generation_prompt: bool = False, role: str = ""
    ) -> Encoded:
        """Writes turns that no answer ends, a question to a judge say, guarded as `encode` does; the last id is read.

        Args:
            messages: the turns, whole.
            add_generation_prompt: whether the template opens the turn that is to be written.
            role: opens a turn of this role instead, one that no generation prompt knows.

        Raises:
            TextError: the template refuses the turns, or they are longer than the model reads: only the caller knows
                what may be cut.
        """
        turns, flags = self._guard(*fit_roles(messages, self._template, self.rules.system))
        text, ids = self._write(turns, role or add_generation_prompt)
        if self.rules.max_length is not None and len(ids) > self.rules.max_length:
            raise TextError(f"The prompt has {len(ids)} tokens and max_length is {self.rules.max_length}.")
        return Encoded(tuple(ids), (len(ids) - 1,), text, flags, self._notes(turns, ids))

    def encode_continuation(self, text: str) -> list[int]:
        """Token ids of what an opened turn goes on with."""
        return self._controls.encode_text(text)

    def explain(self, conversation: Conversation) -> Explanation:
        """What the model will see of the conversation."""
        return explained(self.tokenizer, self.encode(conversation))

    def _prepare(self, conversation: Conversation) -> tuple[list[Message], frozenset[str]]:
        turns, flags = fit_roles(conversation.messages, self._template, self.rules.system)
        if self.rules.reasoning == "strip":
            stripped = strip_reasoning(turns[-1]["content"])
            turns[-1] = {**turns[-1], "content": stripped.answer, "reasoning_content": ""}
            flags |= {"truncated"} if stripped.truncated else frozenset()
        if not turns[-1]["content"].strip() and not turns[-1].get("tool_calls"):
            flags |= {"empty"}
        return self._guard(turns, flags)

    def _guard(self, turns: list[Message], flags: frozenset[str]) -> tuple[list[Message], frozenset[str]]:
        """Refuses what can be no text, and says if a text spells a control token."""
        if forged := [turn["role"] for turn in turns if self._controls.found_in(turn["role"])]:
            raise TextError(f"The role {forged[0]!r} spells a control token of the reward model.")
        texts = texts_of(turns)
        refuse_surrogates(texts)
        if any(map(self._controls.found_in, texts)):
            flags |= {"control_tokens"}
        return turns, flags

    def _render(self, turns: Sequence[Message], opening: bool | str = False) -> str:
        if isinstance(opening, str):
            return self._template.render([*turns, {"role": opening, "content": _PLACE}]).partition(_PLACE)[0]
        text = self._template.render(turns, add_generation_prompt=opening)
        return text if opening or text.endswith(self.rules.suffix) else text + self.rules.suffix

    def _write(self, turns: Sequence[Message], opening: bool | str = False) -> tuple[str, list[int]]:
        text, mark, specials = self._marked(turns, opening)
        if not mark:
            return text, self._finished(self._tokenize(text, specials), opening)
        ids = self._controls.encode_marked(text, mark, add_special_tokens=specials)
        return text.replace(mark, ""), self._finished(ids, opening)

    def _marked(self, turns: Sequence[Message], opening: bool | str = False) -> tuple[str, str, bool]:
        """The text, the mark that breaks control tokens in it ("" if there are none), and whether to add specials."""
        texts, mark = texts_of(turns), ""
        if any(map(self._controls.found_in, texts)):
            mark = self._controls.mark_for(texts)
            turns = map_texts(turns, lambda text: self._controls.break_spellings(text, mark))
        text, specials = apply_bos(self._render(turns, opening), self.tokenizer.bos_token, self.bos)
        return text, mark, specials

    def _tokenize(self, text: str, specials: bool) -> list[int]:
        """Ids of clean text. What stands before its last turn is tokenized once for all the answers to it."""
        cut = self._controls.last_boundary(text) if self._adds_no_end or not specials else 0
        tail = self._ids_of(text[cut:], specials and not cut)
        return [*self._head_ids(text[:cut], specials), *tail] if cut else list(tail)

    def _ids_of(self, text: str, specials: bool) -> tuple[int, ...]:
        return tuple(self.tokenizer(text, add_special_tokens=specials)["input_ids"])

    @cached_property
    def _adds_no_end(self) -> bool:
        """The tokenizer's own specials, if any, stand before the text."""
        plain = self._ids_of("x", False)
        return self._ids_of("x", True)[-len(plain) :] == plain

    def _finished(self, ids: list[int], opening: bool | str) -> list[int]:
        count, allowed = leading_bos(ids, self.tokenizer.bos_token_id), 2 if self.bos == "keep" else 1
        if count > allowed:
            raise TextError(
                f"The text starts with {count} BOS tokens and bos={self.bos!r} allows {allowed}; choose another bos=."
            )
        eos = self.tokenizer.eos_token_id
        return [*ids, eos] if self.rules.eos == "append" and not opening and ids[-1:] != [eos] else ids

    def _notes(self, turns: Sequence[Message], ids: Sequence[int]) -> tuple[str, ...]:
        bos = leading_bos(list(ids), self.tokenizer.bos_token_id)
        notes = [f"BOS policy {self.bos!r}: the text starts with {bos} BOS."]
        if turns[0]["role"] != "system" and "system" in self._template.added_system:
            added = self._template.added_system
            notes.append(f"The template added text before the first turn: {added!r}.")
        if (position := self.rules.position(ids)) != len(ids) - 1:
            notes.append(f"The text has the pad token in it, so position {position} of {len(ids)} is read.")
        return tuple(notes)
