"""Log-probabilities of answers under one language model, or under two of one vocabulary."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, cast

from rm_plugins.engine.local import EncodingModel
from rm_plugins.engine.packs import Plan
from rm_plugins.engine.runner import Engine
from rm_plugins.engine.vocabulary import VocabularyHead
from rm_plugins.engine.weights import load_language_model
from rm_plugins.family import LoadSpec, Progress, Score
from rm_plugins.judging.groups import rescaled
from rm_plugins.text.answer import Answer, AnswerEncoder
from rm_plugins.text.encoder import Encoded

Rule: TypeAlias = Callable[[Sequence[float], Sequence[int]], Score]
"""Takes one number a token, and how many tokens each of the first steps has; returns a score, without parts."""


class Likelihood:
    """A language model that is asked how likely its text is.

    Args:
        spec: which, as in `load_language_model`.

    Attributes:
        checkpoint: where its files lie.
        config: its text config.
    """

    def __init__(self, spec: LoadSpec) -> None:
        assert spec.checkpoint
        model = load_language_model(spec)
        self.checkpoint = spec.checkpoint
        self.config: Any = model.config.get_text_config()
        self._head = VocabularyHead(model)
        self._engine = Engine(model.base_model, max_tokens_in_flight=spec.options.get("max_tokens_in_flight"))

    def plan(self, sequences: Sequence[Encoded]) -> Plan:
        """How the sequences are computed; a model of the same vocabulary can run it too."""
        return self._engine.plan(sequences)

    def log_probs(self, plan: Plan, progress: Progress | None = None) -> list[list[float]]:
        """Natural log-probability of each token behind a position that is read."""
        return [values.tolist() for values in self._engine.log_probs(plan, self._head, progress=progress)]


class ImplicitModel(EncodingModel):
    """Scores answers by their log-probability under a policy, less that under its reference.

    Parts: `log_prob` and, with a reference, `reference_log_prob`: sums over the answer; `tokens`: how many it has.

    Args:
        encoder: finds the answer.
        policy: the model that judges.
        reference: the model that its training started from; None to use log-probabilities alone, which every score is
            flagged with.
        rule: makes a number of the tokens' differences.
    """

    def __init__(self, encoder: AnswerEncoder, policy: Likelihood, reference: Likelihood | None, rule: Rule) -> None:
        super().__init__(encoder, ("log_prob", *(["reference_log_prob"] if reference else []), "tokens"))
        self._models = [policy, reference] if reference else [policy]
        self._rule = rule
        self.flags = frozenset() if reference else frozenset({"reference_free"})
        self.depends_on = reference.checkpoint.fingerprint() if reference else ""

    def _run(self, sequences: Sequence[Encoded], progress: Progress | None) -> list[Score]:
        plan = self._models[0].plan(sequences)
        advance = rescaled(progress, len(self._models) * len(sequences), len(sequences))
        each = [model.log_probs(plan, advance) for model in self._models]
        return [self._score(cast(Answer, seen), *values) for seen, *values in zip(sequences, *each, strict=True)]

    def _score(self, seen: Answer, policy: Sequence[float], reference: Sequence[float] = ()) -> Score:
        differences = [a - b for a, b in zip(policy, reference, strict=True)] if reference else policy
        score = self._rule(differences, seen.ends)
        sums = [math.fsum(values) for values in (policy, reference) if values]
        parts = dict(zip(self.parts, [*sums, float(len(policy))], strict=True))
        return Score(score.value, parts | dict(score.parts), score.steps)
