"""QRM: nineteen attributes, each as quantiles of its distribution, weighted by a gate that reads the prompt.

Weights: a Llama under `model.*`, `regression_layer.weight` (19 x quantiles, hidden), `reward_transform_matrix` (19,
19), and a gate of linear layers, each with ReLU and a batch norm behind it, and `gating.logit_scale`. Attributes are
read at the last token, or before the first pad if the text itself holds one, the gate where the last user turn ends.
The score is the sum of the attributes' means, transformed, times the gate: higher is better. Parts are the transformed
means. Source: the cards of nicolinho/QRM-Llama3-8B and QRM-Llama3.1-8B, and RewardBench's `models/qrm.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rm_families.armorm import OBJECTIVES, load_gated
from rm_plugins import Family, hookimpl
from rm_plugins.attributes import COMBINE
from rm_plugins.family import LOCAL_OPTIONS, Fit, LoadSpec, RewardModel

if TYPE_CHECKING:
    from rm_plugins.checkpoint import Checkpoint


@hookimpl
def rm_families() -> Iterable[Family]:
    """Yields the QRM family."""
    yield Family(
        name="qrm",
        kind="attributes",
        summary="QRM: quantiles of 19 attributes, weighted by a gate that reads the prompt",
        load=load,
        fits=fits,
        options=LOCAL_OPTIONS | COMBINE,
    )


def fits(checkpoint: Checkpoint) -> Fit:
    """Fits a checkpoint whose config counts quantiles, with a regression layer of as many for each attribute."""
    heads, quantiles = checkpoint.heads(), checkpoint.config.get("num_quantiles") or 0
    named = all(name.startswith(("regression_layer.", "reward_transform_matrix", "gating.")) for name in heads)
    ok = named and quantiles > 0 and heads.get("regression_layer.weight", (0,))[0] == len(OBJECTIVES) * quantiles
    shown = ", ".join(sorted(heads)) or "none"
    return Fit(ok, f"it reads {quantiles} quantiles of {len(OBJECTIVES)} attributes; heads here: {shown}")


def load(spec: LoadSpec) -> RewardModel:
    """Loads backbone, regression, transform and gate; parts are the objectives after the transform."""
    return load_gated(spec, spec.fitting("qrm", fits), lambda rewards, transformed: transformed)
