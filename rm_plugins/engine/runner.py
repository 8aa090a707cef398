"""Hidden states at the positions a family reads, for any number of sequences, independent of how they are batched."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import torch
from accelerate.utils.memory import should_reduce_batch_size
from torch import Tensor

from rm_plugins.engine import padded
from rm_plugins.engine.packed import PackedPass
from rm_plugins.engine.packs import Plan, lay_out
from rm_plugins.engine.placing import refuse_sharded
from rm_plugins.engine.probe import depends_on_length, packing_is_exact
from rm_plugins.engine.tree import Ids
from rm_plugins.engine.turns import evaluating
from rm_plugins.engine.vocabulary import VocabularyHead
from rm_plugins.errors import OptionError, ScoringError
from rm_plugins.family import Progress
from rm_plugins.text.encoder import Encoded

logger = logging.getLogger(__name__)

_IN_FLIGHT, _IN_FLIGHT_CPU = 16_384, 1_024
"""Tokens of a pass: enough to fill a GPU; on a CPU few enough for the caches (see benchmarks)."""
_LEAST_PACK = 64
Where: TypeAlias = list[tuple[int, int]]
"""(sequence, k) of each state: it is the k-th that the sequence reads."""
Reduce: TypeAlias = Callable[[Tensor, Where], Tensor]
"""Turns hidden states (n, hidden) into what is kept of them (n, ...)."""


class _Work(NamedTuple):
    ids: Sequence[Ids]
    read_at: Sequence[Sequence[int]]

    @classmethod
    def of(cls, sequences: Sequence[Encoded] | Plan) -> _Work:
        if isinstance(sequences, Plan):
            return cls(sequences.sequences, sequences.read_at)
        return cls([s.ids for s in sequences], [s.read_at for s in sequences])


class _Step(NamedTuple):
    where: Where
    states: Tensor
    finished: list[int]


class Engine:
    """Runs one decoder backbone.

    Sequences are packed: what they share at their beginning is computed once, and no padding is computed at all. A
    backbone whose attention cannot be packed, or whose packed states differ from its plain ones in a probe, is run in
    plain padded batches.

    Args:
        backbone: a transformers model without a head, which returns `last_hidden_state`.
        max_tokens_in_flight: most tokens in one forward pass, by default what suits the device; halved for good when
            memory runs out.
        padding_side: where padding goes in plain batches; scores do not depend on it.
        pad_id: id that fills padding there; any id serves.
        pack: False to use plain batches only.

    Raises:
        CheckpointError: the backbone's weights lie on other processes.
        OptionError: no such budget.
    """

    def __init__(
        self,
        backbone: Any,
        *,
        max_tokens_in_flight: int | None = None,
        padding_side: padded.Side = "right",
        pad_id: int = 0,
        pack: bool = True,
    ) -> None:
        refuse_sharded(backbone)
        if max_tokens_in_flight is None:
            on_cpu = next(backbone.parameters()).device.type == "cpu"
            max_tokens_in_flight = _IN_FLIGHT_CPU if on_cpu else _IN_FLIGHT
        if type(max_tokens_in_flight) is not int or max_tokens_in_flight < 1:
            raise OptionError(f"max_tokens_in_flight={max_tokens_in_flight!r} must be a whole number of at least 1.")
        self.backbone = backbone
        self.max_tokens_in_flight = max_tokens_in_flight
        self._side: padded.Side = padding_side
        self._pad_id = pad_id
        self._pack = pack

    @cached_property
    def packs(self) -> bool:
        """Whether sequences are packed."""
        return self._pack and packing_is_exact(self.backbone)

    def hidden(self, sequences: Sequence[Encoded] | Plan, progress: Progress | None = None) -> list[Tensor]:
        """Final hidden states at each sequence's `read_at`, in order.

        Returns:
            One float32 tensor (positions, hidden) per sequence, on the CPU: heads are small, and the last layer of a
            model spread over devices may lie on any of them.

        Raises:
            ScoringError: a single sequence does not fit in memory.
        """
        return self.read(sequences, lambda states, _: states.float().cpu(), progress)

    def log_probs(
        self,
        sequences: Sequence[Encoded] | Plan,
        head: VocabularyHead,
        targets: Sequence[int] | None = None,
        progress: Progress | None = None,
    ) -> list[Tensor]:
        """Log-probabilities after each sequence's `read_at`; only these positions reach the vocabulary.

        Args:
            sequences: to score the tokens `a` to `b` of one, read at `a - 1` to `b - 1`.
            head: of the model that the backbone belongs to.
            targets: token ids to look up at every position, verdict tokens say; by default the sequence's own next one.
            progress: called with the number of sequences finished.

        Returns:
            One float32 tensor on the CPU per sequence: (positions,), or (positions, targets) where they were given.
        """
        work = _Work.of(sequences)

        def reduce(states: Tensor, where: Where) -> Tensor:
            wanted = [targets or [work.ids[row][work.read_at[row][k] + 1]] for row, k in where]
            return head.log_probs(states, torch.tensor(wanted)).cpu()

        found = self.read(sequences, reduce, progress)
        return found if targets else [values.reshape(len(values)) for values in found]

    def plan(self, sequences: Sequence[Encoded]) -> Plan:
        """How the sequences are computed; two models with one vocabulary can run one plan."""
        return lay_out(*_Work.of(sequences), self.max_tokens_in_flight)

    @torch.inference_mode()
    def read(
        self, sequences: Sequence[Encoded] | Plan, reduce: Reduce, progress: Progress | None = None
    ) -> list[Tensor]:
        """What `reduce` makes of the hidden states at each sequence's `read_at`: one tensor (positions, ...) each."""
        ready = sequences if isinstance(sequences, Plan) else None
        work = _Work.of(sequences)
        results: list[dict[int, Tensor]] = [{} for _ in work.ids]
        todo = list(range(len(work.ids)))
        with evaluating(self.backbone):
            while todo:
                done: set[int] = set()
                try:
                    for step in self._steps(work, todo, ready):
                        for (row, k), value in zip(step.where, reduce(step.states, step.where), strict=True):
                            results[row][k] = value
                        done.update(step.finished)
                        if progress:
                            progress(len(step.finished))
                except RuntimeError as error:
                    if not (isinstance(error, torch.OutOfMemoryError) or should_reduce_batch_size(error)):
                        raise
                    self._halve_budget(max(len(work.ids[row]) for row in todo), error)
                    ready = None
                todo = [row for row in todo if row not in done]
        return [torch.stack([found[k] for k in sorted(found)]) if found else torch.empty(0) for found in results]

    def _steps(self, work: _Work, todo: list[int], ready: Plan | None) -> Iterator[_Step]:
        if not self.packs:
            alone = depends_on_length(getattr(self.backbone, "config", None))
            budget = 1 if alone else self.max_tokens_in_flight
            for batch in padded.batches([len(work.ids[row]) for row in todo], budget):
                if alone:
                    padded.forget_lengths(self.backbone)
                rows = [todo[i] for i in batch]
                at = [work.read_at[row] for row in rows]
                states = padded.forward(
                    self.backbone, [work.ids[row] for row in rows], at, pad_id=self._pad_id, side=self._side
                )
                yield _Step([(row, k) for row in rows for k in range(len(work.read_at[row]))], states, rows)
            return
        plan = ready or lay_out([work.ids[i] for i in todo], [work.read_at[i] for i in todo], self.max_tokens_in_flight)
        running = PackedPass(self.backbone, plan)
        for pack in plan.packs:
            states = running.forward(pack)
            where = [(todo[read.row], read.k) for read in pack.reads]
            yield _Step(where, states[[read.offset for read in pack.reads]], [todo[i] for i in pack.finished])

    def _halve_budget(self, longest: int, error: Exception) -> None:
        least = _LEAST_PACK if self.packs else longest
        if self.max_tokens_in_flight <= least:
            raise ScoringError(
                f"Out of memory on a single sequence of {longest} tokens; lower max_length or use a smaller dtype."
            ) from error
        self.max_tokens_in_flight = max(least, self.max_tokens_in_flight // 2)
        logger.warning("out of memory: going on with %d tokens in flight", self.max_tokens_in_flight)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
