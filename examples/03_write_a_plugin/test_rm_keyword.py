"""The laws of every reward, for the keyword family; run with `pytest` once the plugin is installed."""

import pytest

from rm_plugins import load_reward
from rm_plugins.conformance import Conformance
from rm_plugins.reward.function import RewardFunction


@pytest.fixture(scope="module")
def reward() -> RewardFunction:
    """The reward that is tried."""
    return load_reward("keyword:sea,four")


class TestKeyword(Conformance):
    """The family, under every law."""
