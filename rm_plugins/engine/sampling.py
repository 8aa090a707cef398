"""Sampling that depends on a row's own seed alone, and what was taken with which probability."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import LogitsProcessor, TopPLogitsWarper


class Sampling(LogitsProcessor):  # type: ignore[misc]  # transformers is untyped here
    """Gumbel noise, under which the likeliest token is a sample; each row draws from a generator of its own.

    It also keeps the log-probability of each token that was taken, which is known one step later.
    """

    def __init__(self, temperature: float, top_p: float, seeds: Sequence[int]) -> None:
        self._temperature = temperature
        self._top_p = TopPLogitsWarper(top_p) if temperature and top_p < 1 else None
        self._sources = [torch.Generator().manual_seed(seed) for seed in seeds]
        self._last: Tensor | None = None
        self._taken: list[Tensor] = []
        self._certain: list[Tensor] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Scores (rows, vocabulary) of which the highest is to be taken."""
        self._take(input_ids[:, -1])
        tempered = scores.float() / (self._temperature or 1.0)
        if self._top_p:
            tempered = self._top_p(input_ids, tempered)
        self._last = tempered.log_softmax(-1)
        plain = scores.float().log_softmax(-1)
        self._certain.append(-plain.mean(-1) - math.log(scores.shape[1]))
        if not self._temperature:
            return scores
        drawn = torch.stack([torch.rand(scores.shape[1], generator=source) for source in self._sources])
        return tempered - (-drawn.clamp_min(1e-20).log()).log().to(tempered)

    def _take(self, tokens: Tensor) -> None:
        if self._last is not None:
            self._taken.append(self._last.gather(1, tokens[:, None])[:, 0])

    def finished(self, output: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probability and self-certainty of each token, (rows, steps) each."""
        self._take(output[:, -1])
        return torch.stack(self._taken, 1).cpu(), torch.stack(self._certain, 1).cpu()
