"""One look at a backbone before it is trusted with packs: are its packed states its plain ones?"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rm_plugins.engine import padded
from rm_plugins.engine.packed import PackedPass
from rm_plugins.engine.packs import lay_out
from rm_plugins.engine.quiet import quiet_transformers
from rm_plugins.engine.turns import evaluating

logger = logging.getLogger(__name__)

_PREFIX, _ANSWERS = 40, (3, 17, 9)
_TOLERANCE = 1e-5
_NOISE = 3
"""In low precision the plain way differs from itself when the batch changes; packs may by this many times as much."""


@torch.inference_mode()
def packing_is_exact(backbone: Any) -> bool:
    """Whether packed hidden states equal plain ones on a few sequences with a common beginning.

    Any reason not to be exact counts: an encoder, positions that are not arguments, attention of its own. What a short
    probe cannot see, because it begins at some length, is read from the config.
    """
    try:
        rows = _sequences(backbone.get_input_embeddings().num_embeddings)
        read_at = [range(len(row)) for row in rows]
        with evaluating(backbone), quiet_transformers():
            plain = padded.forward(backbone, rows, read_at)
            alone = torch.cat([padded.forward(backbone, [row], [at]) for row, at in zip(rows, read_at, strict=True)])
            packed, windows = _packed(backbone, rows, read_at)
    except Exception as error:  # models are free to fail in any way at what they were not made for
        logger.info("plain batches for %s: %s: %s", type(backbone).__name__, type(error).__name__, error)
        return False
    reason = _hidden_rule(backbone.config.get_text_config(), windows) or _difference(packed, plain, alone)
    if reason:
        logger.info("plain batches for %s: %s", type(backbone).__name__, reason)
    return not reason


def depends_on_length(config: Any) -> bool:
    """Whether positions are encoded by the longest sequence of a pass, so that a sequence must be run by itself."""
    return _mentions(getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None))


def _mentions(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_mentions, value.values()))
    return value in ("dynamic", "longrope")


def _hidden_rule(config: Any, windows: int) -> str:
    """A rule of attention that begins at some length and that packed attention was not told of; or nothing.

    Args:
        config: of the backbone.
        windows: layers that named their sliding window.
    """
    if depends_on_length(config):
        return "its positions depend on the longest sequence of a pass"
    kinds = list(getattr(config, "layer_types", None) or [])
    if getattr(config, "attention_chunk_size", None) or set(kinds) - {"full_attention", "sliding_attention"}:
        return "it attends in chunks or not by attention alone"
    sliding = kinds.count("sliding_attention") if kinds else config.num_hidden_layers
    if getattr(config, "sliding_window", None) and windows < sliding:
        return f"{sliding} of its layers have a sliding window and {windows} name it"
    return ""


def _difference(packed: Tensor, plain: Tensor, alone: Tensor) -> str:
    scale = plain.float().square().mean(0).sqrt().clamp(min=1e-12)  # per dimension: one may be far larger than the rest
    off, noise = (float(((one - plain).float() / scale).square().mean().sqrt()) for one in (packed, alone))
    exact = plain.dtype in (torch.float32, torch.float64)
    allowed = _TOLERANCE if exact else _NOISE * noise + torch.finfo(plain.dtype).eps / 4
    return "" if off <= allowed else f"packed states are off by {off:.2g}, {allowed:.2g} are allowed"


def _sequences(vocabulary: int) -> list[tuple[int, ...]]:
    """Ids that repeat nothing, so that a wrong position or neighbour shows."""
    ids = [7919 * i % vocabulary for i in range(1, 1 + _PREFIX + sum(_ANSWERS))]
    prefix, rest = ids[:_PREFIX], iter(ids[_PREFIX:])
    return [(*prefix, *(next(rest) for _ in range(n))) for n in _ANSWERS]


def _packed(backbone: Any, rows: list[tuple[int, ...]], read_at: list[range]) -> tuple[Tensor, int]:
    """States from several packs, so that what is kept between them is tried too; and how many layers have a window."""
    plan = lay_out(rows, read_at, _PREFIX + _ANSWERS[-1] + 1)
    running = PackedPass(backbone, plan)
    found: dict[tuple[int, int], Tensor] = {}
    for pack in plan.packs:
        states = running.forward(pack)
        found |= {(read.row, read.k): states[read.offset] for read in pack.reads}
    return torch.stack([found[row, k] for row, at in enumerate(read_at) for k in at]), len(running.windowed)
