"""One look at a backbone before it is trusted with packs: are its packed states its plain ones?"""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor

from rm_plugins.engine import padded
from rm_plugins.engine.packed import PackedPass
from rm_plugins.engine.packs import lay_out
from rm_plugins.engine.quiet import quiet_transformers

logger = logging.getLogger(__name__)

_PREFIX, _ANSWERS = 40, (3, 17, 9)
_TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-9}
_LOW_PRECISION = 0.05
"""Of the largest state; in bfloat16 the plain way differs from itself by about as much when the batch changes."""


@torch.inference_mode()
def packing_is_exact(backbone: Any) -> bool:
    """Whether packed hidden states equal plain ones on a few sequences with a common beginning.

    Any reason not to be exact counts: an encoder, positions that are not arguments, attention of its own.
    """
    try:
        rows = _sequences(backbone.get_input_embeddings().num_embeddings)
        read_at = [range(len(row)) for row in rows]
        backbone.eval()
        plain = padded.forward(backbone, rows, read_at)
        with quiet_transformers():
            packed = _packed(backbone, rows, read_at)
    except Exception as error:  # models are free to fail in any way at what they were not made for
        logger.info("plain batches for %s: %s: %s", type(backbone).__name__, type(error).__name__, error)
        return False
    off = float((packed - plain).abs().max() / plain.abs().max().clamp(min=1))
    exact = off <= _TOLERANCE.get(plain.dtype, _LOW_PRECISION)
    if not exact:
        logger.info("plain batches for %s: packed states are off by %.2g", type(backbone).__name__, off)
    return exact


def _sequences(vocabulary: int) -> list[tuple[int, ...]]:
    """Ids that repeat nothing, so that a wrong position or neighbour shows."""
    ids = [7919 * i % vocabulary for i in range(1, 1 + _PREFIX + sum(_ANSWERS))]
    prefix, rest = ids[:_PREFIX], iter(ids[_PREFIX:])
    return [(*prefix, *(next(rest) for _ in range(n))) for n in _ANSWERS]


def _packed(backbone: Any, rows: list[tuple[int, ...]], read_at: list[range]) -> Tensor:
    """In two packs, so that what is kept between them is tried too."""
    plan = lay_out(rows, read_at, _PREFIX + _ANSWERS[-1] + 1)
    running = PackedPass(backbone, plan)
    found: dict[tuple[int, int], Tensor] = {}
    for pack in plan.packs:
        states = running.forward(pack)
        found |= {(read.row, read.k): states[read.offset] for read in pack.reads}
    return torch.stack([found[row, k] for row, at in enumerate(read_at) for k in at])
