"""Cuts a tree of segments into packs: segments that go through the model in one forward pass, without padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from rm_plugins.engine.tree import Ids, Tree, grow


@dataclass(frozen=True)
class Read:
    """One hidden state that a sequence wants: the k-th of its read positions."""

    row: int
    k: int
    offset: int
    """Where it stands in the pack."""


@dataclass
class Pack:
    """Segments `first` to `stop` of a tree.

    Attributes:
        keep: segments whose keys and values later packs attend to: the path down to the next pack, no more.
        reads: hidden states to take.
        finished: sequences that have all their reads after this pack.
    """

    first: int
    stop: int
    keep: frozenset[int] = frozenset()
    reads: list[Read] = field(default_factory=list)
    finished: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Plan:
    """How a list of sequences is computed; any model whose vocabulary they are in can run it.

    Attributes:
        sequences: token ids.
        read_at: positions of each sequence whose hidden state is wanted.
        tree: what is computed once.
        packs: in order; a pack may attend to what earlier packs kept.
    """

    sequences: Sequence[Ids]
    read_at: Sequence[Sequence[int]]
    tree: Tree
    packs: tuple[Pack, ...]


def lay_out(sequences: Sequence[Ids], read_at: Sequence[Sequence[int]], max_tokens_in_flight: int) -> Plan:
    """Plans the sequences under a budget of tokens per pack; a longer sequence is cut and attends to its own past."""
    tree = grow(sequences, longest=max_tokens_in_flight)
    packs = _pack(tree, max_tokens_in_flight)
    home = [number for number, pack in enumerate(packs) for _ in range(pack.first, pack.stop)]
    offsets = _offsets(tree, packs)
    for row, positions in enumerate(read_at):
        path = tree.path(tree.ends[row])
        for k, position in enumerate(positions):
            index = next(i for i in path if position < tree.segments[i].stop)
            packs[home[index]].reads.append(Read(row, k, offsets[index] + position - tree.segments[index].start))
        packs[home[path[-1]]].finished.append(row)
    return Plan(sequences, read_at, tree, tuple(packs))


def _pack(tree: Tree, budget: int) -> list[Pack]:
    packs: list[Pack] = []
    filled = budget
    for index, segment in enumerate(tree.segments):
        if filled + len(segment) > budget:
            packs.append(Pack(index, index))
            filled = 0
        filled += len(segment)
        packs[-1].stop = index + 1
    for pack, following in pairwise(packs):
        pack.keep = frozenset(tree.path(following.first)[:-1])
    return packs


def _offsets(tree: Tree, packs: Sequence[Pack]) -> list[int]:
    offsets: list[int] = []
    for pack in packs:
        at = 0
        for segment in tree.segments[pack.first : pack.stop]:
            offsets.append(at)
            at += len(segment)
    return offsets
