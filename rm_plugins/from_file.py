"""The reward of a `reward.yaml` under a dotted path, for command lines that take one.

    RM_PLUGINS_REWARD=reward.yaml trl grpo --reward_funcs rm_plugins.from_file.reward ...

Without the variable, `reward.yaml` of the working directory is read, when the name `reward` is first asked for.
"""

from __future__ import annotations

import os
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rm_plugins.reward.function import RewardFunction


@cache
def _reward() -> RewardFunction:
    from rm_plugins.reward.load import load_reward

    return load_reward(os.environ.get("RM_PLUGINS_REWARD", "reward.yaml"))


def __getattr__(name: str) -> Any:
    if name == "reward":
        return _reward()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
