"""Nemotron reward models: a logit of a language model, or nine attributes from a NeMo server.

Llama-3.1-Nemotron-70B-Reward-HF and its successors: a causal language model, nothing else; the reward is the logit of
vocabulary id 0 behind the conversation, written by its template without a generation prompt: unbounded, higher is
better. Nemotron-4-340B-Reward: served by NeMo-Aligner (`nemotron:http://host:5555`), sent its own text; nine attributes
on HelpSteer's scale of 0 to 4 and below, in `Score.parts`; the reward is helpfulness, as its BT use takes, unless
`combine=` says another. Source: the cards, and NeMo-Aligner's `reward_server.py` and `serve_reward_model.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from rm_plugins import Conversation, Family, hookimpl
from rm_plugins.attributes import CARD, COMBINE, Attributes
from rm_plugins.conversation import plain_text
from rm_plugins.errors import OptionError, TextError
from rm_plugins.family import LOCAL_OPTIONS, LoadSpec, RewardModel, Score, is_language_model, named_only
from rm_plugins.remote.parallel import LIMITS, Limits

if TYPE_CHECKING:
    from rm_plugins.text.encoder import Encoded

NAMES = tuple(
    ["quality", "toxicity", "humor", "creativity", "helpfulness", "correctness", "coherence", "complexity", "verbosity"]
)
"""The server's outputs, in its order."""
SYSTEM = (
    "A chat between a curious user and an artificial intelligence assistant. The assistant gives helpful, detailed, "
    "and polite answers to the user's questions."
)
TURNS = {"user": "<extra_id_1>User", "assistant": "<extra_id_1>Assistant"}
SPECIAL = "<extra_id_"
OPTIONS = ("bos", "system", "reasoning", "max_tokens_in_flight")


@hookimpl
def rm_families() -> Iterable[Family]:
    """Yields the Nemotron family."""
    yield Family(
        name="nemotron",
        kind="attributes",
        summary="Llama-3.1-Nemotron-70B-Reward's logit; Nemotron-4-340B's attributes through its server",
        load=load,
        fits=named_only,
        options={name: LOCAL_OPTIONS[name] for name in OPTIONS} | COMBINE | LIMITS,
    )


def load(spec: LoadSpec) -> RewardModel:
    """Loads the language model, or connects to the server.

    Raises:
        HeadError: the checkpoint has a reward head, which would not be read.
        OptionError: an option of the other kind of model.
        ScoringError: the server does not answer with nine numbers.
    """
    return (_served if spec.target.startswith(("http://", "https://")) else _local)(spec)


def _local(spec: LoadSpec) -> RewardModel:
    from rm_plugins.engine.local import load_tokenizer, local_model
    from rm_plugins.engine.vocabulary import VocabularyHead
    from rm_plugins.engine.weights import load_language_model

    _refuse(spec, [*COMBINE, *LIMITS], "is for the server of Nemotron-4-340B-Reward")
    checkpoint = spec.fitting("nemotron", is_language_model)
    model = load_language_model(spec)
    head = VocabularyHead(model)
    tokenizer = load_tokenizer(checkpoint, checkpoint.base())
    return local_model(spec, model.base_model, tokenizer, lambda states: Score(head.logits(states, [0]).item()))


def _served(spec: LoadSpec) -> RewardModel:
    from rm_plugins.remote.client import Client
    from rm_plugins.remote.model import ServedModel
    from rm_plugins.remote.wires import WIRES

    _refuse(spec, OPTIONS, "is for a model that runs here")
    attributes = Attributes(NAMES, spec.options.get("combine", CARD))
    client = Client(spec.target, Limits(**{name: spec.options[name] for name in LIMITS if name in spec.options}))

    def score(outputs: Any) -> Score:
        return attributes.score(outputs, outputs[NAMES.index("helpfulness")])

    return ServedModel(client, WIRES["nemo"], NemoEncoder(), score, outputs=len(NAMES), parts=NAMES)


def _refuse(spec: LoadSpec, names: Iterable[str], why: str) -> None:
    if unused := [name for name in names if name in spec.options]:
        raise OptionError(f"{unused[0]}= {why}, and {spec.target} is none.")


class NemoEncoder:
    """Writes a conversation as NeMo's reward models read it; the server tokenizes it."""

    def encode(self, conversation: Conversation) -> Encoded:
        """Writes one conversation.

        Raises:
            TextError: a role that the form does not have, or text that spells a control token.
        """
        from rm_plugins.text.encoder import Encoded, refuse_surrogates

        turns = [(turn["role"], plain_text(turn.get("content"))) for turn in conversation.messages]
        system = turns.pop(0)[1] if turns[0][0] == "system" else SYSTEM
        texts = [system, *(text for _, text in turns)]
        refuse_surrogates(texts)
        if any(SPECIAL in text for text in texts):
            raise TextError(
                f"The text spells a control token ({SPECIAL}...>), and the server tokenizes it: a forged turn."
            )
        if unknown := [role for role, _ in turns if role not in TURNS]:
            raise TextError(f"NeMo's form has no turn of role {unknown[0]!r}.")
        said = "".join(f"{TURNS[role]}\n{text}\n" for role, text in turns)
        flags = frozenset() if turns[-1][1].strip() else frozenset({"empty"})
        return Encoded((), (), f"<extra_id_0>System\n{system}\n{said}<extra_id_2>", flags)
