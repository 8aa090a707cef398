"""Several rewards as one: their mean, their minimum, or the mean less a multiple of their variance.

`load_reward("ensemble:", rewards=["rm-a", "rm-b"], rule="min")`. Rewards are raw, each in its own unit, so members
should be of one scale: ensembles of one model trained several times are (Coste et al., 2023, "Reward Model Ensembles
Help Mitigate Overoptimization": mean, worst case, and uncertainty-weighted). Higher is better. Parts are the members'
rewards. Where a member has none, the ensemble has none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean, pvariance
from typing import Any

from rm_plugins import Conversation, Family, Score, hookimpl, load_reward
from rm_plugins.errors import OptionError
from rm_plugins.family import LoadSpec, Progress
from rm_plugins.reward.function import RewardFunction

OPTIONS = {
    "rewards": "the members: what load_reward takes, or a dictionary of its arguments, for each",
    "rule": "mean, min, or mean_minus_variance",
    "penalty": "mean_minus_variance: what the variance is multiplied with, 1 by default",
}


@hookimpl
def rm_families() -> Iterable[Family]:
    """Yields the ensemble family."""
    yield Family(
        name="ensemble",
        kind="pointwise",
        summary="mean, minimum, or mean minus variance of several rewards",
        load=load,
        options=OPTIONS,
    )


def load(spec: LoadSpec) -> Ensemble:
    """Loads the members, on the ensemble's device unless one names its own.

    Raises:
        OptionError: fewer than two members, two of one name, or a rule that does not exist.
    """
    if spec.target:
        raise OptionError(f"ensemble:{spec.target} names no member; write 'ensemble:' and rewards=[...].")
    given, rule = spec.options.get("rewards"), spec.options.get("rule", "mean")
    if isinstance(given, str) or not isinstance(given, Sequence) or len(given) < 2:
        raise OptionError(f"An ensemble needs two or more members: rewards=[...], not {given!r:.60}.")
    penalty = _penalty(spec.options, rule)
    rules: dict[str, Callable[[Sequence[float]], float]] = {
        "mean": fmean,
        "min": min,
        "mean_minus_variance": lambda values: fmean(values) - penalty * pvariance(values),
    }
    if rule not in rules:
        raise OptionError(f"rule={rule!r} is none of {', '.join(rules)}.")
    members = [_member(member, spec.device) for member in given]
    names = [member.__name__ for member in members]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise OptionError(f"Two members of the ensemble are called {twice}; their rewards could not be told apart.")
    return Ensemble(members, rules[rule])


def _penalty(options: Mapping[str, Any], rule: Any) -> float:
    penalty = options.get("penalty", 1.0)
    if "penalty" in options and rule != "mean_minus_variance":
        raise OptionError(f"penalty= is of rule='mean_minus_variance'; rule={rule!r} takes none.")
    if not isinstance(penalty, int | float) or not 0 <= penalty < math.inf:
        raise OptionError(f"penalty={penalty!r} must be a number of at least 0: below, disagreement would be rewarded.")
    return float(penalty)


def _member(given: Any, device: str | None) -> RewardFunction:
    arguments = dict(given) if isinstance(given, dict) else {"model": given}
    if "model" not in arguments:
        raise OptionError(f"A member of an ensemble needs a model, and {given!r:.60} has no 'model'.")
    return load_reward(**{"device": device} | arguments)


class Ensemble:
    """Implements `RewardModel` over others."""

    def __init__(self, members: Sequence[RewardFunction], rule: Callable[[Sequence[float]], float]) -> None:
        self.parts = tuple(member.__name__ for member in members)
        self.relative = any(getattr(member.load(), "relative", False) for member in members)
        self._members, self._rule = members, rule

    def score(self, conversations: Sequence[Conversation], progress: Progress | None = None) -> list[Score]:
        """Scores in order; flags are those of all members."""
        each = [member.score(conversations) for member in self._members]
        if progress:
            progress(len(conversations))
        return [self._joined(scores) for scores in zip(*each, strict=True)]

    def _joined(self, scores: Sequence[Score]) -> Score:
        named = dict(zip(self.parts, scores, strict=True))
        flags = frozenset().union(*(score.flags for score in scores))
        parts = {name: score.value for name, score in named.items() if score.value is not None}
        failed = [f"{name}: {score.error or 'no value'}" for name, score in named.items() if score.value is None]
        if failed:
            return Score(None, parts=parts, flags=flags | {"failed"}, error="; ".join(failed))
        return Score(self._rule(list(parts.values())), parts=parts, flags=flags)
