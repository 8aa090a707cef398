"""Runs steps over the rewards of a batch, on one process or several, and keeps what they learn."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np

from rm_plugins.errors import OptionError
from rm_plugins.judging.groups import prompt_of
from rm_plugins.shaping.batch import Array, Batch, Rows
from rm_plugins.shaping.step import Step

logger = logging.getLogger(__name__)

Log: TypeAlias = Callable[[str, float], None]
_ORDER = {"weights": 0, "normalize": 1, "penalty": 2}


@dataclass
class Trainer:
    """What `reward.callback()` learns of the trainer.

    Attributes:
        model: the policy, which is in training mode or not; None without a callback.
        scale: how the trainer scales rewards: `group`, `batch`, `none`, or "" where it is not known.
        max_length: tokens at which it cuts completions.
        eos: ids that end a completion.
    """

    model: Any = None
    scale: str = ""
    max_length: int | None = None
    eos: frozenset[int] = frozenset()

    @property
    def training(self) -> bool:
        """Whether it trains now, rather than evaluates."""
        return self.model is None or bool(self.model.training)


@dataclass(frozen=True)
class Trace:
    """What happened to one batch.

    Attributes:
        steps: each step with the batch before it, what it measured in it, and the rewards behind it.
        lengths: of the answers, all processes.
    """

    steps: list[tuple[Step, Batch, Array]]
    lengths: Array
    cut: Array = field(default_factory=lambda: np.array([]))


class Shaper:
    """The steps of one reward.

    Args:
        steps: in the order in which they are applied: normalization, then penalties; a clip may stand anywhere.
        name: of the reward, for logs.

    Raises:
        OptionError: something that is no step, or an order that would normalize penalties.
    """

    def __init__(self, steps: Sequence[Step], name: str) -> None:
        from rm_plugins.shaping.honesty import Watch

        for step in steps:
            if not isinstance(step, Step):
                raise OptionError(f"shaping holds {step!r:.60}, which is no step; see rm_plugins.shaping.")
        ranked = [(_ORDER[step.stage], step.name) for step in steps if step.stage in _ORDER]
        for (rank, before), (following, after) in pairwise(ranked):
            if following < rank:
                raise OptionError(
                    f"shaping step {after!r} stands behind {before!r}; normalization comes first, then penalties, "
                    "so that a penalty keeps the size that you gave it."
                )
        self.steps = [step.model_copy(deep=True) for step in steps]  # a step may stand in two rewards
        self.name = name
        self.trainer = Trainer()
        self._watch = Watch(name)
        self._told = False

    def run(
        self, values: Sequence[float | None], rows: Rows, *, in_trainer: bool, log: Log | None = None
    ) -> list[float | None]:
        """Shapes the rewards of this process.

        Args:
            values: raw rewards of the rows.
            rows: what they are rewards of.
            in_trainer: whether a trainer calls, on every process at once. Only then do steps learn, if it trains.
            log: takes names and numbers; each name every time.
        """
        rows = rows if rows.eos else replace(rows, eos=self.trainer.eos)
        learns = in_trainer and self.trainer.training
        if learns and self.trainer.model is None and not self._told and any(step.learns for step in self.steps):
            self._told = True
            logger.warning(
                "%s: pass callbacks=[reward.callback()] to the trainer; without it the state of its shaping is not "
                "saved, and evaluation counts as training",
                self.name,
            )
        everyone, own = self._gathered(values, rows, in_trainer)
        batch, trace = Batch.of(everyone.values, everyone.keys), []
        for place, step in enumerate(self.steps):
            seen = Batch(batch.values, batch.groups, everyone.measured[place])
            if learns:
                step.update(seen)
            batch = batch.rewarded(step.apply(seen))
            trace.append((step, seen, batch.values))
        if in_trainer:
            found = Trace(trace, np.array(everyone.lengths), np.array(everyone.cut, dtype=bool))
            self._watch.look(found, self.trainer)
        if log is not None:
            for name, number in _numbers(trace).items():
                log(f"{self.name}/{name}", number)
        return [None if np.isnan(value) else float(value) for value in batch.values[own]]

    def state_dict(self) -> list[dict[str, Any]]:
        """Each step's name, settings and what it has learnt."""
        return [
            {"step": step.name, "settings": step.model_dump(mode="json"), "state": step.state_dict()}
            for step in self.steps
        ]

    def load_state_dict(self, saved: Sequence[dict[str, Any]]) -> None:
        """Takes back what `state_dict` gave.

        Raises:
            OptionError: it is of other steps.
        """
        ours = [(entry["step"], entry["settings"]) for entry in self.state_dict()]
        if ours != [(entry["step"], entry["settings"]) for entry in saved]:
            names = ", ".join(str(entry["step"]) for entry in saved) or "none"
            raise OptionError(f"{self.name}: the saved state is of other steps or settings ({names}).")
        for step, entry in zip(self.steps, saved, strict=True):
            step.load_state_dict(entry["state"])

    def _gathered(self, values: Sequence[float | None], rows: Rows, together: bool) -> tuple[_All, slice]:
        """What every process has, in their order, and where this one's rows are."""
        measured = [step.measure(rows) for step in self.steps]
        keys = [hashlib.sha1(prompt_of(row).encode(errors="replace")).hexdigest() for row in rows.conversations]
        lengths, cut = _lengths(rows), _cut(rows, self.trainer.max_length)
        own = list(zip(values, keys, lengths, cut, *measured, strict=True))
        shares, start = [own], 0
        if together:
            from rm_plugins.process import this_process

            if (state := this_process()).num_processes > 1:
                from accelerate.utils import gather_object

                shares = gather_object([own])
                start = sum(map(len, shares[: state.process_index]))
        columns: list[Any] = list(zip(*(row for share in shares for row in share), strict=True))
        columns = columns or [()] * (4 + len(self.steps))
        rewards, prompts, counted, ended, *found = columns
        return _All(rewards, prompts, counted, ended, found), slice(start, start + len(own))


@dataclass(frozen=True)
class _All:
    values: Sequence[float | None]
    keys: Sequence[str]
    lengths: Sequence[float]
    cut: Sequence[bool]
    measured: Sequence[Sequence[Any]]


def _lengths(rows: Rows) -> list[float]:
    return rows.lengths("characters" if rows.completion_ids is None else "tokens")


def _cut(rows: Rows, max_length: int | None) -> list[bool]:
    """Whether each answer ran into the trainer's limit; False where that is not known."""
    ids = rows.completion_ids or [[] for _ in rows.conversations]
    full = [max_length is not None and len(answer) >= max_length for answer in ids]
    return [reached and not rows.eos.intersection(answer) for reached, answer in zip(full, ids, strict=True)]


def _numbers(trace: Sequence[tuple[Step, Batch, Array]]) -> dict[str, float]:
    """Mean and spread of the rewards behind each step; NaN where there are none."""
    found: dict[str, float] = {}
    for place, (step, _, after) in enumerate(trace, 1):
        known = after[~np.isnan(after)]
        found[f"{place}-{step.name}/mean"] = float(known.mean()) if len(known) else np.nan
        found[f"{place}-{step.name}/std"] = float(known.std(ddof=1)) if len(known) > 1 else np.nan
    return found
