"""Reasoning blocks in an answer: kept, or stripped with unclosed ones reported."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

Reasoning: TypeAlias = Literal["keep", "strip"]

OPEN, CLOSE = "<think>", "</think>"


class Stripped(NamedTuple):
    """An answer without its reasoning.

    Attributes:
        answer: what stands behind the last closed block; empty if a block is left open.
        truncated: a block was opened and never closed.
        blocks: closed blocks found.
    """

    answer: str
    truncated: bool
    blocks: int


def strip_reasoning(text: str) -> Stripped:
    """Takes reasoning out of an answer.

    All text up to a closing tag is reasoning, even without an opening tag: templates that pre-fill the opening tag
    leave it out of the completion. A block still open at the end was cut, so there is no answer yet.
    """
    blocks = text.count(CLOSE)
    rest = text.rsplit(CLOSE, 1)[-1] if blocks else text
    if OPEN in rest:
        return Stripped("", True, blocks)
    return Stripped(rest.lstrip("\n") if blocks else rest, False, blocks)
