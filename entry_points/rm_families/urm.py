"""URM: five HelpSteer attributes, each with an uncertainty, and weights that the model reads from the same state.

Weights: a Llama under `model.*`, `score.weight` (10, hidden): mean and spread of each attribute in turn, and
`weights.fc`, three linear layers with SELU between that give the five weights. Both read the last token that is not the
pad. The score is the weighted sum of the means: unbounded, higher is better. Parts are the means. Source: the cards of
LxzGordon/URM-LLaMa-3.1-8B and URM-LLaMa-3-8B, and SGLang's `models/llama_reward.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rm_plugins import Family, hookimpl
from rm_plugins.attributes import CARD, COMBINE, Attributes
from rm_plugins.family import LOCAL_OPTIONS, Fit, LoadSpec, RewardModel, Score

if TYPE_CHECKING:
    from torch import Tensor

    from rm_plugins.checkpoint import Checkpoint

NAMES = ("helpfulness", "correctness", "coherence", "complexity", "verbosity")
HEADS = {"score.weight", *(f"weights.fc.{n}.{kind}" for n in (0, 2, 4) for kind in ("weight", "bias"))}


@hookimpl
def rm_families() -> Iterable[Family]:
    """Yields the URM family."""
    yield Family(
        name="urm",
        kind="attributes",
        summary="URM: five attributes with their uncertainty, and weights of its own",
        load=load,
        fits=fits,
        options=LOCAL_OPTIONS | COMBINE,
    )


def fits(checkpoint: Checkpoint) -> Fit:
    """Fits a checkpoint with a score of two outputs for each attribute and the layers of its weights."""
    heads = checkpoint.heads()
    ok = set(heads) == HEADS and heads["score.weight"][0] == 2 * len(NAMES)
    return Fit(ok, f"it reads a score of {2 * len(NAMES)} and weights.fc; heads here: {', '.join(heads) or 'none'}")


def load(spec: LoadSpec) -> RewardModel:
    """Loads backbone, means and weights."""
    from torch.nn.functional import selu

    from rm_plugins.engine.heads import stack
    from rm_plugins.engine.local import load_tokenizer, local_model
    from rm_plugins.engine.weights import load_backbone, read_tensors

    checkpoint = spec.fitting("urm", fits)
    attributes = Attributes(NAMES, spec.options.get("combine", CARD))
    tensors, width = read_tensors(checkpoint, HEADS), checkpoint.hidden_size
    outputs, weigh = stack(tensors, "score", width), stack(tensors, "weights.fc", width, selu)

    def score(hidden: Tensor) -> Score:
        means = outputs(hidden)[0, ::2]  # (5,)
        return attributes.score(means.tolist(), float(means @ weigh(hidden)[0]))

    return local_model(spec, load_backbone(spec, HEADS), load_tokenizer(checkpoint), score, parts=NAMES)
