"""Writes continuations: prompts of one batch share their beginning, and a row stops when its caller has seen enough."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import signature
from itertools import groupby
from typing import Any, TypeAlias

import torch
from torch import Tensor
from transformers import (
    DynamicCache,
    LogitsProcessorList,
    StoppingCriteria,
    StoppingCriteriaList,
)

from rm_plugins.engine.padded import accepted, batches
from rm_plugins.engine.probe import packing_is_exact
from rm_plugins.engine.sampling import Sampling
from rm_plugins.engine.tree import MIN_SAVING, Ids, agreement
from rm_plugins.engine.turns import evaluating
from rm_plugins.family import Progress

Enough: TypeAlias = Callable[[str], bool]
"""Whether the text written so far is all that the caller needs."""


@dataclass(frozen=True)
class Drawn:
    """What was written behind a prompt.

    Attributes:
        text: special tokens left out.
        ids: the end of sequence included, if there was one.
        ended: whether it ended by itself, or its caller had seen enough; False if it was cut.
        log_prob: sum of the tokens' natural log-probabilities under the distribution that was sampled.
        certainty: mean over tokens of -log(V p) averaged over the vocabulary (Kang et al., arXiv 2502.18581).
    """

    text: str
    ids: Ids
    ended: bool
    log_prob: float
    certainty: float


class Generator:
    """Continues prompts with a causal language model.

    Args:
        model: a transformers model with a language-model head.
        tokenizer: its tokenizer; decodes what was written.
        max_tokens_in_flight: most tokens of a batch, prompt and continuation together.
    """

    def __init__(self, model: Any, tokenizer: Any, *, max_tokens_in_flight: int = 16_384) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._budget = max_tokens_in_flight
        self._pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
        self._packs = packing_is_exact(model.base_model)  # then padding is exact too, and a prefix can be shared
        self._equal = not self._packs or bool(getattr(model.config.get_text_config(), "sliding_window", None))
        given = model.generation_config.eos_token_id
        self._ends = set(given if isinstance(given, list) else [given])
        known = signature(model.base_model.forward).parameters
        self._cache = "cache" if "cache" in known else "past_key_values"  # by the version of transformers

    @torch.inference_mode()
    def write(
        self,
        prompts: Sequence[Ids],
        *,
        max_new_tokens: int,
        enough: Enough | None = None,
        temperature: float = 0.0,
        seeds: Sequence[int] = (),
        progress: Progress | None = None,
    ) -> list[str]:
        """Texts of `draw`."""
        drawn = self.draw(
            prompts,
            max_new_tokens=max_new_tokens,
            enough=enough,
            temperature=temperature,
            seeds=seeds,
            progress=progress,
        )
        return [found.text for found in drawn]

    @torch.inference_mode()
    def draw(
        self,
        prompts: Sequence[Ids],
        *,
        max_new_tokens: int,
        enough: Enough | None = None,
        temperature: float = 0.0,
        top_p: float = 1.0,
        seeds: Sequence[int] = (),
        progress: Progress | None = None,
    ) -> list[Drawn]:
        """Continuations of the prompts, in order.

        Args:
            prompts: token ids.
            max_new_tokens: most tokens of a continuation.
            enough: stops a row as soon as it holds of the row's text.
            temperature: 0 for the likeliest token each time; else tokens are sampled.
            top_p: the likeliest tokens that together have this probability are sampled, and no others.
            seeds: one a prompt; what is sampled depends on it and on the prompt, not on the other prompts.
            progress: called with the number of prompts finished.
        """
        if temperature and len(seeds) != len(prompts):
            raise ValueError(f"Sampling takes one seed a prompt: {len(seeds)} seeds for {len(prompts)} prompts.")
        found: dict[int, Drawn] = {}
        with evaluating(self._model.base_model):
            for rows in self._batches(prompts, max_new_tokens):
                sampling = Sampling(temperature, top_p, [seeds[row] for row in rows] if temperature else [])
                written = self._batch([prompts[row] for row in rows], max_new_tokens, enough, sampling)
                found |= zip(rows, written, strict=True)
                if progress:
                    progress(len(rows))
        return [found[row] for row in range(len(prompts))]

    def _batches(self, prompts: Sequence[Ids], new: int) -> list[list[int]]:
        """Rows of similar length; of equal length where padding would change what is seen, as by a sliding window."""
        lengths = [len(prompt) + new for prompt in prompts]
        found = list(batches(lengths, self._budget))
        if not self._equal:
            return found
        return [list(same) for rows in found for _, same in groupby(rows, key=lambda row: lengths[row])]

    def _batch(self, rows: list[Ids], new: int, enough: Enough | None, sampling: Sampling) -> list[Drawn]:
        device = next(self._model.parameters()).device
        prefix, longest = self._shared(rows), max(map(len, rows))
        padded = [(*r[:prefix], *[self._pad] * (longest - len(r)), *r[prefix:]) for r in rows]  # pads behind the prefix
        mask = [[1] * prefix + [0] * (longest - len(r)) + [1] * (len(r) - prefix) for r in rows]
        ids = torch.tensor(padded, device=device)
        stop = _Stop(self._tokenizer, longest, enough) if enough else None
        output = self._model.generate(
            input_ids=ids,
            attention_mask=torch.tensor(mask, device=device),
            max_new_tokens=new,
            do_sample=False,
            logits_processor=LogitsProcessorList([sampling]),
            pad_token_id=self._pad,
            stopping_criteria=StoppingCriteriaList([stop] if stop else []),
            repetition_penalty=1.0,  # the model's own generation settings may have another
            **({self._cache: self._prefill(ids[:1, :prefix], len(rows))} if prefix else {}),
        )
        log_probs, certainties = sampling.finished(output)
        ends = stop.ends if stop else {}
        return [
            self._drawn(row[longest:].tolist(), ends.get(number), longest, log_probs[number], certainties[number])
            for number, row in enumerate(output)
        ]

    def _drawn(self, ids: list[int], end: int | None, start: int, log_probs: Tensor, certainties: Tensor) -> Drawn:
        """A row up to where it ended, by itself or for its caller; the batch may have gone on."""
        own = next((place + 1 for place, token in enumerate(ids) if token in self._ends), None)
        stops = [stop for stop in (own, end and end - start) if stop]
        length = min(stops, default=len(ids))
        text = self._tokenizer.decode(ids[:length], skip_special_tokens=True)
        mean = certainties[:length].mean().item() if length else math.nan
        return Drawn(str(text), tuple(ids[:length]), bool(stops), log_probs[:length].sum().item(), mean)

    def _shared(self, rows: list[Ids]) -> int:
        """Length of the common beginning that is prefilled once; each row keeps a token of its own to go on from."""
        if not self._packs:
            return 0
        common = min(agreement(min(rows), max(rows)), min(map(len, rows)) - 1)
        return common if common * (len(rows) - 1) >= MIN_SAVING else 0

    def _prefill(self, prefix: Tensor, rows: int) -> DynamicCache:
        cache = DynamicCache(config=self._model.config.get_text_config())
        backbone = self._model.base_model
        backbone(input_ids=prefix, **{self._cache: cache}, **accepted(backbone, use_cache=True))
        cache.batch_repeat_interleave(rows)
        return cache


class _Stop(StoppingCriteria):  # type: ignore[misc]  # transformers is untyped here
    """Ends a row whose text is enough, and remembers where: the batch may go on for the others."""

    def __init__(self, tokenizer: Any, start: int, enough: Enough) -> None:
        self.ends: dict[int, int] = {}
        self._tokenizer, self._start, self._enough = tokenizer, start, enough

    def __call__(self, input_ids: Tensor, scores: Tensor, **_: Any) -> Tensor:
        for row in range(len(input_ids)):
            if row not in self.ends:
                text = self._tokenizer.decode(input_ids[row, self._start :], skip_special_tokens=True)
                if self._enough(text):
                    self.ends[row] = input_ids.shape[1]
        return torch.tensor([row in self.ends for row in range(len(input_ids))], device=input_ids.device)
