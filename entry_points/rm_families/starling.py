"""Starling-RM-34B: `v_head.weight` on a Llama whose tensors are named `transformer.*` or `model.*`.

Weights: safetensors; `v_head.weight` is (1, hidden), without a bias. The score is the raw output in float32 at the
last token, or before the first pad if the text itself holds one: unbounded, higher is better. The card writes ChatML by
hand, without a last line break. Source: the card of Nexusflow/Starling-RM-34B, and RewardBench's `models/starling.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rm_plugins import Family, hookimpl
from rm_plugins.family import LOCAL_OPTIONS, Fit, LoadSpec, RewardModel

if TYPE_CHECKING:
    from rm_plugins.checkpoint import Checkpoint

HEAD = "v_head.weight"


@hookimpl
def rm_families() -> Iterable[Family]:
    """Yields the Starling family."""
    yield Family(
        name="starling",
        kind="pointwise",
        summary="Starling-RM-34B: v_head, text written by hand",
        load=load,
        fits=fits,
        options=LOCAL_OPTIONS,
    )


def fits(checkpoint: Checkpoint) -> Fit:
    """Fits a Llama sequence classifier whose only head is `v_head.weight`."""
    heads, made_for = checkpoint.heads(), checkpoint.architecture
    ok = set(heads) == {HEAD} and made_for in ("", "LlamaForSequenceClassification", "LlamaForCausalLM")
    return Fit(ok, f"it reads {HEAD} on a Llama; this is {made_for} with {', '.join(sorted(heads)) or 'no head'}")


def load(spec: LoadSpec) -> RewardModel:
    """Loads backbone and head."""
    from rm_plugins.engine.local import stack_model

    names = spec.fitting("starling", fits).heads()
    return stack_model(spec, names, "v_head", {r"^transformer\.": "model."})
