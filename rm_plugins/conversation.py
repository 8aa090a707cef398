"""What a reward model judges: a conversation that ends with an assistant turn.

Everything TRL passes (plain strings, message lists, tool turns, prefilled assistants) becomes a `Conversation` here,
so no family ever sees a string or a batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from rm_plugins.errors import ConversationError

Message: TypeAlias = Mapping[str, Any]
"""A chat message as TRL and transformers write it: `role`, `content`, and where used `tool_calls`, `name`, ..."""

Turns: TypeAlias = str | Sequence[Message]


@dataclass(frozen=True)
class Conversation:
    """Messages that end with the assistant turn to be judged, and the data-set columns of its row.

    Raises:
        ConversationError: no messages, a message without a role, or no assistant turn at the end.
    """

    messages: tuple[Message, ...]
    columns: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.messages:
            raise ConversationError("A conversation has no messages; give at least one user and one assistant message.")
        for position, message in enumerate(self.messages):
            if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
                raise ConversationError(
                    f"Message {position} has no role: {message!r:.80}. Write {{'role': ..., 'content': ...}}."
                )
        if (last := self.messages[-1]["role"]) != "assistant":
            raise ConversationError(
                f"The conversation ends with a {last!r} turn; a reward model judges an assistant turn at the end."
            )

    @property
    def answer(self) -> str:
        """Text of the assistant turn that is judged; empty if it has none."""
        return plain_text(self.messages[-1].get("content"))

    @classmethod
    def of(cls, value: Conversation | Sequence[Message]) -> Conversation:
        """Takes a conversation as it is, or builds one from a message list."""
        if isinstance(value, Conversation):
            return value
        if isinstance(value, str | Mapping) or not isinstance(value, Iterable):
            raise ConversationError(f"Expected a list of messages, got {type(value).__name__}: {value!r:.60}.")
        return cls(tuple(value))


def plain_text(content: Any) -> str:
    """Text of a message's content: None is empty, text parts are joined, anything else is an error."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, Iterable):
        return "".join(_part_text(part) for part in content)
    raise ConversationError(f"Message content must be text, text parts or None, not {type(content).__name__}.")


def _part_text(part: Any) -> str:
    if isinstance(part, Mapping) and part.get("type", "text") == "text":
        return str(part.get("text") or "")
    kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    raise ConversationError(f"Message content has a part of type {kind!r}; this reward model reads text only.")


def from_trl(
    prompts: Sequence[Turns], completions: Sequence[Turns], columns: Mapping[str, Any] | None = None
) -> list[Conversation]:
    """Pairs each prompt with its completion, row by row.

    A string prompt becomes a user turn and a string completion an assistant turn, so that the reward model's own
    template is used for both. Rows may mix strings and message lists. A completion with no assistant turn at its end
    (a tool loop that was cut) is an empty answer; a prompt that ends with an assistant turn is a prefill, which the
    completion continues.

    Args:
        prompts: one per completion.
        completions: the policy's answers, decoded.
        columns: other data-set columns; lists travel with their rows, and what is no list is left out.

    Raises:
        ConversationError: unequal counts, none at all, or a row whose form cannot be scored.
    """
    for name, column in (("prompts", prompts), ("completions", completions)):
        if isinstance(column, str | Mapping):
            raise ConversationError(f"{name} must be a list with one entry a row, not one {type(column).__name__}.")
    if len(prompts) != len(completions):
        raise ConversationError(f"{len(prompts)} prompts for {len(completions)} completions; give one prompt for each.")
    if len(prompts) == 0:
        raise ConversationError("No prompts and no completions: there is nothing to score.")
    rows = _rows(columns or {}, len(prompts))
    return [
        Conversation(_join(_turns(prompt, "user"), _turns(completion, "assistant")), row)
        for prompt, completion, row in zip(prompts, completions, rows, strict=True)
    ]


def _rows(columns: Mapping[str, Any], count: int) -> list[dict[str, Any]]:
    lists = {k: v for k, v in columns.items() if isinstance(v, list | tuple)}
    if wrong := next((name for name, values in lists.items() if len(values) != count), None):
        raise ConversationError(f"Column {wrong!r} has {len(lists[wrong])} values for {count} rows; give one for each.")
    return [{name: values[row] for name, values in lists.items()} for row in range(count)]


def _turns(value: Turns, role: str) -> tuple[Message, ...]:
    if isinstance(value, str):
        return ({"role": role, "content": value},)
    if isinstance(value, Mapping):
        return (value,)
    if not isinstance(value, Iterable):
        raise ConversationError(
            f"The {role} side of a row must be text or a list of messages, not {type(value).__name__}."
        )
    turns = tuple(value)
    if wrong := next((turn for turn in turns if not isinstance(turn, Mapping)), None):
        raise ConversationError(
            f"The {role} side of a row is a list of {type(wrong).__name__}, not of messages; pass decoded text."
        )
    return turns


def _join(prompt: tuple[Message, ...], completion: tuple[Message, ...]) -> tuple[Message, ...]:
    if not completion or completion[-1].get("role") != "assistant":
        completion = (*completion, {"role": "assistant", "content": ""})
    if prompt and prompt[-1].get("role") == "assistant" and completion[0].get("role") == "assistant":
        opening, rest = prompt[-1], completion[0]
        joined = {**opening, **rest, "content": plain_text(opening.get("content")) + plain_text(rest.get("content"))}
        return (*prompt[:-1], joined, *completion[1:])
    return (*prompt, *completion)
