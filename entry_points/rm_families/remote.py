"""Reward models that a server runs: OpenRLHF's `serve_rm`, or vLLM's pooling server.

This side writes the text, with the template and the rules of the model's record, and the server scores it. vLLM is sent
token ids and asked for the raw output; OpenRLHF is sent text. At load two short texts are scored: a server that is not
there, that answers with a hidden state, or that applies an activation is an error. The score is the server's number:
unbounded, higher is better. Source: OpenRLHF's `cli/serve_rm.py`, vLLM's documentation of its pooling models.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from rm_plugins import Family, hookimpl
from rm_plugins.checkpoint import Checkpoint
from rm_plugins.errors import OptionError
from rm_plugins.family import LOCAL_OPTIONS, LoadSpec, RewardModel, Score
from rm_plugins.remote.parallel import LIMITS, Limits
from rm_plugins.text.rules import check_choice

OPTIONS = {
    "wire": "the server's protocol: vllm, openrlhf",
    "tokenizer": "folder or hub id of the model, for its template and tokens; by default record='s",
}


@hookimpl
def rm_families() -> Iterable[Family]:
    """Yields the remote family."""
    local = {name: LOCAL_OPTIONS[name] for name in ("text", "bos", "eos", "system", "reasoning")}
    yield Family(
        name="remote",
        kind="remote",
        summary="a reward model that a server runs: vLLM, OpenRLHF",
        load=load,
        options=OPTIONS | LIMITS | local,
        requires=("remote",),
    )


def load(spec: LoadSpec) -> RewardModel:
    """Connects to the server, and loads the model's tokenizer.

    Raises:
        OptionError: no protocol, or nobody says whose tokenizer writes the text.
        ScoringError: the server does not answer with one raw number.
    """
    from types import SimpleNamespace

    from rm_plugins.engine.local import load_tokenizer
    from rm_plugins.remote.client import Client
    from rm_plugins.remote.model import Encodes, ServedModel, SpelledOut
    from rm_plugins.remote.wires import WIRES
    from rm_plugins.text.encoder import ChatEncoder
    from rm_plugins.text.rules import rules_for

    if not spec.target.startswith(("http://", "https://")):
        raise OptionError(f"{spec.target!r} is no address; write remote:http://host:port.")
    wire = spec.options.get("wire")
    check_choice("wire", wire, Literal["vllm", "openrlhf"])
    owner = spec.options.get("tokenizer") or (spec.record and spec.record.id)
    if not owner:
        raise OptionError(f"Which model does {spec.target} run? Say it with record=, or with tokenizer= its folder.")
    checkpoint = Checkpoint.open(str(owner))
    facts = SimpleNamespace(
        max_position_embeddings=checkpoint.text_config.get("max_position_embeddings"),
        pad_token_id=checkpoint.text_config.get("pad_token_id"),
    )
    chat = ChatEncoder(load_tokenizer(checkpoint, checkpoint.base()), rules_for(spec, facts))
    encoder: Encodes = chat if WIRES[str(wire)].takes_ids else SpelledOut(chat)
    client = Client(spec.target, Limits(**{name: spec.options[name] for name in LIMITS if name in spec.options}))
    sign = spec.record.sign if spec.record else 1
    return ServedModel(client, WIRES[str(wire)], encoder, lambda outputs: Score(sign * outputs[0]), outputs=1)
