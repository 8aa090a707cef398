"""`load_reward`: the one way in."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rm_plugins.errors import OptionError
from rm_plugins.reward.function import OnFailure, RewardFunction
from rm_plugins.reward.rewardfile import is_reward_file, read_reward_file
from rm_plugins.reward.spec import RewardSpec

if TYPE_CHECKING:
    from rm_plugins.shaping.step import Step


def load_reward(
    model: str | os.PathLike[str],
    *,
    family: str | None = None,
    record: str | None = None,
    revision: str | None = None,
    dtype: str | None = None,
    device: str | None = None,
    attn_implementation: str | None = None,
    max_length: int | None = None,
    shaping: Sequence[Step] = (),
    on_failure: OnFailure = "none",
    cache: str | os.PathLike[str] | None = None,
    **family_options: Any,
) -> RewardFunction:
    """Loads a reward model as a TRL reward.

    Args:
        model: hub id, local folder, adapter folder, "family:target" for families that take a bare target,
            "family:https://..." for a model that a server runs, or the path of a `reward.yaml`, which other arguments
            override.
        family: use this family, or this "provider/family", whatever the checkpoint looks like.
        record: treat a local copy, or what the server runs, as this published model:
            `load_reward("./rm", record="Ray2333/GRM-...")`.
        revision: hub revision; the record's by default.
        dtype: "float32", "bfloat16" or "float16"; by default what the published number was made with.
        device: torch device, or "auto" to spread over several; by default this process's own.
        attn_implementation: as in transformers; by default the record's.
        max_length: most tokens of a conversation; longer prompts lose their middle.
        shaping: steps of `rm_plugins.shaping`, in their order; `reward.callback()` keeps their state.
        on_failure: what a conversation that cannot be scored becomes: "none" (None, which TRL skips), "raise", or a
            number, for trainers that know no None (PPO, Online DPO).
        cache: file that keeps scores, so that what was scored before, by this model and under these choices, needs no
            pass through it; several processes and models may share it. Folders on its way are made.
        family_options: options the family declares; an unknown one is an error that lists them.

    Returns:
        A callable for `reward_funcs`, with the weights loaded.

    Raises:
        RmPluginsError: see `rm_plugins.errors`; the message says what to do.
    """
    named = _path("model", model)
    if is_reward_file(named):
        asked = {
            "family": family,
            "record": record,
            "revision": revision,
            "dtype": dtype,
            "device": device,
            "attn_implementation": attn_implementation,
            "max_length": max_length,
            "cache": cache,
            "shaping": shaping or None,
            "on_failure": None if on_failure == "none" else on_failure,
        }
        chosen = {name: value for name, value in asked.items() if value is not None}
        return load_reward(**(read_reward_file(Path(named)) | chosen | family_options))
    spec = RewardSpec(
        model=named,
        family=family,
        record=record,
        revision=revision,
        dtype=dtype,
        device=device,
        attn_implementation=attn_implementation,
        max_length=max_length,
        cache=None if cache is None else _path("cache", cache),
        options=family_options,
    )
    reward = RewardFunction(spec, on_failure=on_failure, shaping=shaping)
    reward.load()
    return reward


def _path(name: str, value: Any) -> str:
    try:
        path = str(os.fspath(value))
    except TypeError:
        path = ""
    if not path:
        raise OptionError(f"{name}={value!r} must be text or a path, and not empty.")
    return path
