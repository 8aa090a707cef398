"""Any published reward model as a drop-in reward for TRL.

Nothing heavy is imported until it is used: `import rm_plugins` does not import torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rm_plugins.conversation import Conversation
    from rm_plugins.errors import RmPluginsError
    from rm_plugins.family import Explanation, Family, Fit, LoadSpec, RewardModel, Score
    from rm_plugins.hookspecs import hookimpl
    from rm_plugins.reward.function import RewardFunction
    from rm_plugins.reward.load import load_reward

_HOME = {
    "Conversation": "conversation",
    "Explanation": "family",
    "Family": "family",
    "Fit": "family",
    "LoadSpec": "family",
    "RewardFunction": "reward.function",
    "RewardModel": "family",
    "RmPluginsError": "errors",
    "Score": "family",
    "hookimpl": "hookspecs",
    "load_reward": "reward.load",
}

__all__ = [
    "Conversation",
    "Explanation",
    "Family",
    "Fit",
    "LoadSpec",
    "RewardFunction",
    "RewardModel",
    "RmPluginsError",
    "Score",
    "hookimpl",
    "load_reward",
]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if home := _HOME.get(name):
        return getattr(import_module(f"rm_plugins.{home}"), name)
    raise AttributeError(f"module 'rm_plugins' has no attribute {name!r}")
