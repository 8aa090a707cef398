"""Rules that need no model: a right answer in mathematics, a format, an exact answer, JSON, or any Python function.

Targets: `verifiable:math`, `:format`, `:exact`, `:json`, or `:module:function` and `:path.py:function`. A rule gives
1.0 or 0.0, a function what it returns; higher is better. What a rule needs and does not find (a solution that is
missing or is no mathematics, a check that takes too long) is no score, never 0. Mathematics is compared by math-verify
with the extraction that TRL's `accuracy_reward` uses, in a process of its own, so that its time limits hold in any
thread.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from rm_plugins import Conversation, Family, Score, hookimpl
from rm_plugins.errors import MissingExtraError, OptionError
from rm_plugins.family import LoadSpec, Progress

Rule: TypeAlias = Callable[[Conversation], float | bool | None]
"""Raises `LookupError` with a sentence where it has nothing to judge by."""

OPTIONS = {
    "column": "data-set column with the right answer; by default solution, answer or ground_truth, whichever is there",
    "pattern": "format: regular expression that the whole answer must match; by default TRL's <think> format",
    "schema": "json: JSON schema, or a file with one; by default any JSON will do",
}
COLUMNS = ("solution", "answer", "ground_truth")
THINKING = r"<think>(?!.*<think>)(.*?)</think>.*"
_SECONDS = 2.0
"""Longest match of a pattern; patterns can be slow on text that is made for it."""


@hookimpl
def rm_families() -> Iterable[Family]:
    """Yields the family of rules."""
    yield Family(
        name="verifiable",
        kind="rule",
        summary="rules: verifiable:math, :format, :exact, :json, :module:function",
        load=load,
        options=OPTIONS,
        requires=("verify",),
    )


def load(spec: LoadSpec) -> Checked:
    """The rule that the target names.

    Raises:
        OptionError: no such rule, or an option that cannot be used.
        MissingExtraError: the rule needs the extra `verify`.
    """
    options, named = spec.options, RULES.get(spec.target)
    if idle := sorted(set(options) - READS.get(spec.target, set())):
        raise OptionError(f"verifiable:{spec.target} does not read {', '.join(idle)}.")
    return Checked(named(options) if named else _function(spec.target), options.get("column"))


class Checked:
    """Implements `RewardModel` with a rule."""

    def __init__(self, rule: Rule, column: str | None = None) -> None:
        self._rule, self._column = rule, column

    def score(self, conversations: Sequence[Conversation], progress: Progress | None = None) -> list[Score]:
        """Scores in order; what cannot be judged has no value and the reason.

        Raises:
            OptionError: no row has the column that was named.
        """
        if self._column and not any(self._column in conversation.columns for conversation in conversations):
            there = ", ".join(sorted({name for conversation in conversations for name in conversation.columns}))
            raise OptionError(f"column={self._column!r} is in no row; the rows have {there or 'no columns'}.")
        scores = []
        for conversation in conversations:
            scores.append(self._one(conversation))
            if progress:
                progress(1)
        return scores

    def _one(self, conversation: Conversation) -> Score:
        flags: frozenset[str] = frozenset()
        try:
            flags = frozenset() if conversation.answer.strip() else frozenset({"empty"})
            found = self._rule(conversation)
        except Exception as error:  # a user's function may raise anything; the other rows still count
            reason = str(error.args[0]) if isinstance(error, _Nothing) else f"{type(error).__name__}: {error}"
            return Score(None, flags=flags | {"failed"}, error=reason)
        if found is None:
            return Score(None, flags=flags | {"failed"}, error="the rule does not apply")
        if not isinstance(found, int | float) or not math.isfinite(found):
            return Score(None, flags=flags | {"failed"}, error=f"the rule returned {found!r:.60}, which is no number")
        return Score(float(found), flags=flags)


class _Nothing(LookupError):
    """A rule has nothing to judge by."""


def _gold(conversation: Conversation, options: Mapping[str, Any]) -> str:
    asked = options.get("column")
    names = (asked,) if asked else COLUMNS
    found = next((n for n in names if conversation.columns.get(n) is not None), None)
    if found is None:
        raise _Nothing(f"the row has no {' or '.join(map(str, names))} to compare with")
    return str(conversation.columns[found])


def _exact(options: Mapping[str, Any]) -> Rule:
    return lambda conversation: conversation.answer.strip() == _gold(conversation, options).strip()


def _math(options: Mapping[str, Any]) -> Rule:
    _needs("math_verify")
    from rm_families.math_process import MathProcess

    process = MathProcess()

    def rule(conversation: Conversation) -> bool:
        verdict = process.compare(_gold(conversation, options), conversation.answer)
        if isinstance(verdict, str):
            raise _Nothing(verdict)
        return verdict

    return rule


def _format(options: Mapping[str, Any]) -> Rule:
    import regex

    try:
        pattern = regex.compile(options.get("pattern") or THINKING, regex.DOTALL)
    except (regex.error, TypeError) as error:
        raise OptionError(f"pattern={options.get('pattern')!r} is no regular expression: {error}.") from error

    def rule(conversation: Conversation) -> bool:
        try:
            return pattern.fullmatch(conversation.answer, timeout=_SECONDS) is not None
        except TimeoutError:
            raise _Nothing(f"the pattern took longer than {_SECONDS} s on this answer") from None

    return rule


def _json(options: Mapping[str, Any]) -> Rule:
    check = _schema(options["schema"]) if options.get("schema") is not None else lambda value: True

    def rule(conversation: Conversation) -> bool:
        try:
            return check(json.loads(_unfenced(conversation.answer), parse_constant=_refuse))
        except (ValueError, RecursionError):
            return False

    return rule


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")  # Python would read NaN and Infinity


def _unfenced(answer: str) -> str:
    """The answer, or what stands in the one code block that it is."""
    text = answer.strip()
    if text.startswith("```") and text.endswith("```") and text.count("```") == 2:
        return text[3:-3].removeprefix("json")
    return text


def _schema(given: Any) -> Callable[[Any], bool]:
    _needs("jsonschema")
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError

    try:
        schema = given if isinstance(given, dict | bool) else json.loads(Path(given).read_text(encoding="utf-8"))
        Draft202012Validator.check_schema(schema)
    except (OSError, ValueError, TypeError, SchemaError) as error:
        raise OptionError(f"schema={given!r:.60} is no JSON schema: {str(error).splitlines()[0]}.") from error
    return lambda value: bool(Draft202012Validator(schema).is_valid(value))


RULES: dict[str, Callable[[Mapping[str, Any]], Rule]] = {
    "math": _math,
    "format": _format,
    "exact": _exact,
    "json": _json,
}
READS = {"math": {"column"}, "exact": {"column"}, "format": {"pattern"}, "json": {"schema"}}
"""The options of each rule."""


def _function(target: str) -> Rule:
    place, _, name = target.rpartition(":")
    if not place:
        rules = ", ".join(f"verifiable:{rule}" for rule in RULES)
        raise OptionError(f"There is no rule {target!r}; there are {rules}, or verifiable:module:function.")
    try:
        function = getattr(_module(place), name)
    except (ImportError, OSError, SyntaxError, AttributeError) as error:
        raise OptionError(f"verifiable:{target} cannot be imported: {type(error).__name__}: {error}.") from error
    return lambda conversation: function(conversation.answer, **conversation.columns)


def _module(place: str) -> Any:
    if not place.endswith(".py"):
        return importlib.import_module(place)
    spec = importlib.util.spec_from_file_location(Path(place).stem, place)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _needs(module: str) -> None:
    if importlib.util.find_spec(module) is None:
        raise MissingExtraError("This rule needs the extra: pip install 'rm-plugins[verify]'")
