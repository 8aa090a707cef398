"""Every step by the name that `reward.yaml` and the logs give it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rm_plugins.errors import OptionError
from rm_plugins.shaping.form import MissingEnd, Repetition, Term
from rm_plugins.shaping.length import Budget, Cosine, GroupLength, LengthCurve, Linear, SoftOverlong, TargetLength
from rm_plugins.shaping.reference import Reference
from rm_plugins.shaping.running import Running, RunningMinMax
from rm_plugins.shaping.scale import Fixed, GaussianRank, MinMax, Rank, Robust, ZScore
from rm_plugins.shaping.squash import Clip, Sigmoid, Tanh
from rm_plugins.shaping.step import Step

STEPS: Mapping[str, type[Step]] = {
    step.name: step
    for step in (
        *(Running, RunningMinMax, ZScore, MinMax, Robust, Rank, GaussianRank, Fixed, Reference, Tanh, Sigmoid, Clip),
        *(Linear, Budget, SoftOverlong, Cosine, TargetLength, GroupLength, LengthCurve, MissingEnd, Repetition, Term),
    )
}


def step_of(entry: Any) -> Step:
    """A step from its name, or from a mapping of its name to its settings.

    Raises:
        OptionError: no such step, or a setting that it cannot have.
    """
    if isinstance(entry, str):
        entry = {entry: {}}
    if not (isinstance(entry, Mapping) and len(entry) == 1):
        raise OptionError(f"A step is a name, or a name and its settings; this is {entry!r:.60}.")
    [(name, settings)] = entry.items()
    if name not in STEPS:
        raise OptionError(f"There is no shaping step {name!r}; there are {', '.join(STEPS)}.")
    return STEPS[name](**(settings or {}))
