"""Loads a stock backbone from weights that a family rewrote: split, renamed or read from another kind of file."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from rm_plugins.engine.placing import placement, torch_dtype, unsharded
from rm_plugins.engine.quiet import quiet_transformers
from rm_plugins.engine.weights import refuse_unloaded
from rm_plugins.errors import CheckpointError
from rm_plugins.family import LoadSpec
from rm_plugins.records import Record


def load_rewritten(spec: LoadSpec, config: Any, tensors: Iterable[tuple[str, Tensor]]) -> Any:
    """The backbone of a config with the given weights, every one of which it needs and uses.

    Args:
        spec: what to load; dtype, attention and device are taken from it.
        config: a stock transformers config.
        tensors: names as the backbone calls them, and weights; held once, in the dtype that the model runs in.

    Raises:
        HeadError: a weight is missing.
        CheckpointError: one is left over, or has another shape than the config says.
    """
    from transformers import MODEL_MAPPING

    record = spec.record or Record(id=spec.target)
    dtype = torch_dtype(record.dtype)
    place = placement(spec.device, spec.checkpoint, dtype)
    weights = {name: tensor.to(dtype) for name, tensor in tensors}
    try:
        with unsharded(), quiet_transformers():
            model, info = MODEL_MAPPING[type(config)].from_pretrained(
                None,
                config=config,
                state_dict=weights,
                dtype=dtype,
                attn_implementation=record.attn_implementation,
                output_loading_info=True,
                **place,
            )
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        raise CheckpointError(f"{spec.target} cannot be loaded as {config.model_type}: {error}") from error
    refuse_unloaded(spec.target, info, set())
    return model
