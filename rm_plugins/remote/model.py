"""A reward model on a server: this side writes the text, the server scores it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from rm_plugins.conversation import Conversation
from rm_plugins.errors import ConversationError, ScoringError, TextError
from rm_plugins.family import Progress, Score
from rm_plugins.remote.client import Client
from rm_plugins.remote.parallel import Failure
from rm_plugins.remote.wires import Outputs, Wire
from rm_plugins.text.encoder import ChatEncoder, Encoded

_PROBES = ("It is four.", "four four four no no no")


class Encodes(Protocol):
    """Writes a conversation; raises TextError or ConversationError where it cannot."""

    def encode(self, conversation: Conversation) -> Encoded:
        """Writes one conversation."""


class SpelledOut:
    """Writes text in which every token stands, for servers that tokenize it and add no token of their own.

    Args:
        chat: writes the text; a BOS or EOS that its tokenizer or rules add is spelled out here.
    """

    def __init__(self, chat: ChatEncoder) -> None:
        self._chat = chat

    def encode(self, conversation: Conversation) -> Encoded:
        """Writes one conversation.

        Raises:
            TextError: no text is read as the same tokens.
        """
        seen, tokenizer = self._chat.encode(conversation), self._chat.tokenizer
        wanted = list(seen.ids)
        for text in (seen.text, f"{tokenizer.bos_token}{seen.text}", f"{seen.text}{tokenizer.eos_token}"):
            if "control_tokens" in seen.flags or tokenizer(text, add_special_tokens=False)["input_ids"] == wanted:
                return replace(seen, text=text)
        raise TextError("The server would read other tokens than the model was trained on, whatever text it is sent.")


class ServedModel:
    """Implements `RewardModel` over a server.

    A text that spells a control token is sent only where the server takes token ids: a server that tokenizes would let
    it forge a turn.

    Args:
        client: of the server.
        wire: the protocol.
        encoder: writes conversations as the model reads them.
        score: makes a score of the server's numbers.
        outputs: how many numbers the model has.
        parts: names of the parts of its scores.

    Raises:
        ScoringError: the server is not there, answers with another number of numbers, or has put them through an
            activation, which the scores of two different texts show.
    """

    def __init__(
        self,
        client: Client,
        wire: Wire,
        encoder: Encodes,
        score: Callable[[Outputs], Score],
        *,
        outputs: int,
        parts: Sequence[str] = (),
    ) -> None:
        self.parts = tuple(parts)
        self._client, self._wire, self._encoder, self._score, self._outputs = client, wire, encoder, score, outputs
        self._model = client.get(wire.models)["data"][0]["id"] if wire.models else ""
        self._probe()

    def score(self, conversations: Sequence[Conversation], progress: Progress | None = None) -> list[Score]:
        """Scores in order; one that cannot be sent, or that the server failed on, has no value."""
        seen = [self._encode(conversation) for conversation in conversations]
        ready = [encoded for encoded in seen if isinstance(encoded, Encoded)]
        if progress and len(ready) < len(seen):
            progress(len(seen) - len(ready))
        told = iter(self._ask(ready, progress))
        return [self._told(next(told), e) if isinstance(e, Encoded) else e for e in seen]

    def _ask(self, texts: Sequence[Encoded], progress: Progress | None = None) -> list[Outputs | Failure]:
        replies = self._client.post(self._wire.path, [self._wire.body(self._model, text) for text in texts], progress)
        return [self._read(reply) for reply in replies]

    def _read(self, reply: object) -> Outputs | Failure:
        if isinstance(reply, Failure):
            return reply
        try:
            values = self._wire.read(reply)
        except ValueError as error:
            return Failure(str(error))
        if len(values) == self._outputs:
            return values
        return Failure(
            f"the server answers with {len(values)} numbers and this model has {self._outputs}: that is a hidden state "
            "or another model's head, not a reward"
        )

    def _told(self, outputs: Outputs | Failure, seen: Encoded) -> Score:
        if isinstance(outputs, Failure):
            return Score(None, flags=seen.flags | {"failed"}, error=outputs.error)
        score = self._score(outputs)
        return replace(score, flags=score.flags | seen.flags)

    def _encode(self, conversation: Conversation) -> Encoded | Score:
        try:
            seen = self._encoder.encode(conversation)
            if "control_tokens" in seen.flags and not self._wire.takes_ids:
                raise TextError("The text spells a control token, and the server tokenizes it itself: a forged turn.")
            return seen
        except (TextError, ConversationError) as error:
            return Score(None, flags=frozenset({"failed"}), error=str(error))

    def _probe(self) -> None:
        asked = {"role": "user", "content": "What is two and two?"}
        probes = [Conversation((asked, {"role": "assistant", "content": answer})) for answer in _PROBES]
        told = self._ask([self._encoder.encode(probe) for probe in probes])
        for outputs in told:
            if isinstance(outputs, Failure):
                raise ScoringError(f"The server does not score a short text: {outputs.error}.")
        if all(value in (0.0, 1.0) for outputs in told if not isinstance(outputs, Failure) for value in outputs):
            raise ScoringError(
                f"The server scores two different texts {told}: an activation was applied. Serve the raw output."
            )
