"""Finds what token sequences have in common, so that it is computed once.

Sequences of one call share beginnings: a system prompt, a prompt with its G answers, or all they have. The beginnings
are found in the ids, not declared. The result is a tree of segments: a segment continues its parent, and a sequence is
the path from a root to the segment it ends in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypeAlias, cast

MIN_SAVING = 24
"""Tokens a shared segment must save to be worth a segment of its own."""

Ids: TypeAlias = tuple[int, ...]


@dataclass(frozen=True)
class Segment:
    """Tokens `start` to `stop` of sequence `row`, and of every other sequence that ends below it.

    Attributes:
        row: a sequence that holds these tokens.
        start: position of its first token; the parent ends there.
        stop: position behind its last token.
        parent: index of the segment it continues, or None.
    """

    row: int
    start: int
    stop: int
    parent: int | None

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class Tree:
    """Segments, every parent before its children and every subtree in one run, and where each sequence ends.

    Attributes:
        segments: in depth-first order.
        ends: index of the last segment of each sequence, in the order of the sequences.
    """

    segments: tuple[Segment, ...]
    ends: tuple[int, ...]

    def path(self, index: int) -> list[int]:
        """Indices of a segment and its ancestors, the root first."""
        path: list[int] = []
        step: int | None = index
        while step is not None:
            path.append(step)
            step = self.segments[step].parent
        return path[::-1]

    @property
    def tokens(self) -> int:
        """Tokens to compute."""
        return sum(map(len, self.segments))


def grow(sequences: Sequence[Ids], *, longest: int | None = None) -> Tree:
    """Builds the tree of the sequences.

    Args:
        sequences: token ids, none empty.
        longest: no segment is longer; a longer one is cut into a chain.
    """
    tree = _Grower(sequences, longest)
    rows = sorted(range(len(sequences)), key=lambda row: sequences[row])
    waiting = [_Group(rows, 0, 0, None)] if rows else []
    while waiting:  # a stack, not recursion: a conversation that grows turn by turn is as deep as it is long
        waiting += reversed(tree.place(waiting.pop()))
    return Tree(tuple(tree.segments), tuple(tree.ends))


@dataclass(frozen=True)
class _Group:
    """Sorted rows that agree up to `agreed`, of which everything before `start` is in `parent` and its ancestors."""

    rows: list[int]
    agreed: int
    start: int
    parent: int | None


class _Grower:
    def __init__(self, sequences: Sequence[Ids], longest: int | None) -> None:
        self.sequences = sequences
        self.longest = longest
        self.segments: list[Segment] = []
        self.ends = [0] * len(sequences)

    def place(self, group: _Group) -> list[_Group]:
        """Adds the segment that a group shares, if it pays, ends rows that end there, and returns what is left."""
        rows, start, parent = group.rows, group.start, group.parent
        common = agreement(self.sequences[rows[0]], self.sequences[rows[-1]], group.agreed)  # sorted: of all between
        ended = [row for row in rows if len(self.sequences[row]) == common]
        rest = rows[len(ended) :]  # sorted: what ends first comes first
        if rest and (common - start) * (len(rows) - 1) >= MIN_SAVING:
            start, parent = common, self._add(rows[0], start, common, parent)
        if ended:
            end = parent if start == common else self._add(ended[0], start, common, parent)
            for row in ended:
                self.ends[row] = cast("int", end)
        branches = groupby(rest, key=lambda row: self.sequences[row][common])
        return [_Group(list(branch), common + 1, start, parent) for _, branch in branches]

    def _add(self, row: int, start: int, stop: int, parent: int | None) -> int:
        """Adds tokens `start` to `stop` as a segment, or as a chain of them; returns the last."""
        step = self.longest or stop - start
        for begin in range(start, stop, step):
            self.segments.append(Segment(row, begin, min(begin + step, stop), parent))
            parent = len(self.segments) - 1
        return cast("int", parent)


def agreement(one: Ids, other: Ids, agreed: int = 0) -> int:
    """Length of the common beginning of two sequences that agree up to `agreed`, by bisection over slices."""
    low, high = agreed, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[low:middle] == other[low:middle] else (low, middle - 1)
    return low
