"""Weights that lie in pickles: tensors are read from them and nothing else."""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from rm_plugins.errors import CheckpointError


def read_pickle(path: Path) -> dict[str, Tensor]:
    """The tensors of a pickled state dict; the unpickler makes tensors and plain containers alone.

    Raises:
        CheckpointError: it holds anything else, code above all, or is no pickle.
    """
    try:
        found = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError) as error:
        raise CheckpointError(
            f"{path} is no pickle of plain tensors, and nothing else is read from a pickle: {_first_line(error)}"
        ) from error
    if not isinstance(found, Mapping) or not all(isinstance(tensor, Tensor) for tensor in found.values()):
        raise CheckpointError(f"{path} holds {type(found).__name__}, not names and their tensors.")
    return {str(name): tensor for name, tensor in found.items()}


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
