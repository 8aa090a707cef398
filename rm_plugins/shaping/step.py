"""What every step of shaping is: settings that are checked, a place in the order, and a state that can be saved."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, ValidationError

from rm_plugins.errors import OptionError
from rm_plugins.shaping.batch import Array, Batch, Rows

Scope: TypeAlias = Literal["group", "batch"]
"""Answers to one prompt, or all rows of all processes."""
Stage: TypeAlias = Literal["weights", "normalize", "clip", "penalty"]


class Step(BaseModel):
    """One step of shaping.

    Raises:
        OptionError: a setting that does not exist or has a value that it cannot have.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: ClassVar[str]
    """What `reward.yaml` and the logs call it."""
    stage: ClassVar[Stage]
    learns: ClassVar[bool] = False
    """Whether training changes its state."""

    def __init__(self, **settings: Any) -> None:
        try:
            super().__init__(**settings)
        except ValidationError as error:
            raise OptionError(f"shaping step {self.name!r}: {sentence(error, type(self))}") from None

    def measure(self, rows: Rows) -> Sequence[Any]:
        """What it must know of each row of this process beside its reward."""
        return [None] * len(rows.conversations)

    def fit(self, batch: Batch) -> None:
        """Learns from a pool of scored answers."""
        self.update(batch)

    def update(self, batch: Batch) -> None:
        """Learns from a batch of training; evaluation never calls it."""

    def apply(self, batch: Batch) -> Array:
        """The new rewards, (n,); NaN where there was none. It changes no state."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """What it has learnt, as JSON can hold it."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes back what `state_dict` gave."""


def sentence(error: ValidationError, model: type[BaseModel]) -> str:
    """What was wrong first, with the key, its value and what it may be."""
    first = error.errors()[0]
    key = ".".join(map(str, first["loc"])) or "settings"
    if first["type"] == "extra_forbidden":
        return f"there is no {key!r}; it has {', '.join(model.model_fields) or 'no settings'}."
    if first["type"] == "missing":
        return f"{key!r} is missing."
    what = first["msg"].removeprefix("Value error, ").removeprefix("Input ").removesuffix(".")
    return f"{key}={first['input']!r:.60} {what}." if first["loc"] else f"{what}."
