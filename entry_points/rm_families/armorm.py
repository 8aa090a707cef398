"""ArmoRM: nineteen attributes of the answer, weighted by a gate that reads the prompt.

Weights: a Llama under `model.*`, `regression_layer.weight` (19, hidden), `reward_transform_matrix` (19, 19), and a gate
`gating.layers.0` to `.3` with ReLU between and `gating.logit_scale`. Attributes are read at the last token, the gate
where the last user turn ends. The score is the sum of the attributes, transformed, times the gate: about 0 to 1, higher
is better. Parts are the attributes before the transform; HelpSteer's decode to their 0-4 scale as 5x - 0.5. Source: the
card of RLHFlow/ArmoRM-Llama3-8B-v0.1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from rm_plugins import Family, hookimpl
from rm_plugins.attributes import CARD, COMBINE, Attributes
from rm_plugins.family import LOCAL_OPTIONS, Fit, LoadSpec, RewardModel, Score

if TYPE_CHECKING:
    from torch import Tensor

    from rm_plugins.checkpoint import Checkpoint

OBJECTIVES = (
    *(f"helpsteer-{name}" for name in ("helpfulness", "correctness", "coherence", "complexity", "verbosity")),
    "ultrafeedback-overall_score",
    *(f"ultrafeedback-{name}" for name in ("instruction_following", "truthfulness", "honesty", "helpfulness")),
    "beavertails-is_safe",
    "prometheus-score",
    "argilla-overall_quality",
    "argilla-judge_lm",
    *(f"code-{name}" for name in ("complexity", "style", "explanation", "instruction-following", "readability")),
)
"""The head's outputs, in order; the checkpoint does not name them."""
_TEMPERATURE = 10.0


@hookimpl
def rm_families() -> Iterable[Family]:
    """Yields the ArmoRM family."""
    yield Family(
        name="armorm",
        kind="attributes",
        summary="ArmoRM: 19 attributes, weighted by a gate that reads the prompt",
        load=load,
        fits=fits,
        options=LOCAL_OPTIONS | COMBINE,
    )


def fits(checkpoint: Checkpoint) -> Fit:
    """Fits a checkpoint with a regression layer of 19 outputs, a transform and a gate of plain layers."""
    heads = checkpoint.heads()
    named = all(name.startswith(("regression_layer.", "reward_transform_matrix", "gating.")) for name in heads)
    ok = named and heads.get("regression_layer.weight", (0,))[0] == len(OBJECTIVES)
    return Fit(ok, f"it reads a gated regression_layer of {len(OBJECTIVES)}; heads here: {', '.join(heads) or 'none'}")


def load(spec: LoadSpec) -> RewardModel:
    """Loads backbone, regression, transform and gate; parts are the objectives before the transform."""
    return load_gated(spec, spec.fitting("armorm", fits), lambda rewards, transformed: rewards)


def load_gated(spec: LoadSpec, checkpoint: Checkpoint, shown: Callable[[Tensor, Tensor], Tensor]) -> RewardModel:
    """ArmoRM's reading of a regression with one or more outputs for each objective, of which the mean counts.

    Args:
        spec: what was asked for.
        checkpoint: what to read.
        shown: chooses the parts out of the objectives (19,), before and after the transform.
    """
    from rm_plugins.engine.heads import gate, stack
    from rm_plugins.engine.local import load_tokenizer, local_model
    from rm_plugins.engine.weights import load_backbone, read_tensors
    from rm_plugins.text.locate import prompt_end_and_pooled

    attributes = Attributes(OBJECTIVES, spec.options.get("combine", CARD))
    names = set(checkpoint.heads())
    tensors, width = read_tensors(checkpoint, names), checkpoint.hidden_size
    weigh = gate(tensors, "gating", width, checkpoint.config.get("gating_temperature", _TEMPERATURE))
    regression, transform = stack(tensors, "regression_layer", width), tensors["reward_transform_matrix"]

    def score(hidden: Tensor) -> Score:  # (2, H): the prompt's end, the answer's end
        rewards = regression(hidden[1:]).reshape(len(OBJECTIVES), -1).mean(1)  # (19,)
        transformed = rewards @ transform
        gated = float(weigh(hidden[:1])[0] @ transformed)
        return attributes.score(shown(rewards, transformed).tolist(), gated)

    tokenizer = load_tokenizer(checkpoint)
    locate = prompt_end_and_pooled(tokenizer)
    return local_model(spec, load_backbone(spec, names), tokenizer, score, locate=locate, parts=OBJECTIVES)
