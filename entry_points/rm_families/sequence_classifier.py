"""Sequence classifiers: stock `AutoModelForSequenceClassification` with one linear head, peft adapters, and variations.

Models: Skywork-Reward, GRM -ft, FsfairX, OffsetBias, Tulu 3 RM, and whatever TRL's RewardTrainer writes: head
`score.weight` (labels, hidden). INF-ORM and Qwen2.5-Math-RM: a stack `score.0`, ReLU, `score.2`. Athene:
`v_head.weight` read at a CLS token behind the text. Text is the model's own chat template. The score is the raw output
in float32: an unbounded logit, higher is better. Source: the models' cards, see `records.toml`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from rm_plugins import Family, hookimpl
from rm_plugins.errors import OptionError, WrongFamilyError
from rm_plugins.family import LOCAL_OPTIONS, Fit, LoadSpec, RewardModel, Score

if TYPE_CHECKING:
    from rm_plugins.checkpoint import Checkpoint

logger = logging.getLogger(__name__)

HEAD = "score.weight"
STACK = {"score.0.weight", "score.0.bias", "score.2.weight", "score.2.bias"}
ATHENE = "CustomAutoModelForSequenceClassification"
VARIATIONS = {
    "INFORMForSequenceClassification": STACK,
    "Qwen2ForRewardModel": STACK,
    ATHENE: {"v_head.weight"},
}
"""Architecture -> the names of its head's tensors."""


@hookimpl
def rm_families() -> Iterable[Family]:
    """Yields the sequence-classifier family."""
    yield Family(
        name="sequence_classifier",
        kind="pointwise",
        summary="classifiers with one head: stock ones, their peft adapters, INF-ORM, Qwen2.5-Math-RM, Athene",
        load=load,
        fits=fits,
        options=LOCAL_OPTIONS | {"positive": "two-label models: the label whose logit counts for, against the other"},
    )


def fits(checkpoint: Checkpoint) -> Fit:
    """Fits a checkpoint whose only head is `score.weight`, or that of a known variation."""
    heads = checkpoint.heads()
    shown = ", ".join(f"{name} {shape}" for name, shape in sorted(heads.items())) or "none"
    if not checkpoint.tensors:
        return Fit(False, "the folder has no safetensors file, and other formats are not read")
    if variation := VARIATIONS.get(checkpoint.architecture):
        expected = ", ".join(sorted(variation))
        return Fit(set(heads) == variation, f"{checkpoint.architecture} has {expected}, this checkpoint {shown}")
    if HEAD not in heads:
        remedy = "; this adapter has no reward head, save it again with modules_to_save" if checkpoint.adapter else ""
        return Fit(False, f"there is no {HEAD}; tensors outside the backbone: {shown}{remedy}")
    if foreign := sorted(set(heads) - {HEAD}):
        return Fit(False, f"{', '.join(foreign)} would not be read, so the number would be another model's")
    if (made_for := checkpoint.architecture) and not made_for.endswith("ForSequenceClassification"):
        return Fit(False, f"it was made for {made_for}, which may read its tensors otherwise")
    return Fit(True, f"its only head is {HEAD} {heads[HEAD]}")


def load(spec: LoadSpec) -> RewardModel:
    """Loads backbone and head.

    Raises:
        HeadError: no head, a random one, or one with several outputs and no rule to combine them.
        WrongFamilyError: head tensors of another family.
    """
    checkpoint = spec.fitting("sequence_classifier", fits)
    variation = VARIATIONS.get(checkpoint.architecture)
    return _variation(spec, checkpoint, variation) if variation else _stock(spec, checkpoint)


def _stock(spec: LoadSpec, checkpoint: Checkpoint) -> RewardModel:
    import torch
    from transformers import AutoModelForSequenceClassification

    from rm_plugins.engine.local import load_tokenizer, local_model
    from rm_plugins.engine.weights import load_classifier, read_tensors

    weight = read_tensors(checkpoint, {HEAD})[HEAD]  # (labels, hidden)
    base = checkpoint.base()
    direction = _direction(checkpoint, base, weight.shape[0], spec.options.get("positive"))
    model = load_classifier(AutoModelForSequenceClassification, spec, base, weight.shape[0], HEAD)
    tokenizer = load_tokenizer(checkpoint, base)
    _warn_of_pad(spec, tokenizer, model.config.get_text_config().pad_token_id)
    vector = torch.tensor(direction) @ weight  # (hidden,)
    backbone = getattr(model, model.base_model_prefix)
    return local_model(spec, backbone, tokenizer, lambda hidden: Score(float(hidden[0] @ vector)))


def _variation(spec: LoadSpec, checkpoint: Checkpoint, names: set[str]) -> RewardModel:
    from rm_plugins.engine.local import load_tokenizer, stack_model

    if checkpoint.architecture == ATHENE:  # its class reads the last CLS token, which nothing else writes
        spec = spec.knowing(suffix=load_tokenizer(checkpoint).cls_token)
    return stack_model(spec, names, min(names).split(".")[0])


def _direction(checkpoint: Checkpoint, base: Checkpoint, width: int, positive: str | None) -> list[float]:
    """Weights that combine the head's outputs into one number: [1.0], or +1 and -1 for two labels."""
    if width == 1:
        return [1.0]
    names = checkpoint.config.get("id2label") or base.config.get("id2label") or {}
    labels = [str(names.get(str(index), f"LABEL_{index}")) for index in range(width)]
    if width > 2:
        raise WrongFamilyError(
            f"{checkpoint.name} has {width} outputs ({', '.join(labels)}); one reward cannot be read."
        )
    if positive is None:
        raise OptionError(
            f"{checkpoint.name} has two outputs; say which counts for: positive={labels[1]!r} or {labels[0]!r}."
        )
    if positive not in labels:
        raise OptionError(
            f"positive={positive!r} is no label of {checkpoint.name}; its labels are {', '.join(labels)}."
        )
    return [1.0 if label == positive else -1.0 for label in labels]


def _warn_of_pad(spec: LoadSpec, tokenizer: Any, pad_id: int | None) -> None:
    guessed = spec.record is not None and spec.record.assumed and "pooling" not in spec.options
    if guessed and pad_id is not None and pad_id == tokenizer.eos_token_id:
        logger.warning(
            "%s pads with its eos: where the text ends in it, the token before is read, as stock transformers does; "
            "pooling='last' reads the eos, pooling='last_non_pad' says that this is right",
            spec.target,
        )
