"""Encoders that read a question and an answer as two texts: OpenAssistant's DeBERTa reward models.

Weights: a DeBERTa-v2 or -v3 under `deberta.*`, `pooler.dense` (hidden, hidden) and `classifier` (1, hidden), as stock
sequence classification has them. The state of [CLS] goes through dense layer, its activation and classifier: an
unbounded logit in float32, higher is better. At most 512 tokens are read. Source: the cards of
OpenAssistant/reward-model-deberta-v3-large-v2 and -base.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rm_plugins import Family, hookimpl
from rm_plugins.family import LOCAL_OPTIONS, Fit, LoadSpec, RewardModel, Score

if TYPE_CHECKING:
    from torch import Tensor

    from rm_plugins.checkpoint import Checkpoint

HEADS = {f"{layer}.{kind}" for layer in ("pooler.dense", "classifier") for kind in ("weight", "bias")}


@hookimpl
def rm_families() -> Iterable[Family]:
    """Yields the family of encoders."""
    yield Family(
        name="encoder",
        kind="pointwise",
        summary="encoders of a question and an answer: OpenAssistant's DeBERTa models",
        load=load,
        fits=fits,
        options={name: LOCAL_OPTIONS[name] for name in ("reasoning", "max_tokens_in_flight")},
    )


def fits(checkpoint: Checkpoint) -> Fit:
    """Fits a DeBERTa sequence classifier with one output."""
    heads = checkpoint.heads()
    if checkpoint.config.get("model_type") != "deberta-v2":
        return Fit(False, f"it reads deberta-v2, not {checkpoint.config.get('model_type')}")
    ok = set(heads) == HEADS and heads["classifier.weight"][0] == 1
    return Fit(ok, f"it reads pooler.dense and a classifier of one output; heads here: {', '.join(sorted(heads))}")


def load(spec: LoadSpec) -> RewardModel:
    """Loads backbone, pooler and classifier."""
    from transformers.activations import ACT2FN

    from rm_plugins.engine.heads import stack
    from rm_plugins.engine.local import LocalModel, load_tokenizer
    from rm_plugins.engine.runner import Engine
    from rm_plugins.engine.weights import load_backbone, read_tensors
    from rm_plugins.text.rules import rules_for
    from rm_plugins.text.segments import QuestionAnswerEncoder

    checkpoint = spec.fitting("encoder", fits)
    tensors, width = read_tensors(checkpoint, HEADS), checkpoint.hidden_size
    pool, classify = stack(tensors, "pooler.dense", width), stack(tensors, "classifier", width)
    backbone = load_backbone(spec, HEADS)
    activation = ACT2FN[backbone.config.pooler_hidden_act]

    def score(hidden: Tensor) -> Score:
        return Score(classify(activation(pool(hidden))).item())

    rules = rules_for(spec, backbone.config)
    engine = Engine(backbone, max_tokens_in_flight=spec.options.get("max_tokens_in_flight"))
    return LocalModel(QuestionAnswerEncoder(load_tokenizer(checkpoint), rules), engine, score)
