"""Shaping around any TRL reward callable, and around several."""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from rm_plugins.conversation import Conversation, Turns, from_trl
from rm_plugins.errors import OptionError, ScoringError
from rm_plugins.reward.function import RewardFunction
from rm_plugins.shaping.batch import Rows
from rm_plugins.shaping.combine import Combine, Rule
from rm_plugins.shaping.shaper import Shaper
from rm_plugins.shaping.step import Step

if TYPE_CHECKING:
    from rm_plugins.shaping.callback import ShapingCallback

Reward: TypeAlias = Callable[..., Sequence[float | None]]


class ShapedReward:
    """One or several TRL rewards behind steps; pass it in `reward_funcs`. It pickles if they do.

    Args:
        rewards: by name.
        steps: a `Combine` first if there are several rewards.
        name: what the trainer logs.

    Raises:
        OptionError: an async reward, or one that cannot be called.
    """

    def __init__(self, rewards: Mapping[str, Reward], steps: Sequence[Step], name: str) -> None:
        for known, reward in rewards.items():
            asynchronous = inspect.iscoroutinefunction(reward) or inspect.iscoroutinefunction(type(reward).__call__)
            if asynchronous or not callable(reward):
                raise OptionError(f"Reward {known!r} must be a callable that is not async; it is {reward!r:.60}.")
        self._rewards, self.__name__ = dict(rewards), name
        self._shaper = Shaper(steps, name)

    def __call__(
        self,
        prompts: Sequence[Turns],
        completions: Sequence[Turns],
        completion_ids: Sequence[Sequence[int]] | None = None,
        **columns: Any,
    ) -> list[float | None]:
        """The shaped rewards, one per completion and in order; None where there is none.

        Raises:
            ConversationError: unequal counts or rows of a wrong form.
            ScoringError: a reward returned another number of values.
        """
        ids = {} if completion_ids is None else {"completion_ids": completion_ids}
        given = {
            name: self._asked(name, prompts=prompts, completions=completions, **ids, **columns)
            for name in self._rewards
        }
        one = next(iter(given.values()))
        rows = Rows(
            from_trl(prompts, completions, columns),
            completion_ids,
            self._count,
            self._rate(isinstance(prompts[0], str)) if len(given) == 1 else None,
            components=list(zip(*given.values(), strict=True)),
        )
        in_trainer = "trainer_state" in columns
        return self._shaper.run(one, rows, in_trainer=in_trainer, log=columns.get("log_metric"))

    def callback(self, resume_from: str | os.PathLike[str] | None = None) -> ShapingCallback:
        """For the trainer's `callbacks`; see `ShapingCallback`."""
        from rm_plugins.shaping.callback import ShapingCallback

        return ShapingCallback(self.shapers(), resume_from)

    def shapers(self) -> dict[str, Shaper]:
        """Its own steps and those of its parts, by names that tell them apart."""
        parts = [reward for reward in self._rewards.values() if isinstance(reward, RewardFunction | ShapedReward)]
        inner = {f"{self.__name__} > {name}": s for part in parts for name, s in part.shapers().items()}
        return {self.__name__: self._shaper} | inner

    def _asked(self, name: str, **call: Any) -> list[float | None]:
        values = list(self._rewards[name](**call))
        if len(values) != (rows := len(call["prompts"])):
            raise ScoringError(f"Reward {name!r} returned {len(values)} values for {rows} rows; one each was expected.")
        return [None if value is None or not math.isfinite(value) else float(value) for value in values]

    @property
    def _count(self) -> Callable[[str], int] | None:
        owner = next((r for r in self._rewards.values() if isinstance(r, RewardFunction)), None)
        return owner.count_tokens if owner else None

    def _rate(self, as_text: bool) -> Callable[[Sequence[Conversation]], Sequence[float | None]]:
        """Asks the one reward of other answers, in the form of this call."""
        [(name, reward)] = self._rewards.items()
        if isinstance(reward, RewardFunction):
            return lambda conversations: [score.value for score in reward.score(conversations)]

        def rate(conversations: Sequence[Conversation]) -> Sequence[float | None]:
            prompts = [list(row.messages[:-1]) for row in conversations]
            answers = [list(row.messages[-1:]) for row in conversations]
            return self._asked(
                name,
                prompts=[turns[-1]["content"] for turns in prompts] if as_text else prompts,
                completions=[turns[0]["content"] for turns in answers] if as_text else answers,
                **{key: [row.columns.get(key) for row in conversations] for key in conversations[0].columns},
            )

        return rate


def shape(reward: Reward, steps: Sequence[Step]) -> ShapedReward:
    """Steps around any TRL reward callable; `load_reward(..., shaping=[...])` is the same for a reward model.

    Args:
        reward: takes what TRL passes, and returns one number or None per completion.
        steps: of `rm_plugins.shaping`.
    """
    return ShapedReward({_name(reward): reward}, steps, _name(reward))


def combine(
    rewards: Sequence[Reward],
    *,
    weights: Sequence[float] | None = None,
    rule: Rule = "sum",
    shaping: Sequence[Step] = (),
    **settings: Any,
) -> ShapedReward:
    """One reward of several; each may have steps of its own.

    Args:
        rewards: TRL reward callables with different names.
        weights: one each; 1 by default. A reward that weighs 0 is only logged.
        rule: see `Combine`.
        shaping: steps behind it.
        settings: `cost`, `limit`, `rate`, `start` of rule `constrained`.

    Raises:
        OptionError: two rewards of one name, or a number of weights that is not theirs.
    """
    names = [_name(reward) for reward in rewards]
    if len(set(names)) < len(names) or not names:
        raise OptionError(f"combine needs rewards with different names; these are {', '.join(names) or 'none'}.")
    if weights is not None and len(weights) != len(names):
        raise OptionError(f"There are {len(names)} rewards and {len(weights)} weights.")
    step = Combine(weights=dict(zip(names, weights or [1.0] * len(names), strict=True)), rule=rule, **settings)
    return ShapedReward(dict(zip(names, rewards, strict=True)), [step, *shaping], f"{rule}({', '.join(names)})")


def _name(reward: Reward) -> str:
    return str(getattr(reward, "__name__", type(reward).__name__))
