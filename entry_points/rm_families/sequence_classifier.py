"""Stock sequence classifiers: `AutoModelForSequenceClassification` with one linear head, and peft adapters of them.

Models: Skywork-Reward, GRM -ft, FsfairX, OffsetBias, Tulu 3 RM, and whatever TRL's RewardTrainer writes. Text is the
model's own chat template. The score is the raw output of the head `score.weight` (labels, hidden) at the last token,
in float32: an unbounded logit, higher is better. Source: the models' cards, see `records.toml`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from rm_plugins import Family, hookimpl
from rm_plugins.errors import CheckpointError, HeadError, OptionError, WrongFamilyError
from rm_plugins.family import Fit, LoadSpec, RewardModel

if TYPE_CHECKING:
    from rm_plugins.checkpoint import Checkpoint

logger = logging.getLogger(__name__)

HEAD = "score.weight"
OPTIONS = {
    "bos": "BOS policy: keep, strip_prefix, strip_all, none, template",
    "eos": "end of the text: template, or append for exactly one end-of-sequence token",
    "pooling": "token to read: last, or last_non_pad (the stock rule)",
    "system": "system turns: template, merge, drop, error",
    "reasoning": "<think> blocks in the answer: keep, strip",
    "positive": "two-label models: the label whose logit counts for, against the other",
    "max_tokens_in_flight": "most tokens in one forward pass; by default what suits the device",
}


@hookimpl
def rm_families() -> Iterable[Family]:
    """Yields the sequence-classifier family."""
    yield Family(
        name="sequence_classifier",
        kind="pointwise",
        summary="stock transformers classifiers with one linear head, and their peft adapters",
        load=load,
        fits=fits,
        options=OPTIONS,
    )


def fits(checkpoint: Checkpoint) -> Fit:
    """Fits a checkpoint whose only head is `score.weight`."""
    heads = checkpoint.heads()
    shown = ", ".join(f"{name} {shape}" for name, shape in sorted(heads.items())) or "none"
    if not checkpoint.tensors:
        return Fit(False, "the folder has no safetensors file, and other formats are not read")
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
    from transformers import AutoModelForSequenceClassification

    from rm_plugins.engine.local import LocalModel
    from rm_plugins.engine.runner import Engine
    from rm_plugins.engine.weights import load_classifier, read_tensors
    from rm_plugins.text.encoder import ChatEncoder

    checkpoint = _checked(spec)
    weight = read_tensors(checkpoint, {HEAD})[HEAD]  # (labels, hidden)
    base = checkpoint.base()
    direction = _direction(checkpoint, base, weight.shape[0], spec.options.get("positive"))
    model = load_classifier(AutoModelForSequenceClassification, spec, base, weight.shape[0], HEAD)
    tokenizer = _tokenizer(checkpoint, base)
    rules = _rules(spec, model.config.get_text_config())
    _warn_of_pad(spec, tokenizer, rules.pad_id)
    engine = Engine(
        getattr(model, model.base_model_prefix),
        max_tokens_in_flight=spec.options.get("max_tokens_in_flight"),
    )
    return LocalModel(ChatEncoder(tokenizer, rules), engine, _head(direction, weight, spec))


def _checked(spec: LoadSpec) -> Checkpoint:
    checkpoint = spec.checkpoint
    if checkpoint is None:
        raise HeadError(f"Family 'sequence_classifier' reads checkpoints, and {spec.target!r} is none.")
    if not (fit := fits(checkpoint)).ok:
        foreign = HEAD in checkpoint.heads() or checkpoint.heads()
        error = WrongFamilyError if foreign else HeadError
        made_for = f" (made for {checkpoint.architecture})" if checkpoint.architecture else ""
        raise error(f"{checkpoint.name}{made_for} is no stock sequence classifier with a reward head: {fit.why}.")
    return checkpoint


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


def _tokenizer(checkpoint: Checkpoint, base: Checkpoint) -> Any:
    from transformers import AutoTokenizer

    own = checkpoint if checkpoint.tokenizer else base
    try:
        return AutoTokenizer.from_pretrained(own.folder, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{own.name} has no tokenizer that loads; save it in its folder: {error}") from error


def _rules(spec: LoadSpec, config: Any) -> Any:
    from rm_plugins.records import Record
    from rm_plugins.text.encoder import TextRules

    record = spec.record or Record(id=spec.target)
    chosen = {name: spec.options.get(name, getattr(record, name)) for name in ("bos", "eos", "pooling", "system")}
    return TextRules(
        **chosen,
        reasoning=spec.options.get("reasoning", "keep"),
        max_length=getattr(config, "max_position_embeddings", None) if record.max_length is None else record.max_length,
        pad_id=config.pad_token_id,
    )


def _warn_of_pad(spec: LoadSpec, tokenizer: Any, pad_id: int | None) -> None:
    guessed = spec.record is not None and spec.record.assumed and "pooling" not in spec.options
    if guessed and pad_id is not None and pad_id == tokenizer.eos_token_id:
        logger.warning(
            "%s pads with its eos: where the text ends in it, the token before is read, as stock transformers does; "
            "pooling='last' reads the eos, pooling='last_non_pad' says that this is right",
            spec.target,
        )


def _head(direction: list[float], weight: Any, spec: LoadSpec) -> Any:
    import torch

    from rm_plugins.family import Score

    sign = spec.record.sign if spec.record else 1
    vector = torch.tensor(direction) @ weight * sign  # (hidden,)
    return lambda hidden: Score(float(hidden[0] @ vector))  # hidden: (1, H)
