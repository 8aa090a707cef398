"""The vocabulary head of a language model, for the few positions and tokens that are asked for.

Logits of all tokens at all positions are large: 8 answers of 1,000 tokens under a vocabulary of 128,000 are 4 GB. Here
they are computed in chunks of positions, reduced at once, and never kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from rm_plugins.errors import CheckpointError

_LOGITS = 2**24
"""Most logits held at once."""


class VocabularyHead:
    """Log-probabilities from the hidden states of a causal language model.

    Args:
        model: a transformers model with a language-model head.

    Raises:
        CheckpointError: its logits are not what its output embedding, scale and soft cap give; a probe compares.
    """

    def __init__(self, model: Any) -> None:
        projection = model.get_output_embeddings()
        if projection is None:
            raise CheckpointError(f"{type(model).__name__} has no language-model head to take log-probabilities from.")
        config = model.config.get_text_config()
        self._weight: Tensor = projection.weight  # (vocabulary, hidden)
        self._bias: Tensor | None = getattr(projection, "bias", None)
        self._cap: float | None = getattr(config, "final_logit_softcapping", None)
        scale, divisor = getattr(config, "logit_scale", None), getattr(config, "logits_scaling", None)
        self._scale = float(scale or 1) / float(divisor or 1)
        self._check(model)

    @torch.inference_mode()
    def logits(self, states: Tensor, targets: Sequence[int]) -> Tensor:
        """Logits (n, k) in float32 of the tokens `targets` after the hidden states (n, hidden)."""
        ids = torch.tensor(targets, device=self._weight.device)
        bias = None if self._bias is None else self._bias[ids]
        return self._shaped(linear(states.to(self._weight), self._weight[ids], bias))

    @torch.inference_mode()
    def log_probs(self, states: Tensor, targets: Tensor) -> Tensor:
        """Log-probabilities (n, k) in float32 of the tokens `targets` (n, k) after the hidden states (n, hidden)."""
        states, targets = states.to(self._weight.device), targets.to(self._weight.device)
        step = max(1, _LOGITS // len(self._weight))
        found = [self._chunk(states[i : i + step], targets[i : i + step]) for i in range(0, len(states), step)]
        return torch.cat(found) if found else states.new_empty(targets.shape)

    def _chunk(self, states: Tensor, targets: Tensor) -> Tensor:
        logits = self._logits(states)
        return logits.gather(1, targets) - logits.logsumexp(1, keepdim=True)

    def _logits(self, states: Tensor) -> Tensor:
        """Logits (n, vocabulary) in float32."""
        return self._shaped(linear(states.to(self._weight.dtype), self._weight, self._bias))

    def _shaped(self, logits: Tensor) -> Tensor:
        """Scaled and capped in the model's dtype, as the model does, then in float32."""
        logits = logits if self._scale == 1 else logits * self._scale
        logits = logits if self._cap is None else torch.tanh(logits / self._cap) * self._cap
        return logits.float()

    @torch.inference_mode()
    def _check(self, model: Any) -> None:
        ids = torch.arange(1, 6, device=next(model.parameters()).device)[None] % len(self._weight)
        output = model(input_ids=ids, output_hidden_states=True, use_cache=False)
        ours, theirs = self._logits(output.hidden_states[-1][0].to(self._weight.device)), output.logits[0].float()
        rtol = 1e-4 if self._weight.dtype == torch.float32 else 1e-2
        if not torch.allclose(ours, theirs.to(ours.device), rtol=rtol, atol=1e-3):
            raise CheckpointError(f"{type(model).__name__} computes its logits in a way that is not known here.")
