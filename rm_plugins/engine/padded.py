"""The plain way: rows of similar length in one padded batch, for models whose attention cannot be packed."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from rm_plugins.engine.tree import Ids

Side = Literal["left", "right"]


def batches(lengths: Sequence[int], max_tokens_in_flight: int) -> Iterator[list[int]]:
    """Yields batches of indices, longest sequences first.

    A batch holds at most `max_tokens_in_flight` tokens counted with padding, and at least one sequence. Longest first,
    so that a budget that does not fit in memory is found at once.

    Args:
        lengths: tokens of each sequence.
        max_tokens_in_flight: rows times the longest row of a batch.
    """
    batch: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        longest = lengths[batch[0]] if batch else lengths[index]
        if batch and longest * (len(batch) + 1) > max_tokens_in_flight:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


def forward(
    backbone: Any, rows: Sequence[Ids], read_at: Sequence[Sequence[int]], *, pad_id: int = 0, side: Side = "right"
) -> Tensor:
    """Runs one batch; pads are masked and never read.

    Returns:
        Final hidden states (all reads, hidden) at each row's `read_at`, row after row.
    """
    device = next(backbone.parameters()).device
    length = max(map(len, rows))
    ids = torch.full((len(rows), length), pad_id)
    mask = torch.zeros_like(ids)
    starts = [length - len(row) if side == "left" else 0 for row in rows]
    for index, (row, start) in enumerate(zip(rows, starts, strict=True)):
        ids[index, start : start + len(row)] = torch.tensor(row)
        mask[index, start : start + len(row)] = 1
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    output = backbone(
        input_ids=ids.to(device),
        attention_mask=mask.to(device),
        **accepted(backbone, position_ids=positions.to(device), use_cache=False),
    )
    where = [(i, start + p) for i, (at, start) in enumerate(zip(read_at, starts, strict=True)) for p in at]
    rows_at = torch.tensor(where, dtype=torch.long, device=output.last_hidden_state.device).reshape(-1, 2)
    return output.last_hidden_state[rows_at[:, 0], rows_at[:, 1]]  # type: ignore[no-any-return]


def forget_lengths(backbone: Any) -> None:
    """Undoes what a longer sequence has left behind in position codes that grow with length (dynamic RoPE)."""
    for module in backbone.modules():
        for name in [name for name in vars(module) if name.endswith("max_seq_len_cached")]:
            if getattr(module, name) != module.original_max_seq_len:
                prefix = name.removesuffix("max_seq_len_cached")  # of a layer type, in models with several
                now, original = f"{prefix}inv_freq", getattr(module, f"{prefix}original_inv_freq")
                module.register_buffer(now, original.to(getattr(module, now).device), persistent=False)
                setattr(module, name, module.original_max_seq_len)


def accepted(backbone: Any, **arguments: Any) -> dict[str, Any]:
    """Those arguments that the backbone's forward knows."""
    known = inspect.signature(backbone.forward).parameters
    return {name: value for name, value in arguments.items() if name in known}
