"""The reward as the module that TRL's PPOTrainer takes apart (trl 1.12 and earlier).

PPO never calls its reward model. It takes the backbone by `base_model_prefix`, feeds it the policy's token ids with
pads replaced by 0, takes the last hidden states, sends them through `score`, and picks one position of each row. So the
backbone here turns the ids back into a conversation, scores it with the reward model's own text, and returns that score
at every position.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rm_plugins.text.policy import PolicyText

if TYPE_CHECKING:
    from rm_plugins.reward.function import RewardFunction


class PPORewardModule(nn.Module):
    """Pass it as `reward_model` to PPOTrainer; it has the three parts PPO needs."""

    base_model_prefix = "model"

    def __init__(self, reward: RewardFunction, processing_class: Any, dataset: Any = None) -> None:
        super().__init__()
        self.model = _Backbone(reward, PolicyText(processing_class, dataset))
        self.score = nn.Identity()


class _Backbone(nn.Module):
    def __init__(self, reward: RewardFunction, text: PolicyText) -> None:
        super().__init__()
        self._reward = reward
        self._text = text

    def forward(self, input_ids: Tensor, attention_mask: Tensor, **_: Any) -> SimpleNamespace:
        """Scores policy ids.

        Args:
            input_ids: (B, T), prompt and response in the policy's ids.
            attention_mask: (B, T), false at the policy's pads.

        Returns:
            `last_hidden_state` and `hidden_states[-1]`, both (B, T, 1): the row's reward at every position, because
            PPO picks the position itself. TRL reads one or the other, by version.
        """
        rows = [ids[keep].tolist() for ids, keep in zip(input_ids, attention_mask.bool(), strict=True)]
        rewards = torch.tensor(self._rewards(rows), dtype=torch.float32, device=input_ids.device)
        hidden = rewards[:, None, None].expand(-1, input_ids.shape[1], 1)  # (B, T, 1)
        return SimpleNamespace(last_hidden_state=hidden, hidden_states=(hidden,))

    def _rewards(self, rows: Sequence[list[int]]) -> list[float]:
        conversations = [self._text.conversation(row) for row in rows]
        scores = self._reward.shaped(self._reward.score(conversations), conversations, in_trainer=True)
        return [self._reward.value(score, row) for row, score in enumerate(scores)]
