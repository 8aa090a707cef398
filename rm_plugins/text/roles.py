"""Gives a template only turns it can write: no None content, and stated treatments for system, tool and equal roles."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from rm_plugins.conversation import Message, plain_text
from rm_plugins.errors import TextError
from rm_plugins.records import SystemPolicy
from rm_plugins.text.reasoning import CLOSE, OPEN
from rm_plugins.text.template import ChatTemplate

_GAP = "\n\n"
_ROLES = {"system", "user", "assistant", "tool"}
_SAME = {"developer": "system"}


def fit_roles(
    messages: Sequence[Message], template: ChatTemplate, system: SystemPolicy
) -> tuple[list[Message], frozenset[str]]:
    """Rewrites turns the template cannot take, and says which rewriting was done.

    Args:
        messages: the conversation.
        template: the reward model's template.
        system: "template" passes a system turn if the template has the role and merges it into the first user turn if
            not; "merge", "drop" and "error" always do so.

    Returns:
        The turns, and flags out of `system_merged`, `system_dropped`, `tools_as_text`, `turns_merged`,
        `reasoning_as_text`, and `other_role` where the template writes a role that it may never have been trained on.

    Raises:
        TextError: a system turn that is to be refused, or a turn whose role the template passes over.
    """
    turns: list[Message] = [
        {**m, "role": _SAME.get(m["role"], m["role"]), "content": plain_text(m.get("content"))} for m in messages
    ]
    flags: set[str] = set()
    turns = _fit_system(turns, template, system, flags)
    if turns[-1].get("reasoning_content") and not template.has_reasoning:
        turns, flags = [*turns[:-1], _with_reasoning(turns[-1])], flags | {"reasoning_as_text"}
    uses_tools = any(turn["role"] == "tool" or turn.get("tool_calls") for turn in turns)
    if uses_tools and not template.has_tools:
        turns, flags = [_as_text(turn) for turn in turns], flags | {"tools_as_text"}
    equal_neighbours = any(a["role"] == b["role"] for a, b in pairwise(turns))
    if equal_neighbours and not template.has_repeats:
        turns, flags = _merge_equal(turns), flags | {"turns_merged"}
    if _others(turns, template):
        flags.add("other_role")
    return turns, frozenset(flags)


def _with_reasoning(turn: Message) -> Message:
    text = f"{OPEN}\n{turn['reasoning_content']}\n{CLOSE}\n\n{turn['content']}"
    return {**turn, "content": text, "reasoning_content": ""}


def _others(turns: Sequence[Message], template: ChatTemplate) -> list[Message]:
    """Turns of no usual role. Some templates skip them without a word, which is refused here."""
    unknown = [turn for turn in turns if turn["role"] not in _ROLES]
    if unknown and not template.shows(*turns, expect=[turn["content"].strip() for turn in unknown]):
        raise TextError(f"The reward model's chat template passes over turns of role {unknown[0]['role']!r}.")
    return unknown


def _fit_system(turns: list[Message], template: ChatTemplate, system: SystemPolicy, flags: set[str]) -> list[Message]:
    said = [turn["content"] for turn in turns if turn["role"] == "system"]
    if not said or (system == "template" and template.has_system):
        return turns
    if system == "error":
        raise TextError("The conversation has a system turn and this reward model was told to refuse one.")
    rest = [turn for turn in turns if turn["role"] != "system"]
    if system == "drop":
        flags.add("system_dropped")
        return rest
    flags.add("system_merged")
    text = _GAP.join(said)
    if rest[0]["role"] == "user":
        return [{**rest[0], "content": text + _GAP + rest[0]["content"]}, *rest[1:]]
    return [{"role": "user", "content": text}, *rest]


def _as_text(turn: Message) -> Message:
    """A tool call as labelled text of its assistant turn; a tool result as a labelled user turn."""
    if turn["role"] == "tool":
        name = f" of {turn['name']}" if turn.get("name") else ""
        return {"role": "user", "content": f"Tool result{name}:\n{turn['content']}"}
    calls = [_call_text(call) for call in turn.get("tool_calls") or ()]
    return {"role": turn["role"], "content": "\n".join(filter(None, [turn["content"], *calls]))}


def _call_text(call: Any) -> str:
    function = call.get("function", call) if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        raise TextError(f"A tool call must be a mapping with a function name and arguments, not {call!r:.60}.")
    arguments = function.get("arguments") or {}
    written = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return f"Tool call: {function.get('name')}({written})"


def _merge_equal(turns: Sequence[Message]) -> list[Message]:
    merged: list[Message] = []
    for turn in turns:
        if merged and merged[-1]["role"] == turn["role"]:
            both = filter(None, [merged[-1]["content"], turn["content"]])
            merged[-1] = {**merged[-1], **turn, "content": _GAP.join(both)}
        else:
            merged.append(turn)
    return merged
