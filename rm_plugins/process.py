"""This process among those that a launcher started together."""

from __future__ import annotations

import torch
from accelerate import PartialState


def this_process() -> PartialState:
    """Accelerate's view of it: one process, unless `accelerate launch` or `torchrun` started several.

    Without an accelerator the CPU must be asked for by name, or the processes never learn of each other and each does
    all the work.
    """
    return PartialState(cpu=not torch.accelerator.is_available())
