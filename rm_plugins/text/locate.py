"""Which positions of a text a family reads, beyond the one that its record pools."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from rm_plugins.errors import TextError
from rm_plugins.text.template import ChatTemplate

Locate: TypeAlias = Callable[[Sequence[int], int], tuple[int, ...]]
"""Takes the ids and the pooled position and returns the positions to read; raises TextError where there are none."""


def prompt_end_and_pooled(tokenizer: Any, template: str | None = None) -> Locate:
    """The token that ends the turn before the answer, and the pooled position.

    What stands between a user's words and the answer is looked up in the template: the end of a turn and the header of
    the next. Its last occurrence in the ids is the one before the answer, which cannot forge it.
    """
    between = ChatTemplate(tokenizer, template).turn_change
    pattern = list(tokenizer(between, add_special_tokens=False)["input_ids"])

    def locate(ids: Sequence[int], pooled: int) -> tuple[int, ...]:
        starts = range(len(ids) - len(pattern), -1, -1)
        found = next((i for i in starts if list(ids[i : i + len(pattern)]) == pattern), None)
        if found is None:
            raise TextError(
                f"The answer's header {between!r} is nowhere in the text, so its prompt has no end to read."
            )
        return found, pooled

    return locate
