"""`BestOfN`: several answers to each prompt, scored and chosen among."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from rm_plugins.best_of_n.policy import LocalPolicy, Policy
from rm_plugins.best_of_n.pool import Candidate, Pool
from rm_plugins.best_of_n.rules import Best, Rule, Selection
from rm_plugins.conversation import Conversation, Message, Turns
from rm_plugins.errors import OptionError, ScoringError
from rm_plugins.family import Progress, Score
from rm_plugins.reward.function import RewardFunction

Reward: TypeAlias = RewardFunction | Callable[..., Sequence[float | None]]
Finished: TypeAlias = Callable[[int, "BestOfNResult"], None]


@dataclass(frozen=True)
class BestOfNResult:
    """All that is known of one prompt.

    Attributes:
        pool: the prompt and every candidate, with its score.
        selection: what the rule chose, and how.
        chosen: the best `n_candidates` answers in the rule's order, the chosen one first.
        tokens: drawn for this prompt, all candidates together; 0 where a policy counts none.
        reward_calls: candidates that the reward was asked about, and comparisons.
    """

    pool: Pool
    selection: Selection
    chosen: tuple[Candidate, ...]
    tokens: int
    reward_calls: int

    @property
    def text(self) -> str:
        """The chosen answer."""
        return self.chosen[0].text


class BestOfN:
    """Draws n answers to a prompt and chooses among them.

    Args:
        policy: a `Policy`, or what `LocalPolicy` takes: a transformers model, a hub id or a folder.
        reward: what `load_reward` gives, or any TRL reward callable. A rule that needs no reward takes None.
        n: candidates for each prompt, at least 2.
        rule: of `rules`, `lots`, `votes` or `tournament`; best-of-n by default.
        n_candidates: how many answers to give, best first.
        seed: of all draws; the same seed draws the same for a prompt, whatever stands beside it. None draws another.
        prompts_at_once: prompts that are drawn and scored together.
        policy_settings: of `LocalPolicy`, where the policy is no `Policy`.

    Raises:
        OptionError: an n, a number of candidates or a policy setting that cannot be.
    """

    def __init__(
        self,
        policy: Any,
        reward: Reward | None,
        *,
        n: int = 16,
        rule: Rule | None = None,
        n_candidates: int = 1,
        seed: int | None = None,
        prompts_at_once: int = 16,
        **policy_settings: Any,
    ) -> None:
        if type(n) is not int or n < 2:
            raise OptionError(
                f"n={n!r} must be a whole number of at least 2: of one answer there is nothing to choose."
            )
        if type(n_candidates) is not int or not 1 <= n_candidates <= n:
            raise OptionError(f"n_candidates={n_candidates!r} must be between 1 and n={n}.")
        if hasattr(policy, "draw") and policy_settings:
            raise OptionError(f"{', '.join(policy_settings)} is the policy's own; it was made before.")
        self.policy: Policy = policy if hasattr(policy, "draw") else LocalPolicy(policy, **policy_settings)
        self.rule: Rule = rule or Best()
        self._reward, self._n, self._keep = reward, n, n_candidates
        self.seed = secrets.randbits(48) if seed is None else seed
        self._at_once = prompts_at_once

    def __call__(
        self,
        prompts: Turns | Sequence[Turns],
        *,
        columns: Sequence[dict[str, Any]] | None = None,
        progress: Progress | None = None,
        finished: Finished | None = None,
    ) -> list[BestOfNResult]:
        """Answers prompts.

        Args:
            prompts: a string or a message list, or several of them.
            columns: data-set columns of each prompt's row, for rewards that read them.
            progress: called with the number of prompts finished.
            finished: called with a prompt's number and its result as soon as it has one.

        Raises:
            ScoringError: every candidate of a prompt failed; it says why.
        """
        rows = [_turns(prompt) for prompt in _listed(prompts)]
        given = list(columns) if columns is not None else [{} for _ in rows]
        if len(given) != len(rows):
            raise OptionError(f"There are {len(rows)} prompts and {len(given)} rows of columns.")
        results: list[BestOfNResult] = []
        for start in range(0, len(rows), self._at_once):
            part = slice(start, start + self._at_once)
            for result in self._answer(rows[part], given[part]):
                results.append(result)
                if finished:
                    finished(len(results) - 1, result)
                if progress:
                    progress(1)
        return results

    def _answer(self, prompts: list[tuple[Message, ...]], columns: list[dict[str, Any]]) -> list[BestOfNResult]:
        seeds = [[_seed(self.seed, prompt, k) for k in range(self._n)] for prompt in prompts]
        drawn = self.policy.draw(prompts, seeds)
        for own in drawn:
            if len(own) != self._n:
                raise ScoringError(f"{self.policy.name} drew {len(own)} candidates where {self._n} were asked for.")
        pools = [Pool(p, tuple(own), dict(c)) for p, own, c in zip(prompts, drawn, columns, strict=True)]
        return [self._chosen(pool) for pool in self._scored(pools)]

    def _scored(self, pools: list[Pool]) -> list[Pool]:
        if self._reward is None:
            return pools
        scores = iter(score_all(self._reward, [row for pool in pools for row in pool.conversations]))
        return [
            replace(pool, candidates=tuple(replace(c, score=next(scores)) for c in pool.candidates)) for pool in pools
        ]

    def _chosen(self, pool: Pool) -> BestOfNResult:
        selection = self.rule.select(pool, np.random.default_rng(_seed(self.seed, pool.prompt, -1)))
        order = [selection.index, *(row for row in selection.ranking if row != selection.index)]
        asked = 0 if self._reward is None else len(pool)
        return BestOfNResult(
            pool,
            selection,
            tuple(pool.candidates[row] for row in order[: self._keep]),
            sum(len(candidate.ids) for candidate in pool.candidates),
            asked + selection.calls,
        )


def score_all(reward: Reward, rows: Sequence[Conversation]) -> list[Score]:
    """The scores of conversations by a reward model, or by any TRL reward callable."""
    if isinstance(reward, RewardFunction):
        return reward.score(rows)
    names = dict.fromkeys(name for row in rows for name in row.columns)
    values = list(
        reward(
            prompts=[list(row.messages[:-1]) for row in rows],
            completions=[list(row.messages[-1:]) for row in rows],
            **{name: [row.columns.get(name) for row in rows] for name in names},
        )
    )
    if len(values) != len(rows):
        raise ScoringError(f"The reward returned {len(values)} values for {len(rows)} candidates.")
    known = [None if value is None or value != value else float(value) for value in values]
    return [Score(value, error=None if value is not None else "the reward gave no value") for value in known]


def _seed(seed: int, prompt: Sequence[Message], draw: int) -> int:
    words = json.dumps([seed, list(prompt), draw], sort_keys=True, default=repr)
    return int.from_bytes(hashlib.sha256(words.encode(errors="replace")).digest()[:6], "big")


def _listed(prompts: Turns | Sequence[Turns]) -> Sequence[Turns]:
    """Several prompts, whichever form they have."""
    if isinstance(prompts, str) or (len(prompts) and isinstance(prompts[0], dict)):
        return [prompts]  # type: ignore[list-item]
    return prompts  # type: ignore[return-value]


def _turns(prompt: Turns) -> tuple[Message, ...]:
    return ({"role": "user", "content": prompt},) if isinstance(prompt, str) else tuple(prompt)
