"""`reward.yaml`: a reward written down, steps of shaping included, as `load_reward` takes it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rm_plugins.errors import OptionError

_ENDINGS = (".yaml", ".yml")


class RewardFile(BaseModel):
    """The keys of a `reward.yaml`; all but `options` are arguments of `load_reward`.

    Attributes:
        model: as in `load_reward`; a path that begins with a dot is looked for from the file's folder.
        options: of the family.
        shaping: names of steps, or a name and its settings each, in their order.
    """

    model_config = ConfigDict(extra="forbid")

    model: str
    family: str | None = None
    record: str | None = None
    revision: str | None = None
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    device: str | None = None
    attn_implementation: str | None = None
    max_length: int | None = Field(None, ge=1)
    on_failure: Literal["none", "raise"] | float = "none"
    cache: str | None = None
    options: dict[str, Any] = Field(default_factory=dict)
    shaping: list[str | dict[str, dict[str, Any] | None]] = Field(default_factory=list)


def is_reward_file(model: str) -> bool:
    """Whether a model's name is the path of a reward file."""
    return model.endswith(_ENDINGS)


def read_reward_file(path: Path) -> dict[str, Any]:
    """The arguments for `load_reward` that a file holds, without those that it leaves to their defaults.

    Raises:
        OptionError: there is no such file, it is no YAML, or a key does not exist or cannot have its value.
    """
    from rm_plugins.shaping.step import sentence
    from rm_plugins.shaping.steps import step_of

    try:
        given = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise OptionError(f"{path} is no readable YAML: {' '.join(str(error).split())}") from error
    if not isinstance(given, Mapping):
        raise OptionError(f"{path} holds {type(given).__name__}, not keys such as model and shaping.")
    try:
        found = RewardFile(**given)
    except ValidationError as error:
        raise OptionError(f"{path}: {sentence(error, RewardFile)}") from None
    settings = found.model_dump(exclude={"options", "shaping"}, exclude_defaults=True)
    if found.model.startswith("."):
        settings["model"] = str(path.parent / found.model)
    try:
        steps = [step_of(entry) for entry in found.shaping]
    except OptionError as error:
        raise OptionError(f"{path}: {error}") from error
    return settings | found.options | ({"shaping": steps} if steps else {})


def write_reward_file(path: Path, settings: Mapping[str, Any], comment: str) -> None:
    """Writes one that `read_reward_file` reads.

    Args:
        path: the file.
        settings: its keys; those without a value are left out.
        comment: what the file should say of itself; stands at its top.
    """
    kept = RewardFile(**settings).model_dump(mode="json", exclude_defaults=True)
    about = "".join(f"# {line}\n" for line in comment.splitlines())
    path.write_text(about + yaml.safe_dump(kept, sort_keys=False, width=120), encoding="utf-8")
