"""A tokenizer's chat template: rendering with a frozen clock, and what it can take, found by trying."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any

from rm_plugins.conversation import Message
from rm_plugins.errors import TextError

_TODAY = datetime(2024, 7, 26)
"""The day every template sees; it is the default that the Llama 3.1 template falls back on."""


def _with_frozen_clock(template: str) -> str:
    """The template with its clock replaced by a macro that knows one day; transformers passes no functions on."""
    if "strftime_now" not in template:
        return template
    swaps = "".join(f".replace('%{letter}', '{_TODAY.strftime('%' + letter)}')" for letter in "aAbBdHIjmMpSUwWyY")
    return "{%- macro strftime_now(pattern) -%}{{ pattern" + swaps + " }}{%- endmacro -%}" + template


class ChatTemplate:
    """Renders messages with a template: the tokenizer's own, unless another one is given.

    The clock stands still, so that a template which writes the date gives the same text on any day.

    Raises:
        TextError: the tokenizer has no chat template, or the template refuses the messages.
    """

    def __init__(self, tokenizer: Any, source: str | None = None) -> None:
        if not (source or getattr(tokenizer, "chat_template", None)):
            raise TextError(
                f"The tokenizer of {getattr(tokenizer, 'name_or_path', '')!r} has no chat template, so a conversation "
                "cannot be written the way its reward model was trained. Set tokenizer.chat_template in its folder."
            )
        self._tokenizer = tokenizer
        self.source = _with_frozen_clock(source or tokenizer.get_chat_template())

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = False) -> str:
        """Text of the messages, as the model would see it."""
        from jinja2 import TemplateError

        try:
            return str(
                self._tokenizer.apply_chat_template(
                    [dict(message) for message in messages],
                    tokenize=False,
                    add_generation_prompt=add_generation_prompt,
                    chat_template=self.source,
                )
            )
        except (TemplateError, TypeError, ValueError, KeyError, IndexError) as error:
            roles = ", ".join(str(message["role"]) for message in messages)
            raise TextError(f"The chat template refuses the turns [{roles}]: {error}") from error

    def shows(self, *messages: Message, expect: Sequence[str]) -> bool:
        """Whether the template takes the messages and writes every expected string, in order."""
        try:
            text = self.render(messages)
        except TextError:
            return False
        position = 0
        for needle in expect:
            if (found := text.find(needle, position)) < 0:
                return False
            position = found + len(needle)
        return True

    @cached_property
    def has_system(self) -> bool:
        """The template writes a system turn."""
        return self.shows(_turn("system", "S1"), _turn("user", "U1"), _turn("assistant", "A1"), expect=_said("SUA"))

    @cached_property
    def has_repeats(self) -> bool:
        """The template takes two turns of one role in a row."""
        user, answer = _turn("user", "U1"), _turn("assistant", "A1")
        return self.shows(user, user, answer, answer, expect=_said("UUAA"))

    @cached_property
    def has_tools(self) -> bool:
        """The template writes tool calls and tool results."""
        call = {"type": "function", "function": {"name": "fnc1", "arguments": {"arg1": "val1"}}}
        calling = {"role": "assistant", "content": "", "tool_calls": [call]}
        result = {"role": "tool", "name": "fnc1", "content": "R1R1"}
        turns = (_turn("user", "U1"), calling, result, _turn("assistant", "A1"))
        return self.shows(*turns, expect=("U1U1", "fnc1", "val1", "R1R1", "A1A1"))

    @cached_property
    def has_reasoning(self) -> bool:
        """The template writes the `reasoning_content` of the last turn."""
        thinking = {**_turn("assistant", "A1"), "reasoning_content": "R1R1"}
        return self.shows(_turn("user", "U1"), thinking, expect=_said("URA"))

    @cached_property
    def added_system(self) -> str:
        """What the template writes before the first turn when no system message is given, specials included."""
        return self.render([_turn("user", "U1"), _turn("assistant", "A1")]).split("U1U1")[0]

    @cached_property
    def turn_change(self) -> str:
        """What stands between a user's words and the answer to them."""
        return self.render([_turn("user", "U1"), _turn("assistant", "A1")]).split("U1U1")[1].split("A1A1")[0]


def _turn(role: str, word: str) -> Message:
    return {"role": role, "content": word * 2}


def _said(letters: str) -> list[str]:
    return [f"{letter}1{letter}1" for letter in letters]


Edit = Callable[[str], str]
"""A change to every text of a message list."""


def map_texts(messages: Sequence[Message], edit: Edit) -> list[Message]:
    """Applies an edit to every string a template could write: content, tool calls and their keys, names, reasoning."""
    return [{key: value if key == "role" else _map(value, edit) for key, value in m.items()} for m in messages]


def _map(value: Any, edit: Edit) -> Any:
    if isinstance(value, str):
        return edit(value)
    if isinstance(value, dict):
        return {_map(key, edit): _map(item, edit) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_map(item, edit) for item in value]
    return value


def texts_of(messages: Sequence[Message]) -> list[str]:
    """Every string that `map_texts` would edit."""
    found: list[str] = []

    def keep(text: str) -> str:
        found.append(text)
        return text

    map_texts(messages, keep)
    return found
