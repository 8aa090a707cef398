"""LDL-Reward: 22 objectives, each as a distribution over ten ratings, weighted by a gate.

Weights: a Gemma 2 without a head in safetensors, and two pickles of tensors beside it: `regression_layer.pt` (hidden ->
220) and `gating_layer.pt` (hidden -> 22), each of linear layers with a leaky ReLU between. Both read the token before
the first pad, else the last. Softmax over each ten outputs gives the distribution of an objective over ratings from 0
to 1. The score is the sum of the objectives' means times the gate: about 0 to 1, higher is better. Parts are the means,
by number: the card names none. Source: the card of ShikaiChen/LDL-Reward-Gemma-2-27B-v0.1, RewardBench's
`models/ldlreward.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rm_plugins import Family, hookimpl
from rm_plugins.attributes import CARD, COMBINE, Attributes
from rm_plugins.errors import HeadError
from rm_plugins.family import LOCAL_OPTIONS, Fit, LoadSpec, RewardModel, Score

if TYPE_CHECKING:
    from torch import Tensor

    from rm_plugins.checkpoint import Checkpoint

REGRESSION, GATE = "regression_layer.pt", "gating_layer.pt"
_RATINGS = 10


@hookimpl
def rm_families() -> Iterable[Family]:
    """Yields the LDL family."""
    yield Family(
        name="ldl",
        kind="attributes",
        summary="LDL-Reward: distributions of 22 objectives over ratings, weighted by a gate",
        load=load,
        fits=fits,
        options=LOCAL_OPTIONS | COMBINE,
    )


def fits(checkpoint: Checkpoint) -> Fit:
    """Fits a Gemma 2 without a head that lies beside the two pickles."""
    if checkpoint.config.get("model_type") != "gemma2" or checkpoint.heads():
        return Fit(False, "it reads a Gemma 2 without a head of its own")
    lost = {REGRESSION, GATE} - set(checkpoint.files())
    return Fit(not lost, f"its heads are {REGRESSION} and {GATE}" + (f"; not here: {', '.join(lost)}" if lost else ""))


def load(spec: LoadSpec) -> RewardModel:
    """Loads backbone, regression and gate.

    Raises:
        HeadError: the gate does not weigh as many objectives as the regression has.
    """
    import torch
    from torch.nn.functional import leaky_relu

    from rm_plugins.engine.heads import stack
    from rm_plugins.engine.local import load_tokenizer, local_model
    from rm_plugins.engine.pickles import read_pickle
    from rm_plugins.engine.weights import load_backbone

    checkpoint = spec.fitting("ldl", fits)
    width, config = checkpoint.hidden_size, checkpoint.config
    heads = [read_pickle(checkpoint.file(head)) for head in (REGRESSION, GATE)]
    tensors = [{name: tensor.float() for name, tensor in head.items()} for head in heads]
    regression, gate = (stack(head, "network", width, leaky_relu) for head in tensors)
    probe = torch.zeros(1, width)
    outputs, weights = regression(probe).shape[1], gate(probe).shape[1]
    if outputs != _RATINGS * weights:
        raise HeadError(f"{REGRESSION} has {outputs} outputs and {GATE} {weights}; {_RATINGS} to one were expected.")
    attributes = Attributes([f"objective-{n}" for n in range(weights)], spec.options.get("combine", CARD))
    ratings = torch.linspace(0, 1, _RATINGS)

    def score(hidden: Tensor) -> Score:
        means = regression(hidden).reshape(-1, _RATINGS).softmax(-1) @ ratings  # (objectives,)
        gated = gate(hidden)[0]
        if config.get("softmax"):
            gated = (gated / config.get("temperature", 1.0)).softmax(-1)
        return attributes.score(means.tolist(), float(gated @ means))

    return local_model(spec, load_backbone(spec, ()), load_tokenizer(checkpoint), score, parts=attributes.names)
