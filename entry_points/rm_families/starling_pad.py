"""What the class on Starling-RM-7B's card reads: the last pad of a text padded to the limit.

The class looks for its pad token, `<unk>`, by the first id that the tokenizer gives for it, which is the BOS. Every
text begins with one, so the position before the first "pad" is the last of all: an `<unk>` at position `limit - 1`,
which attends to the text and to no pad, not even itself. A text that fills the limit has no pad, and its own end is
read.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rm_plugins.conversation import Conversation
from rm_plugins.engine.local import Head, LocalModel
from rm_plugins.engine.runner import Engine
from rm_plugins.family import LoadSpec
from rm_plugins.text.encoder import ChatEncoder, Encoded
from rm_plugins.text.rules import rules_for


def padded_model(spec: LoadSpec, backbone: Any, tokenizer: Any, head: Head) -> LocalModel:
    """A reward model that reads the last pad; its record names the pad and the limit."""
    rules = rules_for(spec, backbone.config)
    assert rules.max_length is not None and rules.pad_id is not None
    encoder = PaddedEncoder(tokenizer, rules)
    reading = LastPad(backbone, rules.pad_id, rules.max_length)
    engine = Engine(reading, max_tokens_in_flight=spec.options.get("max_tokens_in_flight"), pack=False)
    return LocalModel(encoder, engine, head)


class PaddedEncoder(ChatEncoder):
    """Writes conversations and behind them, if there is room, the one pad that is read; the rest need not be run."""

    def encode(self, conversation: Conversation) -> Encoded:
        """Encodes one conversation; see `ChatEncoder.encode`."""
        seen, limit, pad = super().encode(conversation), self.rules.max_length, self.rules.pad_id
        if limit is None or pad is None or len(seen.ids) >= limit:
            return seen
        note = f"The pad that is read stands at position {limit - 1} of the model, as on the card."
        return Encoded((*seen.ids, pad), (len(seen.ids),), seen.text, seen.flags, (*seen.notes, note))


class LastPad(torch.nn.Module):
    """Runs a backbone so that a pad which ends a row stands at the limit and attends to the row alone.

    Args:
        backbone: a decoder without a head.
        pad_id: the pad; a row that ends in another id is run as it is.
        limit: length that the card pads to.
    """

    def __init__(self, backbone: Any, pad_id: int, limit: int) -> None:
        super().__init__()
        self.backbone, self.config = backbone, backbone.config
        self._pad, self._limit = pad_id, limit

    def forward(self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor, use_cache: bool) -> Any:
        """The backbone's output; rows (rows, tokens) are padded on their right."""
        end = attention_mask.sum(1, keepdim=True) - 1
        padded = input_ids.gather(1, end) == self._pad
        return self.backbone(
            input_ids=input_ids,
            attention_mask=attention_mask.scatter(1, end, (~padded).to(attention_mask.dtype)),
            position_ids=position_ids.scatter(
                1, end, torch.where(padded, self._limit - 1, position_ids.gather(1, end))
            ),
            use_cache=use_cache,
        )
