"""How one model's text is made: the record's policies, with the caller's choices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin, get_type_hints

from rm_plugins.errors import OptionError
from rm_plugins.family import LoadSpec
from rm_plugins.records import BosPolicy, EosPolicy, Pooling, Record, SystemPolicy
from rm_plugins.text.reasoning import Reasoning


@dataclass(frozen=True)
class TextRules:
    """How one model's text is made; see `records.toml` for the policies.

    Attributes:
        template: chat template that replaces the tokenizer's own; for models whose card writes the text by hand.
        suffix: a token that ends the text, whatever the template wrote.

    Raises:
        OptionError: a policy that does not exist, or a limit below 1.
    """

    bos: BosPolicy = "derive"
    eos: EosPolicy = "template"
    pooling: Pooling = "last"
    system: SystemPolicy = "template"
    reasoning: Reasoning = "keep"
    template: str | None = None
    suffix: str = ""
    max_length: int | None = None
    pad_id: int | None = None

    def __post_init__(self) -> None:
        if not (self.max_length is None or (isinstance(self.max_length, int) and self.max_length > 0)):
            raise OptionError(f"max_length={self.max_length!r} must be a whole number of at least 1.")
        for name, kind in get_type_hints(TextRules).items():
            check_choice(name, getattr(self, name), kind)

    def position(self, ids: Sequence[int]) -> int:
        """Which of the ids is read."""
        last = len(ids) - 1
        if self.pooling == "last" or self.pad_id is None or self.pad_id not in ids:
            return last
        if self.pooling == "before_first_pad":
            return (list(ids).index(self.pad_id) - 1) % len(ids)
        return next((i for i in range(last, -1, -1) if ids[i] != self.pad_id), last)


def check_choice(name: str, value: Any, kind: Any) -> None:
    """Refuses a value that is none of a Literal's.

    Raises:
        OptionError: names the choices.
    """
    if get_origin(kind) is Literal and value not in get_args(kind):
        raise OptionError(f"{name}={value!r} is none of {', '.join(map(str, get_args(kind)))}.")


def rules_for(spec: LoadSpec, config: Any) -> TextRules:
    """The rules of a model: the options, else its record, in the text mode that was asked for.

    Args:
        spec: what to load.
        config: the backbone's text config; knows the pad and the longest sequence.
    """
    record = spec.record or Record(id=spec.target)
    mode = spec.options.get("text", "card")
    check_choice("text", mode, Literal["card", "rewardbench"])
    facts: Mapping[str, Any] = record.model_dump() | (record.rewardbench if mode == "rewardbench" else {})
    chosen = {n: spec.options.get(n, facts[n]) for n in ("bos", "eos", "pooling", "system")}
    longest = getattr(config, "max_position_embeddings", None)
    return TextRules(
        **chosen,
        reasoning=spec.options.get("reasoning", "keep"),
        template=facts["template"],
        suffix=facts["suffix"],
        max_length=longest if record.max_length is None else record.max_length,
        pad_id=config.pad_token_id if record.pad_id is None else record.pad_id,
    )
