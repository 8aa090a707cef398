"""What answers: a language model that runs here, or candidates that are already there."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Protocol

from rm_plugins.best_of_n.pool import Candidate
from rm_plugins.conversation import Message
from rm_plugins.errors import OptionError
from rm_plugins.family import Progress


class Policy(Protocol):
    """Draws answers.

    Attributes:
        name: of the model, for reports and stores.
        settings: what its answers depend on beside the prompt and the seeds.
    """

    name: str
    settings: dict[str, Any]

    def draw(
        self, prompts: Sequence[Sequence[Message]], seeds: Sequence[Sequence[int]], progress: Progress | None = None
    ) -> list[list[Candidate]]:
        """One candidate for each seed of each prompt; it depends on the prompt and that seed alone.

        Args:
            prompts: turns, the last of which is to be answered.
            seeds: of each prompt, as many as candidates are wanted.
            progress: called with the number of candidates finished.
        """


class LocalPolicy:
    """A transformers model: what the draws of a prompt share is run once.

    Args:
        model: a causal language model, or its hub id or folder.
        tokenizer: of a model that was given as an object.
        temperature: 1 samples from the model's own distribution; 0 takes the likeliest token.
        top_p: share of the distribution that is sampled.
        max_new_tokens: most tokens of an answer.
        dtype: of a model that is loaded here; by default its own.
        device: of a model that is loaded here; by default this process's.
        max_tokens_in_flight: most tokens of a batch.

    Raises:
        OptionError: a setting that cannot be, or a tokenizer without a chat template.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any = None,
        *,
        temperature: float = 1.0,
        top_p: float = 1.0,
        max_new_tokens: int = 512,
        dtype: str | None = None,
        device: str | None = None,
        max_tokens_in_flight: int = 16_384,
    ) -> None:
        from rm_plugins.engine.generation import Generator

        if temperature < 0 or not 0 < top_p <= 1 or max_new_tokens < 1:
            raise OptionError(
                f"temperature={temperature}, top_p={top_p}, max_new_tokens={max_new_tokens}: the first must be at "
                "least 0, the second in (0, 1], the third at least 1."
            )
        self.name = str(getattr(model, "name_or_path", model)) or type(model).__name__
        if isinstance(model, str | os.PathLike):
            model, tokenizer = _loaded(str(model), dtype, device)
        if getattr(tokenizer, "chat_template", None) is None:
            raise OptionError(f"Policy {self.name} has no chat template, so no prompt can be written for it.")
        self.settings: dict[str, Any] = {
            "temperature": temperature,
            "top_p": top_p,
            "max_new_tokens": max_new_tokens,
            "dtype": str(model.dtype).removeprefix("torch."),
        }
        self._tokenizer = tokenizer
        self._generator = Generator(model, tokenizer, max_tokens_in_flight=max_tokens_in_flight)

    def draw(
        self, prompts: Sequence[Sequence[Message]], seeds: Sequence[Sequence[int]], progress: Progress | None = None
    ) -> list[list[Candidate]]:
        """See `Policy.draw`."""
        ids = [self._ids(prompt) for prompt in prompts]
        drawn = self._generator.draw(
            [row for row, own in zip(ids, seeds, strict=True) for _ in own],
            max_new_tokens=self.settings["max_new_tokens"],
            temperature=self.settings["temperature"],
            top_p=self.settings["top_p"],
            seeds=[seed for own in seeds for seed in own],
            progress=progress,
        )
        found = iter(Candidate(d.text, d.ids, "stop" if d.ended else "length", d.log_prob, d.certainty) for d in drawn)
        return [[next(found) for _ in own] for own in seeds]

    def _ids(self, prompt: Sequence[Message]) -> tuple[int, ...]:
        written = self._tokenizer.apply_chat_template(list(prompt), add_generation_prompt=True, return_dict=True)
        return tuple(written["input_ids"])


def _loaded(name: str, dtype: str | None, device: str | None) -> tuple[Any, Any]:
    from rm_plugins.checkpoint import Checkpoint
    from rm_plugins.engine.local import load_tokenizer
    from rm_plugins.engine.weights import load_language_model
    from rm_plugins.family import LoadSpec
    from rm_plugins.records import derive

    checkpoint = Checkpoint.open(name)
    record = derive(checkpoint)
    record = record.model_copy(update={"dtype": dtype}) if dtype else record
    model = load_language_model(LoadSpec(name, checkpoint=checkpoint, record=record, device=device))
    return model, load_tokenizer(checkpoint)
