"""PairRM: an encoder reads a prompt and two answers, and the states of its three marks say which answer is better.

Weights: a DeBERTa under `pretrained_model.*`, and `head_layer.1` (hidden, 2 x hidden) and `head_layer.4` (tasks,
hidden) with tanh between. Text: `<|source|>` and the prompt, `<|candidate1|>` and one answer, `<|candidate2|>` and the
other, each between marks of the tokenizer's own. The head takes the states of source and candidate; the mean over
tasks of their difference is a logit, whose sigmoid is the probability that the first answer is better. Several turns
are written as the authors compare conversations: as blanks to be filled in. Better-PairRM writes the prompt with a
template of its own, and its mark apart. One reward is made of all comparisons within a prompt: see `Pairwise` for range
and direction. Source: the card of llm-blender/PairRM-hf, LLM-Blender, and RewardBench's `models/pairrm.py` and
`models/betterpairrm.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from rm_plugins import Family, hookimpl
from rm_plugins.family import LOCAL_OPTIONS, Fit, LoadSpec, Progress, RewardModel
from rm_plugins.judging.pairs import PAIR_OPTIONS, EncodedPairs, Pair, pairwise
from rm_plugins.text.roles import fit_roles
from rm_plugins.text.truncate import shorten

if TYPE_CHECKING:
    from torch import Tensor

    from rm_plugins.checkpoint import Checkpoint
    from rm_plugins.conversation import Message
    from rm_plugins.records import SystemPolicy
    from rm_plugins.text.encoder import Encoded
    from rm_plugins.text.rules import TextRules

HEADS = {f"head_layer.{layer}.{kind}" for layer in (1, 4) for kind in ("weight", "bias")}
MARKS = ("<|source|>", "<|candidate1|>", "<|candidate2|>")
LONGEST = 2048
SOURCE_SHARE = 1224 / LONGEST
"""Of the longest text; the candidates share the rest."""
BLANKS = "Finish the following coversation in each i-th turn by filling in <Response i> with your response."
"""As the model was trained, slip of the pen included."""
ROLES = (
    "{% for m in messages %}{% if m.role != ('user' if loop.index0 % 2 == 0 else 'assistant') %}"
    "{{ raise_exception('user and assistant turns must alternate') }}{% endif %}{{ m.content }}{% endfor %}"
)
"""The turns that can be written; a system turn becomes part of the user's."""


@hookimpl
def rm_families() -> Iterable[Family]:
    """Yields the PairRM family."""
    yield Family(
        name="pairrm",
        kind="pairwise",
        summary="PairRM and Better-PairRM: an encoder that reads a prompt and two answers",
        load=load,
        fits=fits,
        options={name: LOCAL_OPTIONS[name] for name in ("text", "max_tokens_in_flight")} | PAIR_OPTIONS,
    )


def fits(checkpoint: Checkpoint) -> Fit:
    """Fits a checkpoint whose heads are the two layers of PairRM."""
    heads = checkpoint.heads()
    return Fit(set(heads) == HEADS, f"it reads head_layer.1 and .4; heads here: {', '.join(sorted(heads)) or 'none'}")


def load(spec: LoadSpec) -> RewardModel:
    """Loads backbone and head."""
    import torch

    from rm_plugins.engine.heads import stack
    from rm_plugins.engine.local import load_tokenizer
    from rm_plugins.engine.runner import Engine
    from rm_plugins.engine.weights import load_backbone, read_tensors
    from rm_plugins.text.rules import rules_for

    checkpoint = spec.fitting("pairrm", fits)
    head = stack(read_tensors(checkpoint, HEADS), "head_layer", 2 * checkpoint.hidden_size, torch.tanh)
    backbone = load_backbone(spec, HEADS, {r"^pretrained_model\.": "deberta."})
    engine = Engine(backbone, max_tokens_in_flight=spec.options.get("max_tokens_in_flight"))

    def first(states: Tensor) -> float:  # (3, H): of the marks
        source, *candidates = states
        left, right = (head(torch.cat([source, candidate])[None]) for candidate in candidates)
        return torch.sigmoid((left - right).mean()).item()

    def run(written: Sequence[Encoded], progress: Progress | None) -> list[float]:
        return [first(states) for states in engine.hidden(written, progress)]

    rules, blanks = rules_for(spec, backbone.config), spec.options.get("text") == "rewardbench"
    encoder = MarkedEncoder(load_tokenizer(checkpoint), rules, blanks=blanks)
    return pairwise(spec, EncodedPairs(encoder, run))


class MarkedEncoder:
    """Writes a pair as three texts, each behind its mark, and reads the marks.

    Args:
        tokenizer: the model's own.
        rules: the record's; a template writes the prompt, which then stands behind its mark in a text of its own.
        blanks: whether, without a template, a single question is written as a conversation with blanks too, as
            RewardBench does.

    Raises:
        TextError: a mark is no single token.
    """

    def __init__(self, tokenizer: Any, rules: TextRules, *, blanks: bool) -> None:
        from rm_plugins.text.control import ControlTokens
        from rm_plugins.text.steps import single_token
        from rm_plugins.text.template import ChatTemplate

        self.tokenizer = tokenizer
        self._limit, self._blanks = rules.max_length or LONGEST, blanks
        self._apart = rules.template is not None
        self._controls = ControlTokens(tokenizer, [single_token(tokenizer, mark) for mark in MARKS])
        self._template = ChatTemplate(tokenizer, rules.template or ROLES)

    def encode(self, pair: Pair) -> Encoded:
        """The three texts in a row; too long, the prompt loses its middle and an answer its beginning.

        Raises:
            TextError, ConversationError: a turn that cannot be written, or a limit below the marks.
        """
        from rm_plugins.text.encoder import Encoded, refuse_surrogates

        system: SystemPolicy = "template" if self._apart else "merge"
        fitted = [fit_roles(answered.messages, self._template, system) for answered in (pair.first, pair.second)]
        texts = self._texts(*(turns for turns, _ in fitted))
        refuse_surrogates(texts)
        whole = [self._ids(place, text) for place, text in enumerate(texts)]
        source = self._shortened(0, texts[0], int(self._limit * SOURCE_SHARE))
        room = (self._limit - len(source)) // 2
        parts = [source, *(self._shortened(place, texts[place], room) for place in (1, 2))]
        found = {
            "empty": not all(turns[-1]["content"].strip() for turns, _ in fitted),
            "control_tokens": any(map(self._controls.found_in, texts)),
            "truncated": parts != whole,
        }
        flags = frozenset(flag for flag, is_so in found.items() if is_so).union(*(flags for _, flags in fitted))
        starts = accumulate(map(len, parts[:-1]), initial=1)  # the mark stands behind [CLS]
        shown = "".join(mark + text for mark, text in zip(MARKS, texts, strict=True))
        return Encoded(tuple(i for part in parts for i in part), tuple(starts), shown, flags)

    def _texts(self, asked: Sequence[Message], others: Sequence[Message]) -> list[str]:
        if self._apart:
            source = self._template.render(asked[:-1], add_generation_prompt=True)
            return [source, asked[-1]["content"], others[-1]["content"]]
        if len(asked) == 2 and not self._blanks:
            return [asked[0]["content"], asked[1]["content"], others[1]["content"]]
        blanks = [f"USER: {turn['content']}\nAssistant: <Response {i}>" for i, turn in enumerate(asked[::2], 1)]
        return [BLANKS + "\n".join(blanks), *map(_responses, (asked, others))]

    def _shortened(self, place: int, text: str, room: int) -> list[int]:
        if len(ids := self._ids(place, text)) <= room:
            return ids
        prompt, answer = ("", text) if place else (text, "")  # the one is cut in its middle, the other at its start
        turns: list[Message] = [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]
        kept = shorten(turns, lambda t: self._ids(place, t[0]["content"] + t[1]["content"]), room)
        return self._ids(place, kept[0]["content"] + kept[1]["content"])

    def _ids(self, place: int, text: str) -> list[int]:
        """The mark, which counts, and the text, in which a spelled mark does not, between the tokenizer's own marks."""
        breaker = self._controls.mark_for([text])
        broken = self._controls.break_spellings(text, breaker)
        parts = [MARKS[place], broken] if self._apart and not place else [MARKS[place] + broken]
        written = (self._controls.encode_marked(part, breaker, add_special_tokens=True) for part in parts)
        return [number for ids in written for number in ids]


def _responses(turns: Sequence[Message]) -> str:
    return "\n".join(f"<Response {i}>: {turn['content']}" for i, turn in enumerate(turns[1::2], 1))
