"""Where a model is put and in which dtype, and whether there is room for it, before any weight is loaded."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from typing import Any

import psutil
import torch

from rm_plugins.checkpoint import Checkpoint
from rm_plugins.errors import CheckpointError, OptionError
from rm_plugins.process import this_process

logger = logging.getLogger(__name__)


def torch_dtype(name: str | None) -> torch.dtype:
    """The torch dtype of a name such as "bfloat16"; float32 for None.

    Raises:
        OptionError: no floating dtype has that name.
    """
    dtype = getattr(torch, str(name or "float32").removeprefix("torch."), None)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise OptionError(f"dtype {name!r} is not a floating torch dtype; use float32, bfloat16 or float16.")
    return dtype


def placement(device: str | None, checkpoint: Checkpoint | None, dtype: torch.dtype) -> dict[str, Any]:
    """Arguments for from_pretrained that put a model on a device; this process's own device by default.

    Args:
        device: torch device; "auto" spreads the model, and what finds no room goes to the disk.
        checkpoint: of the model, where its tensors are known.
        dtype: that it will have.

    Raises:
        OptionError: torch knows no such device here.
        CheckpointError: the device has no room for the model.
    """
    if device is None:
        device = str(this_process().device)
    try:
        torch.empty(0, device="cpu" if device == "auto" else device)
    except (RuntimeError, AssertionError) as error:
        raise OptionError(f"device={device!r} cannot be used here: {str(error).splitlines()[0]}") from error
    if checkpoint and device != "auto" and "quantization_config" not in checkpoint.config:  # its size is another
        need = sum(prod(shape) for shape in checkpoint.tensors.values()) * dtype.itemsize
        logger.info("%s: %.1f GB in %s on %s", checkpoint.name, need / 1e9, dtype, device)
        check_room(checkpoint.name, need, dtype, device, _free(torch.device(device)))
    return {"device_map": device}


def check_room(name: str, need: int, dtype: torch.dtype, device: str, free: int | None) -> None:
    """Raises CheckpointError if a model of `need` bytes does not fit in the `free` bytes of a device."""
    if free is not None and need > free:
        raise CheckpointError(
            f"{name} needs {need / 1e9:.1f} GB in {str(dtype).removeprefix('torch.')} and {device} has "
            f"{free / 1e9:.1f} GB free. Choose another dtype= or device=, spread it with device='auto', or let a "
            "server run it (family remote)."
        )


def _free(device: torch.device) -> int | None:
    """Bytes that this process can still take there; None where nobody says."""
    if device.type == "cpu":
        return int(psutil.virtual_memory().available)
    if device.type == "cuda":
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + kept
    return None


@contextmanager
def unsharded() -> Iterator[None]:
    """A trainer's DeepSpeed ZeRO-3 does not apply meanwhile: it would leave every process a part of each weight."""
    from transformers.integrations import deepspeed

    kept, deepspeed._hf_deepspeed_config_weak_ref = deepspeed._hf_deepspeed_config_weak_ref, None
    try:
        yield
    finally:
        deepspeed._hf_deepspeed_config_weak_ref = kept


def refuse_sharded(model: torch.nn.Module) -> None:
    """Raises CheckpointError if a weight is empty, as those are that ZeRO-3 keeps on other processes."""
    if name := next((name for name, weight in model.named_parameters() if weight.numel() == 0), None):
        raise CheckpointError(
            f"{name} is empty on this process: it was sharded by ZeRO-3, and the model cannot be run here. Load it "
            "with load_reward, which puts whole weights on every process, or let a server run it (family remote)."
        )
