"""Value heads named `v_head.summary`: GRM -sftreg, and AceCodeRM.

Weights: a backbone under `model.*`, `lm_head` (not read), and `v_head.summary`: one linear layer with bias, or a stack
of them numbered 0, 2, ... with ReLU between. It reads the last token's final state. The score is the raw output in
float32: an unbounded logit, higher is better. Text is the model's own chat template; GRM keeps the second BOS that its
tokenizer adds. Source: the cards of Ray2333/GRM-*-sftreg and TIGER-Lab/AceCodeRM, and RewardBench's `models/grm.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from rm_plugins import Family, hookimpl
from rm_plugins.family import LOCAL_OPTIONS, Fit, LoadSpec, RewardModel

if TYPE_CHECKING:
    from rm_plugins.checkpoint import Checkpoint

HEAD = "v_head.summary"
_LAYER = re.compile(r"v_head\.summary(\.\d+)?\.(weight|bias)")


@hookimpl
def rm_families() -> Iterable[Family]:
    """Yields the value-head family."""
    yield Family(
        name="grm",
        kind="pointwise",
        summary="value heads named v_head.summary: GRM -sftreg, AceCodeRM",
        load=load,
        fits=fits,
        options=LOCAL_OPTIONS,
    )


def fits(checkpoint: Checkpoint) -> Fit:
    """Fits a checkpoint whose heads are all layers of `v_head.summary`, and that is no process model."""
    heads = checkpoint.heads()
    if not heads or not all(map(_LAYER.fullmatch, heads)):
        return Fit(False, f"its heads are not {HEAD} alone: {', '.join(sorted(heads)) or 'none'}")
    if "Prm" in checkpoint.architecture:
        return Fit(False, f"{checkpoint.architecture} scores steps")
    return Fit(True, f"its head is {HEAD}")


def load(spec: LoadSpec) -> RewardModel:
    """Loads backbone and value head."""
    from rm_plugins.engine.local import stack_model

    return stack_model(spec, spec.fitting("grm", fits).heads(), HEAD)
