"""Reward shaping: normalization, length and form penalties, several rewards in one, and state that survives.

from rm_plugins import load_reward
from rm_plugins.shaping import Clip, Running, SoftOverlong, combine, shape

reward = load_reward("...", shaping=[Running(), Clip(low=-3, high=3), SoftOverlong(max_length=512, cache=128)])
GRPOTrainer(..., reward_funcs=[reward], callbacks=[reward.callback()])
"""

from __future__ import annotations

from rm_plugins.shaping.form import MissingEnd, Repetition, Term
from rm_plugins.shaping.length import Budget, Cosine, GroupLength, LengthCurve, Linear, SoftOverlong, TargetLength
from rm_plugins.shaping.reference import Reference
from rm_plugins.shaping.running import Running, RunningMinMax
from rm_plugins.shaping.scale import Fixed, GaussianRank, MinMax, Rank, Robust, ZScore
from rm_plugins.shaping.shaped import ShapedReward, combine, shape
from rm_plugins.shaping.squash import Clip, Sigmoid, Tanh
from rm_plugins.shaping.step import Step

__all__ = [
    "Budget",
    "Clip",
    "Cosine",
    "Fixed",
    "GaussianRank",
    "GroupLength",
    "LengthCurve",
    "Linear",
    "MinMax",
    "MissingEnd",
    "Rank",
    "Reference",
    "Repetition",
    "Robust",
    "Running",
    "RunningMinMax",
    "ShapedReward",
    "Sigmoid",
    "SoftOverlong",
    "Step",
    "Tanh",
    "TargetLength",
    "Term",
    "ZScore",
    "combine",
    "shape",
]
