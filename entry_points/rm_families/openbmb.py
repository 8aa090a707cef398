r"""OpenBMB's reward models: Eurus-RM and UltraRM.

Weights: a backbone under `model.*` and `regression_head.weight` (1, hidden). It reads the last token's final state. The
score is the raw output in float32: unbounded (Eurus in the hundreds), higher is better. The cards write the text by
hand, without a chat template: `[INST] question [\INST] answer`, with a backslash, for Eurus; `Human: question`, one
line break, `Assistant: answer` for UltraRM. RewardBench writes both otherwise (`text="rewardbench"`). Source: the cards
of openbmb/Eurus-RM-7b and UltraRM-13b, and RewardBench's `models/openbmb.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rm_plugins import Family, hookimpl
from rm_plugins.family import LOCAL_OPTIONS, Fit, LoadSpec, RewardModel

if TYPE_CHECKING:
    from rm_plugins.checkpoint import Checkpoint

HEAD = "regression_head.weight"


@hookimpl
def rm_families() -> Iterable[Family]:
    """Yields the OpenBMB family."""
    yield Family(
        name="openbmb",
        kind="pointwise",
        summary="Eurus-RM and UltraRM: regression_head, text written by hand",
        load=load,
        fits=fits,
        options=LOCAL_OPTIONS,
    )


def fits(checkpoint: Checkpoint) -> Fit:
    """Fits a checkpoint whose only head is `regression_head.weight`."""
    heads = checkpoint.heads()
    return Fit(set(heads) == {HEAD}, f"it reads {HEAD}; heads here: {', '.join(sorted(heads)) or 'none'}")


def load(spec: LoadSpec) -> RewardModel:
    """Loads backbone and head."""
    from rm_plugins.engine.local import stack_model

    return stack_model(spec, spec.fitting("openbmb", fits).heads(), "regression_head")
