"""Attention over a pack: many segments in one row, each seeing only its own past.

The model runs its linear layers over the whole row; only attention needs to know where segments begin. Transformers
lets an attention function be registered by name, and hands it queries, keys and values of any decoder that follows its
interface, with the layer's sliding window and soft cap. This one attends segment by segment, to the segment's
ancestors and to itself. Ancestors lie in the same row, or were kept by an earlier pack.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from rm_plugins.engine.packs import Pack, Plan
from rm_plugins.engine.padded import accepted

NAME = "rm_plugins_packed"
_SCORES = 2**24
"""Most scores that are held at once where they are held at all."""

_BLOCK, _BLOCK_CPU = 512, 128
"""Queries that attend at once where a mask is needed: what it hides is computed, and a block's own mask hides least."""


class Rule(NamedTuple):
    """How a layer attends: scale of the scores, width of its sliding window, soft cap of its scores."""

    scale: float
    window: int | None
    cap: float | None


class PackedPass:
    """Runs the packs of one plan, in order, keeping between them what later packs attend to."""

    def __init__(self, backbone: Any, plan: Plan) -> None:
        self._backbone = backbone
        self._plan = plan
        self._kept: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
        self._pack = Pack(0, 0)
        self._spans: list[tuple[int, int]] = []
        self._paths: list[list[int]] = []
        self._edges: dict[tuple[int | None, torch.device], Tensor] = {}
        self.windowed: set[int] = set()

    def forward(self, pack: Pack) -> Tensor:
        """Final hidden states (tokens of the pack, hidden)."""
        segments = self._plan.tree.segments[pack.first : pack.stop]
        self._pack = pack
        self._spans = list(pairwise(accumulate(map(len, segments), initial=0)))
        self._paths = [self._plan.tree.path(index) for index in range(pack.first, pack.stop)]
        ids = [i for s in segments for i in self._plan.sequences[s.row][s.start : s.stop]]
        positions = [p for s in segments for p in range(s.start, s.stop)]
        device = next(self._backbone.parameters()).device
        row, at = torch.tensor([ids], device=device), torch.tensor([positions], device=device)
        with _attending(self._backbone, self):
            output = self._backbone(input_ids=row, position_ids=at, **accepted(self._backbone, use_cache=False))
        self._kept = {(layer, s): kept for (layer, s), kept in self._kept.items() if s in pack.keep}
        return output.last_hidden_state[0]  # type: ignore[no-any-return]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, rule: Rule) -> Tensor:
        """Attention output (1, tokens, heads, head size) of one layer; query (1, heads, tokens, head size)."""
        if rule.window is not None:
            self.windowed.add(layer)
        output = query.new_empty(1, query.shape[2], query.shape[1], value.shape[-1])
        for (begin, end), path in zip(self._spans, self._paths, strict=True):
            keys, values = (self._past(layer, path, tensor, part) for part, tensor in enumerate((key, value)))
            output[:, begin:end] = self._segment(query[:, :, begin:end], keys, values, rule).transpose(1, 2)
        first = self._pack.first
        for index in (i for i in self._pack.keep if i >= first):  # those before are kept already
            begin, end = self._spans[index - first]
            self._kept[layer, index] = key[:, :, begin:end].clone(), value[:, :, begin:end].clone()
        return output

    def _past(self, layer: int, path: list[int], here: Tensor, part: int) -> Tensor:
        """Keys (part 0) or values (part 1) of a segment's ancestors and of itself, in order."""
        first = self._pack.first
        spans = [self._spans[i - first] for i in path if i >= first]
        if path[0] >= first and all(a[1] == b[0] for a, b in pairwise(spans)):
            return here[:, :, spans[0][0] : spans[-1][1]]  # they lie side by side: no copy
        kept = [self._kept[layer, i][part] for i in path if i < first]
        return torch.cat(kept + [here[:, :, a:b] for a, b in spans], 2)

    def _segment(self, query: Tensor, key: Tensor, value: Tensor, rule: Rule) -> Tensor:
        """Attention of queries that stand at the end of the keys, in blocks that bound scores and masks."""
        queries, keys = query.shape[2], key.shape[2]
        windowed = rule.window is not None and keys > rule.window
        if rule.cap is None and not windowed and (queries == 1 or queries == keys):
            return _dot_product(query, key, value, rule, None, causal=queries > 1)
        step = _BLOCK_CPU if query.is_cpu else _BLOCK
        if rule.cap is not None:
            step = max(1, min(step, _SCORES // (keys * query.shape[1])))
        blocks = []
        for start in range(0, queries, step):
            stop = min(start + step, queries)
            last = keys - queries + stop  # behind the last key that the block sees
            near = max(0, last - (stop - start) - rule.window + 1) if windowed and rule.window else 0
            mask = self._mask(stop - start, last - near, rule.window if windowed else None, query)
            blocks.append(
                _dot_product(query[:, :, start:stop], key[:, :, near:last], value[:, :, near:last], rule, mask)
            )
        return blocks[0] if len(blocks) == 1 else torch.cat(blocks, 2)

    def _mask(self, queries: int, keys: int, window: int | None, like: Tensor) -> Tensor:
        """What is added to scores (queries, keys): a query sees up to itself, and with a window only that many.

        Every such mask is a cut of one with more rows and columns, which all layers, segments and packs share.
        """
        edge = self._edges.get((window, like.device))
        if edge is None or edge.shape[1] - edge.shape[0] < keys - queries:
            edge = self._edges[window, like.device] = _edge(keys, window, like)
        first = edge.shape[1] - edge.shape[0] - (keys - queries)
        mask = edge[:queries, first : first + keys]
        return mask if like.is_cpu else mask.clone()  # kernels of accelerators want memory that is aligned


def _edge(keys: int, window: int | None, like: Tensor) -> Tensor:
    """The largest mask for so many keys: as many rows as a block has queries, and their keys and all before."""
    queries = _BLOCK_CPU if like.is_cpu else _BLOCK
    seen = torch.ones(queries, keys + queries, dtype=torch.bool, device=like.device).tril(keys)
    seen = seen if window is None else seen.triu(keys - window + 1)
    return torch.zeros_like(seen, dtype=like.dtype).masked_fill(~seen, torch.finfo(like.dtype).min)


def _dot_product(
    query: Tensor, key: Tensor, value: Tensor, rule: Rule, mask: Tensor | None, *, causal: bool = False
) -> Tensor:
    groups = query.shape[1] // key.shape[1]
    grouped = groups > 1 and rule.cap is None and (mask is None or query.is_cpu)  # the kernel repeats keys by itself
    if groups > 1 and not grouped:
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    if rule.cap is None:
        return scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=causal, scale=rule.scale, enable_gqa=grouped
        )
    scores = torch.tanh(query @ key.transpose(2, 3) * rule.scale / rule.cap) * rule.cap
    scores = scores if mask is None else scores + mask
    return scores.softmax(-1, dtype=torch.float32).to(query.dtype) @ value


_running: ContextVar[PackedPass | None] = ContextVar("rm_plugins_packed_pass", default=None)


def _interface(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """What transformers calls in every attention layer."""
    running = _running.get()
    if running is None or attention_mask is not None:
        raise RuntimeError(f"{NAME} attends only inside a PackedPass, and by no mask but its own")
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return running.attend(layer, query, key, value, Rule(scale, sliding_window, softcap)), None


@contextmanager
def _attending(backbone: Any, running: PackedPass) -> Iterator[None]:
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, _interface)
    configs = {id(module.config): module.config for module in backbone.modules() if hasattr(module, "config")}
    before = [(config, config._attn_implementation) for config in configs.values()]
    token = _running.set(running)
    backbone.set_attn_implementation(NAME)
    try:
        yield
    finally:
        for config, implementation in before:  # outer ones first: setting one sets those inside it
            config._attn_implementation = implementation
        _running.reset(token)
