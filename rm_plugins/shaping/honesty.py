"""Says, once and with numbers, when shaping does nothing, or something that was hardly meant."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import numpy as np

from rm_plugins.shaping.batch import Array, Batch, spread
from rm_plugins.shaping.combine import Combine

if TYPE_CHECKING:
    from rm_plugins.shaping.shaper import Trace, Trainer

logger = logging.getLogger(__name__)

_CALLS = 5
"""Batches that are looked at."""
_SAME = 2e-3
"""Advantages closer than this are the same: TRL's epsilon alone makes differences of 5e-4."""
_FOLLOWS = 0.8
"""Correlation of rewards and lengths from which it is said aloud."""
_EPS = 1e-4
"""What TRL adds to a standard deviation."""


def advantages(batch: Batch, scale: str) -> Array:
    """What a group-relative trainer makes of rewards: `group` and `batch` scaling as in TRL's GRPO, `none` centred."""
    centred = batch.each(lambda values: values - values.mean())
    if scale == "none":
        return centred
    if scale == "batch":
        return centred / (spread(batch.known) + _EPS)
    return centred / (batch.each(lambda values: np.full(len(values), spread(values))) + _EPS)


class Watch:
    """Looks at the first batches of one reward.

    Args:
        name: of the reward.
    """

    def __init__(self, name: str) -> None:
        self._name, self._left = name, _CALLS
        self._said: set[str] = set()
        self._idle: dict[int, int] = {}

    def look(self, trace: Trace, trainer: Trainer) -> None:
        """Looks at one batch of all processes."""
        if self._left <= 0 or not trace.steps:
            return
        self._left -= 1
        for place, (step, before, after) in enumerate(trace.steps):
            if isinstance(step, Combine):
                self._shares(step, before, after)
            elif step.stage == "normalize" and trainer.scale:
                self._no_op(place, step.name, before, after, trainer.scale)
            elif step.stage == "penalty":
                self._dominates(step.name, before, after)
        final = trace.steps[-1][1].rewarded(trace.steps[-1][2])
        self._follows_length(final.values, trace.lengths)
        self._all_cut(final.values, trace.cut)

    def _no_op(self, place: int, name: str, before: Batch, after: Array, scale: str) -> None:
        """A step that changed the rewards of two batches and the advantages of neither."""
        with_step = before.rewarded(after)
        both = ~np.isnan(before.values) & ~np.isnan(after)
        if not both.any() or np.array_equal(before.values[both], after[both]):
            return
        difference = np.abs(advantages(before, scale) - advantages(with_step, scale))[both].max()
        self._idle[place] = self._idle.get(place, 0) + 1 if difference < _SAME else -_CALLS
        if self._idle[place] == 2:
            self._say(
                f"idle {place}",
                f"step {name!r} changes no advantage: the trainer scales rewards by {scale!r}, which undoes it "
                f"(largest difference {difference:.1g})",
            )

    def _dominates(self, name: str, before: Batch, after: Array) -> None:
        taken = np.abs(after - before.values)
        spreads = before.each(lambda values: np.full(len(values), spread(values)))
        at = ~np.isnan(taken) & (spreads > 0)
        differs = before.each(lambda values: np.full(len(values), np.ptp(values)), of=taken) > 0
        if (at := at & differs).any() and (ratio := (taken[at] / spreads[at]).max()) > 1:
            worst = np.flatnonzero(at)[np.argmax(taken[at] / spreads[at])]
            self._say(
                f"outweighs {name}",
                f"step {name!r} outweighs the rewards: it changed one by {taken[worst]:.3g}, and the rewards of that "
                f"prompt have a standard deviation of {spreads[worst]:.3g} ({ratio:.1f} times)",
            )

    def _shares(self, step: Combine, batch: Batch, total: Array) -> None:
        shares = step.shares(batch)
        if "shares" not in self._said:
            self._said.add("shares")
            shown = ", ".join(f"{name} {share:.3f}" for name, share in shares.items())
            logger.info("%s: shares of the spread within groups: %s", self._name, shown)
        if len(shares) < 2 or np.isnan(list(shares.values())).any():
            return
        first = max(shares, key=shares.__getitem__)
        signs = [np.sign(advantages(batch.rewarded(of), "none")) for of in (total, step.parts(batch)[first])]
        known = ~np.isnan(signs[0]) & (signs[0] != 0)
        if known.any() and np.array_equal(signs[0][known], signs[1][known]) and shares[first] > 0.5:
            self._say(
                f"decides {first}",
                f"{first!r} decides the sign of every advantage, with {shares[first]:.3f} of the spread within groups; "
                "the others change only sizes",
            )

    def _follows_length(self, values: Array, lengths: Array) -> None:
        known = ~np.isnan(values)
        if known.sum() > 3 and np.ptp(values[known]) > 0 and np.ptp(lengths[known]) > 0:
            found = float(np.corrcoef(values[known], lengths[known])[0, 1])
            if abs(found) > _FOLLOWS:
                self._say("length", f"rewards follow length: correlation {found:.2f} over {known.sum()} answers")

    def _all_cut(self, values: Array, cut: Array) -> None:
        known = values[~np.isnan(values)]
        if len(cut) and (share := float(cut.mean())) > 0.5 and len(known) > 1 and np.ptp(known) == 0:
            self._say(
                "cut",
                f"{share:.0%} of the answers were cut at the trainer's limit and all rewards are {known[0]:.3g}; "
                "raise max_completion_length",
            )

    def _say(self, key: str, what: str) -> None:
        if key not in self._said:
            self._said.add(key)
            logger.warning("%s: %s", self._name, what)
