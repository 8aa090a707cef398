"""The five ways published reward models treat the beginning-of-sequence token, and how to choose one for the rest."""

from __future__ import annotations

from typing import Any, NamedTuple

from rm_plugins.records import BosPolicy


class Prepared(NamedTuple):
    """Rendered text and whether the tokenizer adds its own special tokens to it."""

    text: str
    add_special_tokens: bool


def apply_bos(text: str, bos: str | None, policy: BosPolicy) -> Prepared:
    """Cuts BOS from rendered text as the policy says; the policies are listed in `records.toml`."""
    if policy == "strip_prefix" and bos:
        text = text.removeprefix(bos)
    if policy in ("strip_all", "none") and bos:
        text = text.replace(bos, "")
    return Prepared(text, policy not in ("none", "template"))


def derive_policy(tokenizer: Any, rendered: str) -> BosPolicy:
    """Chooses the policy that gives one BOS at most, by looking at the ids of a rendered conversation.

    A tokenizer that would add an end-of-sequence token as well keeps its hands off: chat text is complete.
    """
    bos = tokenizer.bos_token_id
    ids = list(tokenizer(rendered, add_special_tokens=False)["input_ids"])
    if bos is None or ids[:1] == [bos]:
        return "template"
    added = list(tokenizer(rendered, add_special_tokens=True)["input_ids"])
    return "strip_prefix" if added == [bos, *ids] else "template"


def leading_bos(ids: list[int], bos: int | None) -> int:
    """How many BOS ids the sequence starts with."""
    count = 0
    while bos is not None and count < len(ids) and ids[count] == bos:
        count += 1
    return count
