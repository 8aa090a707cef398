"""Implicit rewards: how much likelier a policy makes an answer than the model that its training started from.

Weights: two causal language models with one vocabulary, nothing else. Reward: beta * (log p(answer | prompt) - log
p_reference(answer | prompt)), summed over the answer's tokens or their mean; higher is better, unbounded. The answer
is what stands behind the template's opening of its turn, its end included. Without a reference (`reference="none"`)
the log-probability itself: the sum, the mean, or minus the length of the vector of log-probabilities (`norm`).
EurusPRM: the running total at the end of each step. Source: Rafailov et al. 2023 (arXiv 2305.18290),
equation 5 without its partition function, which answers to one prompt share; RewardBench's rewardbench/dpo.py; the card
of EurusPRM-Stage1.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from rm_plugins import Family, hookimpl
from rm_plugins.checkpoint import Checkpoint
from rm_plugins.errors import CheckpointError, OptionError
from rm_plugins.family import LOCAL_OPTIONS, LoadSpec, RewardModel, Score, is_language_model, named_only
from rm_plugins.steps import AGGREGATE, running
from rm_plugins.text.rules import check_choice

if TYPE_CHECKING:
    from rm_plugins.engine.likelihood import Likelihood

logger = logging.getLogger(__name__)
Reduction: TypeAlias = Literal["sum", "mean", "norm"]
REDUCE: dict[Reduction, Callable[[Sequence[float]], float]] = {
    "sum": math.fsum,
    "mean": fmean,
    "norm": lambda values: -math.hypot(*values),
}
OPTIONS = {
    "reference": "the model that training started from, a hub id or folder; 'none' to use the log-probability alone",
    "beta": "what the difference of log-probabilities is multiplied by; 1 where no record says",
    "reduction": "sum or mean over the answer's tokens, or norm, which needs reference='none'",
}


@hookimpl
def rm_families() -> Iterable[Family]:
    """Yields the implicit family."""
    local = ("text", "bos", "system", "reasoning", "max_tokens_in_flight")
    yield Family(
        name="implicit",
        kind="implicit",
        summary="any DPO policy and its reference, reference-free log-probabilities, EurusPRM",
        load=load,
        fits=named_only,
        options={name: LOCAL_OPTIONS[name] for name in local} | OPTIONS | AGGREGATE,
    )


def load(spec: LoadSpec) -> RewardModel:
    """Loads the policy and its reference.

    Raises:
        OptionError: no reference is named, or a rule does not exist or needs none.
        HeadError: a checkpoint has a reward head, which would not be read.
        CheckpointError: the two have different vocabularies.
    """
    from rm_plugins.engine.likelihood import ImplicitModel, Likelihood
    from rm_plugins.engine.local import load_tokenizer
    from rm_plugins.text.answer import AnswerEncoder
    from rm_plugins.text.rules import rules_for

    record = spec.record
    steps = record.steps if record else None
    name = _reference(spec)
    score = _rule(spec, name)
    checkpoint = spec.fitting("implicit", is_language_model)
    tokenizer = load_tokenizer(checkpoint, checkpoint.base())
    policy, reference = Likelihood(spec), None
    if name != "none":
        reference = _load_reference(spec, name, tokenizer)
    else:
        logger.warning("%s is scored without a reference: its rewards are log-probabilities alone.", spec.target)
    rewardbench = spec.options.get("text") == "rewardbench"
    rules = rules_for(spec.knowing(bos="template") if rewardbench else spec, policy.config)
    encoder = AnswerEncoder(tokenizer, rules, steps, rewardbench=rewardbench)
    return ImplicitModel(encoder, policy, reference, score)


def _reference(spec: LoadSpec) -> str:
    named = spec.options.get("reference", spec.record and spec.record.reference)
    if not named:
        raise OptionError(
            f"{spec.target} is judged against the model that its training started from: name it with reference=, or "
            "say reference='none' to use log-probabilities alone."
        )
    return str(named)


def _rule(spec: LoadSpec, reference: str) -> Callable[[Sequence[float], Sequence[int]], Score]:
    """What makes a score of the tokens' differences and, for models that score steps, of the steps' ends."""
    record, reduction = spec.record, spec.options.get("reduction", "sum")
    check_choice("reduction", reduction, Reduction)
    if reduction == "norm" and reference != "none":
        raise OptionError("reduction='norm' is a rule for log-probabilities alone; it needs reference='none'.")
    beta = spec.options.get("beta", (record and record.beta) or 1.0)
    if isinstance(beta, bool) or not isinstance(beta, int | float) or not 0 < beta < math.inf:
        raise OptionError(f"beta={beta!r} must be a number above 0.")
    if not (record and record.steps):
        if "aggregate" in spec.options:
            raise OptionError(f"aggregate= is for models that score steps, and {spec.target} is not known as one.")
        return lambda values, ends: Score(beta * REDUCE[reduction](values))
    if "reduction" in spec.options:
        raise OptionError(f"{spec.target} scores steps, which aggregate= reduces; it knows no reduction=.")
    total = running(spec.options.get("aggregate", record.aggregate))
    return lambda values, ends: total([beta * math.fsum(values[:end]) for end in ends])


def _load_reference(spec: LoadSpec, name: str, tokenizer: Any) -> Likelihood:
    from rm_plugins.engine.likelihood import Likelihood
    from rm_plugins.engine.local import load_tokenizer

    checkpoint = Checkpoint.open(name)
    theirs = replace(spec, target=name, checkpoint=checkpoint, options={})
    theirs.fitting("implicit", is_language_model)
    ours, others = tokenizer.get_vocab(), load_tokenizer(checkpoint, checkpoint.base()).get_vocab()
    size = int(checkpoint.base().text_config["vocab_size"])
    if not (ours.items() <= others.items() or others.items() <= ours.items()) or max(ours.values()) >= size:
        raise CheckpointError(
            f"{spec.target} and its reference {name} have different vocabularies, so their log-probabilities are not "
            "of the same tokens."
        )
    return Likelihood(theirs)
