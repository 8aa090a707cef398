"""Which conversations are answers to one prompt, whatever the order of the rows."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from rm_plugins.conversation import Conversation
from rm_plugins.family import Progress

Distinct: TypeAlias = list[int]
"""The rows that give one and the same answer."""


def prompt_of(conversation: Conversation) -> str:
    """The same for the same prompt: every turn but the last."""
    return _name(conversation.messages[:-1])


def by_prompt(conversations: Sequence[Conversation]) -> list[list[Distinct]]:
    """For each prompt, in the order of their first rows, its different answers."""
    groups: dict[str, dict[str, Distinct]] = {}
    for row, conversation in enumerate(conversations):
        answers = groups.setdefault(prompt_of(conversation), {})
        answers.setdefault(_name(conversation.messages[-1]), []).append(row)
    return [list(answers.values()) for answers in groups.values()]


def rescaled(progress: Progress | None, of: int, into: int) -> Progress:
    """A progress of `of` things that tells `progress` of `into` things in proportion, all of them at the end."""
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        before, done = done, done + count
        if progress and (step := done * into // of - before * into // of):
            progress(step)

    return advance


def _name(messages: Sequence[Mapping[str, Any]] | Mapping[str, Any]) -> str:
    return json.dumps(messages, sort_keys=True, default=repr)
