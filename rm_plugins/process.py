"""This process among those that a launcher started together."""

from __future__ import annotations

import atexit
from functools import cache

import torch
from accelerate import PartialState


@cache
def this_process() -> PartialState:
    """Accelerate's view of it: one process, unless `accelerate launch` or `torchrun` started several.

    Without an accelerator the CPU must be asked for by name, or the processes never learn of each other and each does
    all the work. Asking joins their group, so it is left again: a process that ends with the group open is sometimes
    aborted by its threads, and the launcher then reports finished work as failed.
    """
    state = PartialState(cpu=not torch.accelerator.is_available())
    atexit.register(state.destroy_process_group)
    return state
