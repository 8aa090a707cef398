"""What a user would otherwise run, on the same checkpoint and the same conversations."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForSequenceClassification, AutoTokenizer, LlamaConfig, LlamaForCausalLM, pipeline
from trl import GRPOConfig, GRPOTrainer

from benchmarks.world import Turns, real_tokenizer
from rm_plugins import RewardFunction, load_reward


def ours(folder: Path) -> RewardFunction:
    """`load_reward`, in float32."""
    return load_reward(str(folder), dtype="float32", device="cpu")


class TrlPath:
    """TRL's own way to score with a model: the code of its trainer, called as its trainer calls it."""

    def __init__(self, folder: Path) -> None:
        model = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=1, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        small = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
        policy = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), num_key_value_heads=1, **small))
        args = GRPOConfig(
            output_dir=tempfile.mkdtemp(),
            per_device_train_batch_size=2,
            num_generations=2,
            report_to=[],
            bf16=False,
            use_cpu=True,
        )
        rows = Dataset.from_list([{"prompt": [{"role": "user", "content": "x"}]}] * 2)
        self._trainer = GRPOTrainer(
            model=policy,
            reward_funcs=[model.eval()],
            reward_processing_classes=[tokenizer],
            args=args,
            train_dataset=rows,
            processing_class=real_tokenizer(),
        )

    def __call__(self, prompts: list[Turns], completions: list[Turns]) -> list[float]:
        """Rewards of the batch, padded to its longest row."""
        inputs = [{"prompt": prompt} for prompt in prompts]
        rewards = self._trainer._calculate_rewards(inputs, prompts, completions, [[0]] * len(prompts))
        return [float(value) for value in rewards.flatten()]


class PipelinePath:
    """Transformers' text-classification pipeline with raw logits, which is also what RewardBench's script runs."""

    def __init__(self, folder: Path, batch_size: int) -> None:
        model = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=1, dtype=torch.float32)
        self._tokenizer = AutoTokenizer.from_pretrained(folder)
        self._pipe: Any = pipeline("text-classification", model=model, tokenizer=self._tokenizer, device="cpu")
        self._settings = {
            "batch_size": batch_size,
            "function_to_apply": "none",
            "truncation": True,
            "padding": True,
            "max_length": 2048,
        }

    def __call__(self, prompts: list[Turns], completions: list[Turns]) -> list[float]:
        """Scores of the rendered conversations, in the order they come."""
        talks = [prompt + completion for prompt, completion in zip(prompts, completions, strict=True)]
        texts = [self._tokenizer.apply_chat_template(talk, tokenize=False) for talk in talks]
        return [float(found["score"]) for found in self._pipe(texts, **self._settings)]
