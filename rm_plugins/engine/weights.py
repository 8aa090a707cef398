"""Loads a stock transformers backbone and proves that every weight came from the checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rm_plugins.checkpoint import Checkpoint, bare_name, weight_files
from rm_plugins.errors import CheckpointError, HeadError, MissingExtraError, OptionError
from rm_plugins.family import LoadSpec
from rm_plugins.records import Record


def read_tensors(checkpoint: Checkpoint, names: set[str]) -> dict[str, Tensor]:
    """Reads tensors by their bare names straight from the safetensors files, in float32."""
    from safetensors import safe_open

    found: dict[str, Tensor] = {}
    for path in weight_files(checkpoint.with_weights()):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118  (safe_open is not a mapping)
                if bare_name(name) in names:
                    found[bare_name(name)] = file.get_tensor(name).float()
    return found


def torch_dtype(name: str | None) -> torch.dtype:
    """The torch dtype of a name such as "bfloat16"; float32 for None.

    Raises:
        OptionError: no floating dtype has that name.
    """
    dtype = getattr(torch, str(name or "float32").removeprefix("torch."), None)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise OptionError(f"dtype {name!r} is not a floating torch dtype; use float32, bfloat16 or float16.")
    return dtype


def placement(device: str | None) -> dict[str, Any]:
    """Arguments for from_pretrained that put a model on a device; this process's own device by default."""
    if device is None:
        from accelerate import PartialState

        device = str(PartialState().device)
    return {"device_map": device}


def load_classifier(auto_class: Any, spec: LoadSpec, base: Checkpoint, width: int, head: str) -> Any:
    """Loads a stock model with a head of the given width and refuses any weight the checkpoint did not give.

    The live head of an adapter's base is random here; families read the head tensor from the file themselves.

    Args:
        auto_class: transformers class to load with.
        spec: what to load; an adapter's layers are put on its base.
        base: the checkpoint that holds the backbone.
        width: outputs of the head.
        head: bare name of the head's weight, which may come from elsewhere.
    """
    record = spec.record or Record(id=spec.target)
    dtype = torch_dtype(record.dtype)
    try:
        model, info = auto_class.from_pretrained(
            base.with_weights(),
            num_labels=width,
            dtype=dtype,
            attn_implementation=record.attn_implementation,
            output_loading_info=True,
            trust_remote_code=False,
            use_safetensors=True,
            **placement(spec.device),
        )
    except (OSError, ValueError, RuntimeError, ImportError, KeyError) as error:
        raise CheckpointError(f"{base.name} cannot be loaded as {auto_class.__name__}: {error}") from error
    refuse_unloaded(base.name, info, {head})
    return put_adapter(model, spec.checkpoint) if spec.checkpoint and spec.checkpoint.adapter else model


def refuse_unloaded(name: str, info: Mapping[str, Any], allowed: set[str]) -> None:
    """Raises HeadError for weights that transformers had to make up: missing, mismatched or failed to convert."""
    mismatched = {str(key[0]) if isinstance(key, tuple | list) else str(key) for key in info.get("mismatched_keys", ())}
    invented = sorted((set(info.get("missing_keys", ())) | mismatched) - allowed)
    if invented:
        shown = ", ".join(invented[:5]) + (f" and {len(invented) - 5} more" if len(invented) > 5 else "")
        raise HeadError(
            f"{name} lacks weights that the model needs: {shown}. They would be random, so it is not loaded."
        )


def put_adapter(model: Any, adapter: Checkpoint) -> Any:
    """Puts a peft adapter's layers on a model, without merging, and checks that every one of its tensors arrived."""
    try:
        from peft import PeftModel
    except ImportError as error:
        raise MissingExtraError(
            f"{adapter.name} is a peft adapter. Install what reads it with: pip install 'rm-plugins[peft]'"
        ) from error
    try:
        wrapped = PeftModel.from_pretrained(model, adapter.with_weights())
    except (KeyError, RuntimeError, ValueError) as error:
        raise HeadError(
            f"peft cannot put adapter {adapter.name} on its base: {type(error).__name__}: {error}"
        ) from error
    live = {bare_name(name).replace(".default", "") for name in wrapped.state_dict()}
    lost = sorted(name for name in map(bare_name, adapter.tensors) if name not in live)
    if lost:
        raise HeadError(
            f"{len(lost)} tensors of adapter {adapter.name} have no place in its base: {', '.join(lost[:4])}."
        )
    return wrapped.base_model.model
