"""A reward model that runs here: encoder, engine and head, joined."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeAlias

from torch import Tensor

from rm_plugins.checkpoint import Checkpoint
from rm_plugins.conversation import Conversation
from rm_plugins.engine.heads import stack
from rm_plugins.engine.runner import Engine
from rm_plugins.engine.store import ScoreStore
from rm_plugins.engine.weights import load_backbone, read_tensors
from rm_plugins.errors import CheckpointError, ConversationError, TextError
from rm_plugins.family import Explanation, LoadSpec, Progress, Score
from rm_plugins.text.encoder import ChatEncoder, Encoded
from rm_plugins.text.locate import Locate
from rm_plugins.text.rules import rules_for

Head: TypeAlias = Callable[[Tensor], Score]
"""Takes the float32 hidden states (positions, hidden) of one conversation and returns its score, without flags."""


class Encoder(Protocol):
    """Turns a conversation into ids and read positions; raises TextError or ConversationError where it cannot."""

    def encode(self, conversation: Conversation) -> Encoded:
        """Encodes one conversation."""

    def explain(self, conversation: Conversation) -> Explanation:
        """Shows what `encode` made."""


_WINDOW = 1024
"""Conversations encoded and run together; what is held at once does not grow with how many there are."""


class EncodingModel(ABC):
    """Implements `RewardModel` for what scores token ids.

    Identical conversations of a call are encoded and scored once. With a store, what it holds is not computed again.

    Attributes:
        encoder: writes conversations.
        parts: names of the parts that scores always have.
        store: keeps scores, if there is one.
        flags: flags of every score.
        depends_on: what the numbers depend on beside the checkpoint and the options, another checkpoint say.
        columns: data-set columns that the encoder reads beside the messages.
    """

    flags: frozenset[str] = frozenset()
    depends_on = ""
    columns: tuple[str, ...] = ()

    def __init__(self, encoder: Encoder, parts: Sequence[str] = ()) -> None:
        self.encoder = encoder
        self.parts = tuple(parts)
        self.store: ScoreStore | None = None

    def score(self, conversations: Sequence[Conversation], progress: Progress | None = None) -> list[Score]:
        """Scores in order; a conversation the text rules refuse has no value, the flag `failed` and the reason."""
        scores: list[Score] = []
        for start in range(0, len(conversations), _WINDOW):
            scores += self._window(conversations[start : start + _WINDOW], progress)
        return scores

    def explain(self, conversation: Conversation) -> Explanation:
        """What the model will see."""
        return self.encoder.explain(conversation)

    def _window(self, conversations: Sequence[Conversation], progress: Progress | None) -> list[Score]:
        names = [self._name(conversation) for conversation in conversations]
        unique = dict(zip(names, conversations, strict=True))
        seen = {name: self._encode(conversation) for name, conversation in unique.items()}
        readable = [encoded for encoded in seen.values() if isinstance(encoded, Encoded)]
        known = self.store.find(readable) if self.store else {}
        todo = [encoded for encoded in readable if encoded not in known]
        if progress:
            progress(len(conversations) - len(todo))
        fresh = dict(zip(todo, self._run(todo, progress), strict=True)) if todo else {}
        if self.store:
            self.store.keep(fresh)
        found = known | fresh
        return [self._flagged(found[e], e) if isinstance(e := seen[name], Encoded) else e for name in names]

    def _name(self, conversation: Conversation) -> str:
        """The same for conversations that are encoded alike."""
        read = [conversation.columns.get(column) for column in self.columns]
        return json.dumps([conversation.messages, *read], sort_keys=True, default=repr)

    def _flagged(self, score: Score, encoded: Encoded) -> Score:
        return replace(score, flags=score.flags | encoded.flags | self.flags)

    @abstractmethod
    def _run(self, sequences: Sequence[Encoded], progress: Progress | None) -> list[Score]:
        """The scores of what was encoded, without its flags."""

    def _encode(self, conversation: Conversation) -> Encoded | Score:
        try:
            return self.encoder.encode(conversation)
        except (TextError, ConversationError) as error:
            return Score(None, flags=frozenset({"failed"}), error=str(error))


class LocalModel(EncodingModel):
    """An encoder, a backbone and a head."""

    def __init__(self, encoder: Encoder, engine: Engine, head: Head, parts: Sequence[str] = ()) -> None:
        super().__init__(encoder, parts)
        self.engine = engine
        self._head = head

    def _run(self, sequences: Sequence[Encoded], progress: Progress | None) -> list[Score]:
        return [self._head(states) for states in self.engine.hidden(sequences, progress)]


def local_model(
    spec: LoadSpec,
    backbone: Any,
    tokenizer: Any,
    head: Head,
    *,
    locate: Locate | None = None,
    parts: Sequence[str] = (),
) -> LocalModel:
    """A reward model of a backbone and a head, its text made by the record's rules.

    Args:
        spec: what was asked for; its options are those of `LOCAL_OPTIONS`.
        backbone: a transformers model without a head.
        tokenizer: the model's own.
        head: turns the states that are read into a score; a record whose sign is -1 negates its value.
        locate: the positions to read, where it is not the one that the record pools.
        parts: names of the parts of its scores.
    """
    rules = rules_for(spec, backbone.config.get_text_config())
    engine = Engine(backbone, max_tokens_in_flight=spec.options.get("max_tokens_in_flight"))
    signed: Head = head if spec.record is None or spec.record.sign > 0 else lambda hidden: _negated(head(hidden))
    return LocalModel(ChatEncoder(tokenizer, rules, locate), engine, signed, parts)


def stack_model(
    spec: LoadSpec, names: Collection[str], prefix: str, key_mapping: Mapping[str, str] | None = None
) -> LocalModel:
    """A backbone under a stack of linear layers with ReLU between, read at the position that the record pools.

    Args:
        spec: what was asked for, with a checkpoint.
        names: the head's tensors.
        prefix: what their names begin with, up to the number of the layer.
        key_mapping: see `load_backbone`.
    """
    assert spec.checkpoint
    head = stack(read_tensors(spec.checkpoint, set(names)), prefix, spec.checkpoint.hidden_size)
    backbone = load_backbone(spec, names, key_mapping)
    return local_model(spec, backbone, load_tokenizer(spec.checkpoint), lambda hidden: Score(head(hidden).item()))


def load_tokenizer(*owners: Checkpoint) -> Any:
    """The tokenizer of the first checkpoint that has one.

    Raises:
        CheckpointError: it does not load.
    """
    from transformers import AutoTokenizer

    own = next((owner for owner in owners if owner.tokenizer), owners[-1])
    try:
        return AutoTokenizer.from_pretrained(own.folder, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{own.name} has no tokenizer that loads; save it in its folder: {error}") from error


def _negated(score: Score) -> Score:
    return replace(score, value=None if score.value is None else -score.value)
