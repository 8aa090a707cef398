"""Hidden states at the positions a family reads, for any number of sequences, independent of how they are batched."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Sequence
from typing import Literal

import torch
from accelerate.utils.memory import should_reduce_batch_size
from torch import Tensor, nn

from rm_plugins.engine.batches import plan
from rm_plugins.errors import OptionError, ScoringError
from rm_plugins.family import Progress
from rm_plugins.text.encoder import Encoded

logger = logging.getLogger(__name__)

DEFAULT_TOKEN_BUDGET = 16_384


class Engine:
    """Runs one decoder backbone.

    Args:
        backbone: a transformers model without a head, which returns `last_hidden_state`.
        pad_id: id that fills padding; any id serves, because padding is masked and never read.
        token_budget: most tokens in one forward pass, padding included; halved for good when memory runs out.
        padding_side: where padding goes; scores do not depend on it.
    """

    def __init__(
        self,
        backbone: nn.Module,
        *,
        pad_id: int = 0,
        token_budget: int = DEFAULT_TOKEN_BUDGET,
        padding_side: Literal["left", "right"] = "right",
    ) -> None:
        if not (isinstance(token_budget, int) and token_budget > 0):
            raise OptionError(f"token_budget={token_budget!r} must be a whole number of at least 1.")
        self.backbone = backbone
        self.pad_id = pad_id
        self.token_budget = token_budget
        self.padding_side = padding_side
        parameters = inspect.signature(backbone.forward).parameters
        self._takes = {"position_ids", "use_cache"} & set(parameters)

    @property
    def device(self) -> torch.device:
        """Where inputs go: the device of the backbone's first parameter."""
        return next(self.backbone.parameters()).device

    @torch.inference_mode()
    def hidden(self, sequences: Sequence[Encoded], progress: Progress | None = None) -> list[Tensor]:
        """Final hidden states at each sequence's `read_at`, in order.

        Returns:
            One float32 tensor (positions, hidden) per sequence, on the CPU: heads are small, and the last layer of a
            model spread over devices may lie on any of them.

        Raises:
            ScoringError: a single sequence does not fit in memory.
        """
        self.backbone.eval()  # at every call: a trainer may have put it in training mode since
        results: dict[int, Tensor] = {}
        while len(results) < len(sequences):
            todo = [index for index in range(len(sequences)) if index not in results]
            try:
                for batch in plan([len(sequences[i].ids) for i in todo], self.token_budget):
                    rows = [todo[i] for i in batch]
                    states = self._forward([sequences[i] for i in rows])
                    results.update(zip(rows, states, strict=True))
                    if progress:
                        progress(len(rows))
            except RuntimeError as error:
                if not (isinstance(error, torch.OutOfMemoryError) or should_reduce_batch_size(error)):
                    raise
                self._halve_budget(max(len(sequences[i].ids) for i in todo), error)
        return [results[index] for index in range(len(sequences))]

    def _halve_budget(self, longest: int, error: Exception) -> None:
        if self.token_budget <= longest:
            raise ScoringError(
                f"Out of memory on a single sequence of {longest} tokens; lower max_length or use a smaller dtype."
            ) from error
        self.token_budget = max(longest, self.token_budget // 2)
        logger.warning("out of memory: going on with a token budget of %d", self.token_budget)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _forward(self, rows: Sequence[Encoded]) -> list[Tensor]:
        length = max(len(row.ids) for row in rows)
        ids = torch.full((len(rows), length), self.pad_id)
        mask = torch.zeros_like(ids)
        starts = [length - len(row.ids) if self.padding_side == "left" else 0 for row in rows]
        for index, (row, start) in enumerate(zip(rows, starts, strict=True)):
            ids[index, start : start + len(row.ids)] = torch.tensor(row.ids)
            mask[index, start : start + len(row.ids)] = 1
        extra = {"position_ids": (mask.cumsum(1) - 1).clamp(min=0).to(self.device), "use_cache": False}
        output = self.backbone(
            input_ids=ids.to(self.device),
            attention_mask=mask.to(self.device),
            **{name: value for name, value in extra.items() if name in self._takes},
        )
        hidden = output.last_hidden_state  # (B, T, H)
        read = [(i, start + p) for i, (row, start) in enumerate(zip(rows, starts, strict=True)) for p in row.read_at]
        states = hidden[tuple(zip(*read, strict=True))].float().cpu()  # (all P, H): one transfer a batch
        return list(states.split([len(row.read_at) for row in rows]))
