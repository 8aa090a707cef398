"""PKU's Beaver reward and cost models.

Weights: a Llama under `model.*`, `score_head.weight` (1, hidden), a bias if the config says so, and the running
statistics `normalizer.mean`, `normalizer.var`, `normalizer.count`. It reads the last token's final state. With
`do_normalize` a reward loses the mean and is divided by the deviation, a cost is only divided. A reward is higher for a
more helpful answer; a cost is higher for a more harmful one, so its record negates it. Text is written by hand,
`BEGINNING OF CONVERSATION: USER: question ASSISTANT:answer`. Source: the cards of PKU-Alignment/beaver-7b-*, and
RewardBench's `models/beaver.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from rm_plugins import Family, hookimpl
from rm_plugins.errors import HeadError
from rm_plugins.family import LOCAL_OPTIONS, Fit, LoadSpec, RewardModel, Score

if TYPE_CHECKING:
    from torch import Tensor

    from rm_plugins.checkpoint import Checkpoint

HEAD = "score_head"
STATISTICS = {"normalizer.mean", "normalizer.var", "normalizer.count"}
_EPSILON = 1e-8


@hookimpl
def rm_families() -> Iterable[Family]:
    """Yields the Beaver family."""
    yield Family(
        name="beaver",
        kind="pointwise",
        summary="Beaver reward and cost: score_head and its normalizer; a cost is negated",
        load=load,
        fits=fits,
        options=LOCAL_OPTIONS,
    )


def fits(checkpoint: Checkpoint) -> Fit:
    """Fits a checkpoint with `score_head` and nothing else but its normalizer."""
    heads = set(checkpoint.heads())
    known = {f"{HEAD}.weight", f"{HEAD}.bias"} | STATISTICS
    ok = f"{HEAD}.weight" in heads and heads <= known
    return Fit(ok, f"it reads {HEAD}; heads here: {', '.join(sorted(heads)) or 'none'}")


def load(spec: LoadSpec) -> RewardModel:
    """Loads backbone, head and normalizer; a cost model that no record describes is negated too."""
    from rm_plugins.engine.heads import stack
    from rm_plugins.engine.local import load_tokenizer, local_model
    from rm_plugins.engine.weights import load_backbone, read_tensors

    checkpoint = spec.fitting("beaver", fits)
    names = set(checkpoint.heads())
    tensors = read_tensors(checkpoint, names)
    head, normalize = stack(tensors, HEAD, checkpoint.hidden_size), _normalizer(checkpoint, tensors)
    backbone, tokenizer = load_backbone(spec, names), load_tokenizer(checkpoint)
    if checkpoint.config.get("score_type") == "cost":
        spec = spec.knowing(sign=-1)
    return local_model(spec, backbone, tokenizer, lambda hidden: Score(normalize(head(hidden).item())))


def _normalizer(checkpoint: Checkpoint, tensors: Mapping[str, Tensor]) -> Callable[[float], float]:
    kind = checkpoint.config.get("score_type", "reward")
    if not checkpoint.config.get("do_normalize") or kind == "critic":
        return float
    if missing := sorted({"normalizer.mean", "normalizer.var"} - set(tensors)):
        raise HeadError(f"{checkpoint.name} normalizes its scores and lacks {', '.join(missing)}.")
    centre = tensors["normalizer.mean"].item() if kind == "reward" else 0.0
    deviation = tensors["normalizer.var"].item() ** 0.5 + _EPSILON
    return lambda score: (score - centre) / deviation
