"""Answers to one prompt that lie on several processes of a trainer are scored together, as one process would."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from rm_plugins.conversation import Conversation
from rm_plugins.family import Score
from rm_plugins.judging.groups import by_prompt

Scorer: TypeAlias = Callable[[Sequence[Conversation]], list[Score]]


def score_together(score: Scorer, own: Sequence[Conversation]) -> list[Score]:
    """Scores of this process's conversations, each beside all answers to its prompt.

    Every process must call this at once. The prompts are dealt out in turns and no comparison is made twice.

    Args:
        score: scores whole groups of answers.
        own: the conversations of this process.
    """
    from rm_plugins.process import this_process

    state = this_process()
    if state.num_processes == 1:
        return score(own)
    from accelerate.utils import gather_object

    shares: list[Sequence[Conversation]] = gather_object([own])
    rows = [conversation for share in shares for conversation in share]
    turn = by_prompt(rows)[state.process_index :: state.num_processes]
    mine = [row for group in turn for answer in group for row in answer]
    scored = score([rows[row] for row in mine]) if mine else []
    told: dict[int, Score] = dict(gather_object(list(zip(mine, scored, strict=True))))
    start = sum(map(len, shares[: state.process_index]))
    return [told[row] for row in range(start, start + len(own))]
