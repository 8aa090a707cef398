"""Pair-preference models: a language model reads two answers and the logits of "A" and "B" say which is better.

Models: RLHFlow/pair-preference-model-LLaMA3-8B and SliC pair models of its recipe. Weights: a causal language model,
nothing else. Text: the prompt's turns as `<turn> user` and `<turn> assistant`, then both answers, all as one user turn
of the model's own template, without BOS and without a generation prompt; the last token is read. The softmax over the
two logits is the probability that the first answer is better. Both orders are asked, and one reward made of all
comparisons within a prompt: see `Pairwise` for range and direction. Source: the usage example of RLHFlow's pair-pm.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from rm_plugins import Conversation, Family, hookimpl
from rm_plugins.family import LOCAL_OPTIONS, LoadSpec, Progress, RewardModel, is_language_model, named_only
from rm_plugins.judging.pairs import PAIR_OPTIONS, EncodedPairs, Pair, pairwise
from rm_plugins.text.roles import fit_roles

if TYPE_CHECKING:
    from torch import Tensor

    from rm_plugins.conversation import Message
    from rm_plugins.text.encoder import ChatEncoder, Encoded
    from rm_plugins.text.template import ChatTemplate

CONTEXT = (
    "{{ '\n' }}{% for m in messages %}{% if m.role in ['user', 'assistant'] %}"
    "{{ '\n<turn> ' + m.role + '\n ' + m.content }}{% endif %}{% endfor %}{{ '\n' }}"
)
"""How the turns before the answers are written; a system turn becomes part of the user's."""
QUESTION = "[CONTEXT] {} [RESPONSE A] {} [RESPONSE B] {} \n"


@hookimpl
def rm_families() -> Iterable[Family]:
    """Yields the pair-preference family."""
    yield Family(
        name="pair_preference",
        kind="pairwise",
        summary="language models that answer A or B to two answers: RLHFlow pair-preference, SliC",
        load=load,
        fits=named_only,
        options={name: LOCAL_OPTIONS[name] for name in ("bos", "system", "max_tokens_in_flight")} | PAIR_OPTIONS,
    )


def load(spec: LoadSpec) -> RewardModel:
    """Loads the language model.

    Raises:
        HeadError: the checkpoint has a reward head, which would not be read.
        TextError: "A" or "B" is no single token.
    """
    from rm_plugins.engine.local import load_tokenizer
    from rm_plugins.engine.runner import Engine
    from rm_plugins.engine.vocabulary import VocabularyHead
    from rm_plugins.engine.weights import load_language_model
    from rm_plugins.text.encoder import ChatEncoder
    from rm_plugins.text.rules import rules_for
    from rm_plugins.text.template import ChatTemplate

    checkpoint = spec.fitting("pair_preference", is_language_model)
    tokenizer, model = load_tokenizer(checkpoint, checkpoint.base()), load_language_model(spec)
    engine = Engine(model.base_model, max_tokens_in_flight=spec.options.get("max_tokens_in_flight"))
    encoder = ChatEncoder(tokenizer, rules_for(spec.knowing(bos="none"), model.config.get_text_config()))
    context = ChatTemplate(tokenizer, CONTEXT)
    questions, head = PairEncoder(encoder, context), VocabularyHead(model)

    def first(states: Tensor, _: object) -> Tensor:
        return head.logits(states, questions.targets).softmax(-1)[:, 0].cpu()

    def run(written: Sequence[Encoded], progress: Progress | None) -> list[float]:
        return [found.item() for found in engine.read(written, first, progress)]

    return pairwise(spec, EncodedPairs(questions, run))


class PairEncoder:
    """Writes a pair as one question.

    Args:
        chat: writes the question, in the model's own template.
        context: writes the turns before the answers.
        labels: what the model answers if the first is better, and if the second is.

    Raises:
        TextError: a label is no single token.
    """

    def __init__(self, chat: ChatEncoder, context: ChatTemplate, labels: Sequence[str] = ("A", "B")) -> None:
        from rm_plugins.text.steps import single_token

        self.chat, self.context = chat, context
        self.targets = [single_token(chat.tokenizer, label) for label in labels]

    def encode(self, pair: Pair) -> Encoded:
        """The question, read at its last token.

        Raises:
            TextError, ConversationError: a turn that cannot be written, or a question that is too long.
        """
        turns, flags = self._turns(pair.first)
        others, more = self._turns(pair.second)
        question = QUESTION.format(self.context.render(turns[:-1]), turns[-1]["content"], others[-1]["content"])
        seen = self.chat.encode_prompt([{"role": "user", "content": question}])
        return replace(seen, flags=seen.flags | flags | more)

    def _turns(self, conversation: Conversation) -> tuple[list[Message], frozenset[str]]:
        turns, flags = fit_roles(conversation.messages, self.context, self.chat.rules.system)
        return turns, flags if turns[-1]["content"].strip() else flags | {"empty"}
