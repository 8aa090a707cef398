"""Keeps text that spells a control token of the reward model text.

A tokenizer turns the characters of a control token into its id wherever they stand, so an answer that spells one could
forge a turn. Before the template runs, such spellings are broken by a mark that the text does not contain. Clean text
is then tokenized as always. Marked text goes through a twin of the tokenizer that knows the control tokens only by
secret names: the template's own are renamed, the marks are taken out, and what the author spelled is ordinary text.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterable, Mapping
from functools import cached_property
from itertools import accumulate
from typing import Any

from rm_plugins.errors import TextError

_MARKS = [chr(code) for code in range(0x10FF00, 0x10FFFD)]
_CONTENT = {"<think>", "</think>", "<tool_call>", "</tool_call>"}
"""Templates write these, and so do answers that reason or call: they are content and bound no turn."""


class ControlTokens:
    """The control tokens of one tokenizer: every special token, and every added token that its template writes.

    Args:
        tokenizer: a transformers tokenizer with a fast backend.
        template_ids: ids of a conversation rendered from harmless text, to see what the template writes.
        source: the template; what it would write for other conversations, such as tool results, is looked for in it.
    """

    def __init__(self, tokenizer: Any, template_ids: Iterable[int] = (), source: str = "") -> None:
        self._tokenizer = tokenizer
        written = set(template_ids)
        added = [(i, t) for i, t in tokenizer.added_tokens_decoder.items() if not t.content.isspace()]
        names = {t.content for i, t in added if t.special or i in written or t.content in source}
        self.names: frozenset[str] = frozenset(names - _CONTENT - _words(tokenizer, names))
        longest_first = sorted(self.names, key=lambda name: (-len(name), name))
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        cutting = [t.content for _, t in added if not (t.lstrip or t.rstrip or t.single_word or t.normalized)]
        clean = [name for name in longest_first if name in cutting]
        self._boundary = re.compile("|".join(map(re.escape, clean)) or r"(?!)")
        self._secret = secrets.token_hex(8)

    def found_in(self, text: str) -> bool:
        """Whether the text spells a control token."""
        return self._pattern.search(text) is not None

    def last_boundary(self, text: str) -> int:
        """Where the last control token but one begins: behind the prompt, mostly; 0 if there is none.

        A tokenizer cuts text at such tokens before it does anything else, so both sides can be tokenized apart.
        """
        places = [hit.start() for hit in self._boundary.finditer(text)]
        return places[-2] if len(places) > 1 else 0

    def mark_for(self, texts: Iterable[str]) -> str:
        """A private-use character that none of the texts contains."""
        used = set().union(*map(set, texts))
        free = next((mark for mark in _MARKS if mark not in used), None)
        if free is None:
            raise TextError("The conversation uses every private-use character; none is left to mark forged tokens.")
        return free

    def break_spellings(self, text: str, mark: str) -> str:
        """Puts the mark behind the first character of every control token the text spells."""
        return self._pattern.sub(lambda hit: hit[0][0] + mark + hit[0][1:], text)

    def encode_text(self, text: str) -> list[int]:
        """Token ids of an author's text without specials; the control tokens that it spells are ordinary characters."""
        if not self.found_in(text):
            return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])
        mark = self.mark_for([text])
        return self.encode_marked(self.break_spellings(text, mark), mark, add_special_tokens=False)

    def encode_marked(self, text: str, mark: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids of marked text: unmarked control tokens count, marked ones are ordinary characters."""
        renamed = self._pattern.sub(lambda hit: self._alias(hit[0]), text).replace(mark, "")
        return list(self._twin.encode(renamed, add_special_tokens=add_special_tokens).ids)

    def encode_tagged(
        self, text: str, mark: str, place: str, tag: str, *, add_special_tokens: bool
    ) -> tuple[list[int], list[int | None]]:
        """Token ids of text with the tag at every `place`, and the position of each tag's token.

        Args:
            text: marked text, or clean text if `mark` is empty.
            mark: what breaks the control tokens that the text spells.
            place: a character that stands for the tag, so that a tag which the text spells is none.
            tag: what is written there.
            add_special_tokens: as in a tokenizer.
        """
        backend = self._twin if mark else self._tokenizer.backend_tokenizer
        if mark:
            text = self._pattern.sub(lambda hit: self._alias(hit[0]), text).replace(mark, "")
            tag = self._alias(tag) if tag in self.names else tag
        before = list(accumulate(len(part) + len(tag) for part in text.split(place)[:-1]))
        encoding = backend.encode(text.replace(place, tag), add_special_tokens=add_special_tokens)
        return list(encoding.ids), [encoding.char_to_token(end - 1) for end in before]

    def _alias(self, name: str) -> str:
        return f"\U0010fffd{self._secret}:{name}\U0010fffd"

    @cached_property
    def _twin(self) -> Any:
        """The backend tokenizer with every control token renamed; same ids, same everything else."""
        from tokenizers import Tokenizer

        backend = getattr(self._tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise TextError(
                f"{type(self._tokenizer).__name__} has no fast backend, so control tokens in text cannot be kept text."
            )
        plan = json.loads(backend.to_str())
        plan["truncation"] = plan["padding"] = None
        for token in plan["added_tokens"]:
            if token["content"] in self.names:
                token["content"] = self._alias(token["content"])
        plan["model"] = self._rename(plan["model"])
        return Tokenizer.from_str(json.dumps(plan))

    def _rename(self, model: Mapping[str, Any]) -> dict[str, Any]:
        vocab = model["vocab"]
        if isinstance(vocab, list):  # Unigram: [piece, log-probability]
            renamed: Any = [[self._alias(p) if p in self.names else p, s] for p, s in vocab]
        else:
            renamed = {self._alias(p) if p in self.names else p: i for p, i in vocab.items()}
        unknown = model.get("unk_token")
        return {**model, "vocab": renamed} | ({"unk_token": self._alias(unknown)} if unknown in self.names else {})


def _words(tokenizer: Any, names: Iterable[str]) -> set[str]:
    """The tokens that the plain vocabulary spells in one piece too ("!" as pad), so that as text they have that id."""
    from tokenizers.models import BPE

    backend = getattr(tokenizer, "backend_tokenizer", None)
    model = getattr(backend, "model", None)
    if backend is None or not isinstance(model, BPE):
        return set()
    words = {name for name in names if len(model.tokenize(name)) == 1}
    if model.ignore_merges and any(len(word) > 1 for word in words):
        # such a model takes every piece whole, control tokens too; what characters make is what merges make
        pairs = json.loads(backend.to_str())["model"]["merges"]
        merged = {"".join(pair.split(" ") if isinstance(pair, str) else pair) for pair in pairs}
        words = {word for word in words if len(word) == 1 or word in merged}
    return words
