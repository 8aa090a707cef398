"""Conversations to the reward model's own text and token ids."""
