"""SteamSHP: a T5 reads a post and two responses, and its first decoder step says A or B.

Weights: a T5 with its vocabulary's head, nothing else. The softmax over the logits of `A` and `B` is the probability
that the first answer is better. Line breaks become blanks, as the card asks; several turns become one post, flagged
`turns_merged`. Both orders are asked, and one reward made of all comparisons within a prompt: see `Pairwise` for range
and direction. With `alone=True` an answer is asked about beside the answer `.`, as the card scores one alone: 0 to 1,
the probability of `A` among all tokens, higher is better. Source: the cards of stanfordnlp/SteamSHP-flan-t5-xl and
-large, RewardBench's `models/shp.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rm_plugins import Family, hookimpl
from rm_plugins.conversation import plain_text
from rm_plugins.errors import OptionError
from rm_plugins.family import LOCAL_OPTIONS, Explanation, Fit, LoadSpec, Progress, RewardModel, Score, named_only
from rm_plugins.judging.pairs import PAIR_OPTIONS, EncodedPairs, Pair, pairwise
from rm_plugins.text.truncate import shorten

if TYPE_CHECKING:
    from torch import Tensor

    from rm_plugins.checkpoint import Checkpoint
    from rm_plugins.conversation import Conversation, Message
    from rm_plugins.text.encoder import Encoded

LONGEST = 512
"""Tokens that the models were trained on."""


@hookimpl
def rm_families() -> Iterable[Family]:
    """Yields the SteamSHP family."""
    yield Family(
        name="steamshp",
        kind="pairwise",
        summary="SteamSHP: a T5 that answers A or B to two responses",
        load=load,
        fits=named_only,
        options={
            "max_tokens_in_flight": LOCAL_OPTIONS["max_tokens_in_flight"],
            "alone": "True scores each answer alone, against the answer '.', as the card does",
        }
        | PAIR_OPTIONS,
    )


def is_t5(checkpoint: Checkpoint) -> Fit:
    """Fits a T5 with no head beside its vocabulary's."""
    heads, kind = set(checkpoint.heads()) - {"shared.weight"}, checkpoint.config.get("model_type")
    if kind != "t5" or heads:
        return Fit(False, f"it reads a t5; this is {kind} with {', '.join(sorted(heads)) or 'no head'}")
    # transformers 5 would put the embedding where this head was lost
    lost = checkpoint.config.get("tie_word_embeddings") is False and "lm_head.weight" not in checkpoint.tensors
    return Fit(not lost, "lm_head.weight, which its config does not tie, " + ("is not here" if lost else "is here"))


def load(spec: LoadSpec) -> RewardModel:
    """Loads the T5.

    Raises:
        TextError: `A` or `B` is no single token.
        OptionError: `alone` is no truth value, or comes with an option of comparisons.
    """
    from rm_plugins.engine.first_step import FirstStep
    from rm_plugins.engine.local import LocalModel, load_tokenizer
    from rm_plugins.engine.runner import Engine
    from rm_plugins.engine.weights import load_seq2seq
    from rm_plugins.text.rules import rules_for
    from rm_plugins.text.steps import single_token

    checkpoint = spec.fitting("steamshp", is_t5)
    tokenizer, model = load_tokenizer(checkpoint), FirstStep(load_seq2seq(spec))
    engine = Engine(model, max_tokens_in_flight=spec.options.get("max_tokens_in_flight"), pack=False)
    labels = [single_token(tokenizer, label) for label in ("A", "B")]

    def first(logits: Tensor, _: object) -> Tensor:
        return logits[:, labels].float().softmax(-1)[:, 0].cpu()

    def run(written: Sequence[Encoded], progress: Progress | None) -> list[float]:
        return [found.item() for found in engine.read(written, first, progress)]

    encoder = PostEncoder(tokenizer, rules_for(spec, model.config).max_length or LONGEST)
    if _alone(spec):
        return LocalModel(AloneEncoder(encoder), engine, lambda logits: Score(logits.softmax(-1)[0, labels[0]].item()))
    return pairwise(spec, EncodedPairs(encoder, run))


def _alone(spec: LoadSpec) -> bool:
    alone = spec.options.get("alone", False)
    if not isinstance(alone, bool):
        raise OptionError(f"alone={alone!r} must be True or False.")
    if alone and (others := sorted(set(spec.options) & set(PAIR_OPTIONS))):
        raise OptionError(
            f"alone=True compares no answers with each other; {', '.join(others)} has nothing to do there."
        )
    return alone


class PostEncoder:
    """Writes a post and two responses; too long, a response keeps its end, the post both its ends.

    A response loses what is beyond half the room; the post then loses its middle until all fits.

    Args:
        tokenizer: the model's own.
        limit: most tokens.
    """

    def __init__(self, tokenizer: Any, limit: int) -> None:
        from rm_plugins.text.control import ControlTokens

        self.tokenizer = tokenizer
        self._limit = limit
        self._controls = ControlTokens(tokenizer)

    def encode(self, pair: Pair) -> Encoded:
        """The question, whose first answered token is read.

        A text that writes the question's own labels, `RESPONSE B:` say, cannot be told from them: it is flagged.

        Raises:
            TextError, ConversationError: a turn that is no text, or a limit below the question's own words.
        """
        from rm_plugins.text.encoder import Encoded, refuse_surrogates

        asked = [plain_text(turn.get("content")) for turn in pair.first.messages[:-1]]
        whole = [_line(" ".join(asked)), *(_line(answered.answer) for answered in (pair.first, pair.second))]
        refuse_surrogates(whole)
        texts = self._shortened(whole)
        found = {
            "turns_merged": len(asked) > 1,
            "empty": not all(map(str.strip, whole[1:])),
            "control_tokens": any(self._controls.found_in(text) or "RESPONSE " in text for text in whole),
            "truncated": texts != whole,
        }
        ids = tuple(self._ids(*texts))
        flags = frozenset(flag for flag, is_so in found.items() if is_so)
        return Encoded(ids, (len(ids) - 1,), _question(*texts), flags)

    def _shortened(self, texts: list[str]) -> list[str]:
        if len(self._ids(*texts)) <= self._limit:
            return texts
        post, first, second = texts
        room = (self._limit - len(self._ids("", "", ""))) // 2
        first, second = (self._end(text, room) for text in (first, second))
        turns: list[Message] = [{"role": "user", "content": post}, {"role": "assistant", "content": first}]
        kept = shorten(turns, lambda t: self._ids(t[0]["content"], t[1]["content"], second), self._limit)
        return [*(turn["content"] for turn in kept), second]

    def _end(self, text: str, room: int) -> str:
        turns: list[Message] = [{"role": "assistant", "content": text}]
        (kept,) = shorten(turns, lambda t: self._controls.encode_text(t[0]["content"]), room)
        return str(kept["content"])

    def _ids(self, post: str, first: str, second: str) -> list[int]:
        mark = self._controls.mark_for([post, first, second])
        text = _question(*(self._controls.break_spellings(part, mark) for part in (post, first, second)))
        return self._controls.encode_marked(text, mark, add_special_tokens=True)


class AloneEncoder:
    """Writes one conversation as a pair with the answer `.`, and reads the question's only answer."""

    def __init__(self, pairs: PostEncoder) -> None:
        self._pairs = pairs

    def encode(self, conversation: Conversation) -> Encoded:
        """See `PostEncoder.encode`."""
        other = replace(conversation, messages=(*conversation.messages[:-1], {"role": "assistant", "content": "."}))
        return self._pairs.encode(Pair(conversation, other))

    def explain(self, conversation: Conversation) -> Explanation:
        """What the model will see."""
        from rm_plugins.text.encoder import explained

        return explained(self._pairs.tokenizer, self.encode(conversation))


def _question(post: str, first: str, second: str) -> str:
    return f"POST: {post} \n\n RESPONSE A: {first}\n\n RESPONSE B: {second}\n\n Which response is better? RESPONSE"


def _line(text: str) -> str:
    return " ".join(text.splitlines())
