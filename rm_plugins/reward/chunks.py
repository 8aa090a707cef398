"""Which rows of a file are scored together."""

from __future__ import annotations

from collections.abc import Sequence

from rm_plugins.conversation import Conversation
from rm_plugins.errors import OptionError
from rm_plugins.judging.groups import prompt_of


def chunk_ends(total: int, size: int) -> list[int]:
    """Where chunks of `size` rows end."""
    return [*range(size, total, size), total]


def group_ends(rows: Sequence[Conversation | None], size: int) -> list[int]:
    """Where chunks of `size` rows or more end, so that the answers to one prompt lie in one of them.

    Args:
        rows: None for one that has no conversation.
        size: least rows of a chunk but the last.

    Raises:
        OptionError: the answers to a prompt do not stand together.
    """
    names = [None if row is None else prompt_of(row) for row in rows]
    places = {name: row for row, name in enumerate(names)}  # the last row of each prompt
    ends: list[int] = []
    for row, name in enumerate(names, 1):
        if row == len(names) or (row - (ends[-1] if ends else 0) >= size and name != names[row]):
            ends.append(row)
    start = 0
    for end in ends:
        for row, name in enumerate(names[start:end], start):
            if name is not None and places[name] >= end:
                raise OptionError(
                    f"Rows {row + 1} and {places[name] + 1} answer one prompt, whose answers this model compares with "
                    "each other; sort the file so that they stand together."
                )
        start = end
    return ends
