"""Shortens a conversation that is too long without hurting its form: the middle of the prompt goes first."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rm_plugins.conversation import Message
from rm_plugins.errors import TextError

Encode = Callable[[Sequence[Message]], list[int]]


def shorten(messages: Sequence[Message], encode: Encode, max_length: int) -> list[Message]:
    """Cuts characters until the encoded conversation fits.

    The prompt's texts are cut in their middle, so that its instructions and its latest question stay longest. If no
    prompt is left, the answer is cut from its start. Turns stay turns, and the template's suffix and the answer's end
    always stay.

    Args:
        messages: turns whose content is text; the last one is the answer.
        encode: token ids of turns.
        max_length: most token ids allowed.

    Raises:
        TextError: the template alone is longer than `max_length`.
    """
    *prompt, answer = messages
    if shorter := shorten_prompt(prompt, lambda turns: len(encode([*turns, answer])) <= max_length):
        return [*shorter, answer]
    bare, text = _cut_middle(prompt, sum(len(turn["content"]) for turn in prompt)), answer["content"]
    cut = _least(len(text), lambda n: len(encode([*bare, {**answer, "content": text[n:]}])) <= max_length)
    if cut is None:
        raise TextError(f"The chat template alone is longer than max_length={max_length}; allow more tokens.")
    return [*bare, {**answer, "content": text[cut:]}]


def shorten_prompt(prompt: Sequence[Message], fits: Callable[[Sequence[Message]], bool]) -> list[Message] | None:
    """The turns with the least of their middle cut that makes them fit; None if even all of it does not."""
    room = sum(len(turn["content"]) for turn in prompt)
    cut = _least(room, lambda n: fits(_cut_middle(prompt, n)))
    return None if cut is None else _cut_middle(prompt, cut)


def _least(most: int, fits: Callable[[int], bool]) -> int | None:
    """Smallest number of characters whose cutting makes it fit, found by bisection; None if even all do not."""
    if not fits(most):
        return None
    low, high = 0, most
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle + 1, high)
    return low if fits(low) else high


def _cut_middle(turns: Sequence[Message], count: int) -> list[Message]:
    """Removes `count` characters from the middle of the turns' joined text."""
    total = sum(len(turn["content"]) for turn in turns)
    start = (total - count) // 2
    kept: list[Message] = []
    stop, offset = start + count, 0
    for turn in turns:
        text = turn["content"]
        a, b = max(0, start - offset), max(0, stop - offset)
        kept.append({**turn, "content": text[:a] + text[b:] if count else text})
        offset += len(text)
    return kept
