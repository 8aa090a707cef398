"""The first step of an encoder-decoder, in the form of a backbone."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.modeling_outputs import BaseModelOutput


class FirstStep(torch.nn.Module):
    """Runs the encoder and one decoder step, so that `Engine` batches rows as it does those of a backbone.

    Args:
        model: a transformers encoder-decoder with a vocabulary's head.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model, self.config = model, model.config

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> BaseModelOutput:
        """Logits (rows, tokens, vocabulary) of the first decoded token: a view, the same at every token of a row."""
        start = input_ids.new_full((len(input_ids), 1), self.config.decoder_start_token_id)
        logits = self.model(
            input_ids=input_ids, attention_mask=attention_mask, decoder_input_ids=start, use_cache=False
        ).logits
        return BaseModelOutput(last_hidden_state=logits.expand(-1, input_ids.shape[1], -1))
