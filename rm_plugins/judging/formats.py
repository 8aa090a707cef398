"""How judges are asked, and how their verdicts are read: the facts of `formats.toml`."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Literal, TypeAlias

from pydantic import BaseModel, ConfigDict

from rm_plugins.errors import OptionError
from rm_plugins.text.reasoning import strip_reasoning

Read: TypeAlias = Literal["verdict", "probability", "log_odds"]
_WORTH = {"A": 1.0, "B": 0.0, "C": 0.5, "Yes": 1.0, "No": 0.0}
_PLACE = re.compile(r"\{(question|answer|first|second|reference|rubric|principle)\}")
_CLOSING = r"[\s.*`\"']*\Z"
"""What may stand behind a verdict; anything else, and it is no verdict but talk about one."""


class Format(BaseModel):
    """One way to ask a judge.

    Attributes:
        name: what users call it.
        kind: `pair`: which of two answers is better. `rating`: a number for one. `binary`: yes or no to one. `list`:
            numbers for all the answers to a prompt, as JSON.
        source: where its words are from.
        system: system turn of the question.
        turns: `question`: prompt and answer stand in one user turn. `conversation`: they are turns, and one more asks.
        role: of the turn that asks.
        reasoning_role: role of a turn in which the judge thinks before it answers.
        user: the turn that asks, with places to fill in.
        verdict: pattern of the verdict, its one group what is said; it must end the judge's own turn.
        labels: how a verdict for the first answer, and for the second, or yes and no, is written; the judge's
            probabilities of the two are compared where they part.
        read: `verdict`: what was written, averaged over samples. `probability`: of the first label against the second,
            in [0, 1], after the reasoning that was written. `log_odds`: the logarithm of their ratio.
        range: lowest and highest rating.
        max_new_tokens: most tokens of a judgment; 0 where the judge writes nothing before its verdict.
        temperature: of sampling; 0 for the likeliest tokens.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    kind: Literal["pair", "rating", "binary", "list"]
    source: str
    system: str = ""
    turns: Literal["question", "conversation"] = "question"
    role: str = "user"
    reasoning_role: str = ""
    user: str = ""
    verdict: str = ""
    labels: tuple[str, str] | None = None
    read: Read = "verdict"
    range: tuple[float, float] | None = None
    max_new_tokens: int = 1024
    temperature: float = 0.0

    @property
    def places(self) -> set[str]:
        """Names of what is filled in."""
        return set(_PLACE.findall(self.user))

    def fill(self, values: Mapping[str, str]) -> str:
        """The turn that asks. One pass: a place that an answer spells stays text."""
        return _PLACE.sub(lambda hit: values[hit[1]], self.user)

    def verdict_in(self, text: str) -> tuple[float, str] | None:
        """The verdict and the text before it; None if the text ends in none.

        Only the end of what the judge says after its reasoning counts, so that a verdict which an answer spells, and
        the judge quotes, is none. Reasoning that was cut holds no verdict.
        """
        said = strip_reasoning(text)
        found = None if said.truncated else re.search(f"(?:{self.verdict}){_CLOSING}", said.answer)
        if not found:
            return None
        before = text[: len(text) - len(said.answer) + found.start()]
        return (value, before) if (value := self._worth(found[1])) is not None else None

    def _worth(self, word: str) -> float | None:
        if self.kind != "rating":
            return _WORTH.get(word)
        value = float(word)
        low, high = self.range or (-math.inf, math.inf)
        return value if low <= value <= high else None


@cache
def formats() -> dict[str, Format]:
    """Every format that is known, by name."""
    known = tomllib.loads(files("rm_plugins.judging").joinpath("formats.toml").read_text(encoding="utf-8"))
    return {name: Format(name=name, **facts) for name, facts in known.items()}


def format_named(name: str) -> Format:
    """The format of that name.

    Raises:
        OptionError: there is none.
    """
    if name not in formats():
        raise OptionError(f"format={name!r} is none of {', '.join(formats())}.")
    return formats()[name]
