"""Groups sequences of similar length into batches under a token budget."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def plan(lengths: Sequence[int], token_budget: int) -> Iterator[list[int]]:
    """Yields batches of indices, longest sequences first.

    A batch holds at most `token_budget` tokens counted with padding, and at least one sequence. Longest first, so that
    a budget that does not fit in memory is found at once.

    Args:
        lengths: tokens of each sequence.
        token_budget: rows times the longest row of a batch.
    """
    batch: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        longest = lengths[batch[0]] if batch else lengths[index]
        if batch and longest * (len(batch) + 1) > token_budget:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch
