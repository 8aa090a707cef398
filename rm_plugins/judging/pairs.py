"""Rewards from comparisons: answers to one prompt are compared with each other, in both orders, and with no others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from rm_plugins.conversation import Conversation, plain_text
from rm_plugins.errors import ConversationError, OptionError, ScoringError, TextError
from rm_plugins.family import LoadSpec, Progress, Score
from rm_plugins.judging.groups import Distinct, by_prompt, rescaled
from rm_plugins.judging.strength import RULES
from rm_plugins.text.rules import check_choice

if TYPE_CHECKING:
    from rm_plugins.text.encoder import Encoded

Reduce: TypeAlias = Literal["mean_win_rate", "bradley_terry", "reference"]
PAIR_OPTIONS = {
    "reduce": "one reward of many comparisons: mean_win_rate, bradley_terry, or reference (against a column's answer)",
    "group_size": "answers expected to each prompt, num_generations say; a number it does not divide is an error",
    "column": "reduce='reference': data-set column with the answer to compare with, 'reference' by default",
}
"""The options of families that compare."""


@dataclass(frozen=True)
class Pair:
    """Two answers to one prompt, in the order in which the judge sees them."""

    first: Conversation
    second: Conversation


@dataclass(frozen=True)
class Preference:
    """What a judge says of a pair.

    Attributes:
        first: probability in [0, 1] that the first answer is the better; None if there was no verdict to read.
        flags: as in `Score`; `unreadable` if the judge answered and gave no verdict.
        error: why `first` is None.
    """

    first: float | None
    flags: frozenset[str] = frozenset()
    error: str | None = None


class PairJudge(Protocol):
    """Compares two answers in the order given; both orders are its caller's business."""

    def prefer(self, pairs: Sequence[Pair], progress: Progress | None = None) -> list[Preference]:
        """One preference a pair, in order; `progress` is called with the number of pairs finished since the last."""


class PairEncoder(Protocol):
    """Writes a pair as one text; raises TextError or ConversationError where it cannot."""

    def encode(self, pair: Pair) -> Encoded:
        """Encodes one pair."""


class EncodedPairs:
    """Implements `PairJudge` for a model that reads both answers in one text.

    Args:
        encoder: writes pairs.
        run: gives each of what was written the probability that its first answer is the better, in order.
    """

    def __init__(
        self, encoder: PairEncoder, run: Callable[[Sequence[Encoded], Progress | None], Sequence[float]]
    ) -> None:
        self.encoder, self._run = encoder, run

    def prefer(self, pairs: Sequence[Pair], progress: Progress | None = None) -> list[Preference]:
        """One preference a pair; a pair that cannot be written has none, and says why."""
        seen = [self._encode(pair) for pair in pairs]
        readable = [written for written in seen if not isinstance(written, Preference)]
        if progress and len(readable) < len(seen):
            progress(len(seen) - len(readable))
        found = iter(self._run(readable, progress))
        return [w if isinstance(w, Preference) else Preference(next(found), w.flags) for w in seen]

    def _encode(self, pair: Pair) -> Encoded | Preference:
        try:
            return self.encoder.encode(pair)
        except (TextError, ConversationError) as error:
            return Preference(None, frozenset({"failed"}), str(error))


class Pairwise:
    """Implements `RewardModel` with a judge of pairs.

    Every two different answers to a prompt are compared in both orders, so a judge that always prefers a place gives
    every answer the same reward. Equal answers are not compared: over both orders each wins half the time.

    Args:
        judge: compares.
        reduce: `mean_win_rate`: mean probability to win against the others, in [0, 1]. `bradley_terry`: log-strength,
            centred on 0 in its prompt. `reference`: probability to win against the answer in a column, in [0, 1].
        column: where `reference` finds that answer: text, or messages that end with it.
        group_size: answers expected to each prompt; None for any number.

    Attributes:
        relative: whether a reward depends on the other answers to its prompt.
        calls: comparisons made so far.
    """

    parts = ("comparisons",)

    def __init__(
        self,
        judge: PairJudge,
        reduce: Reduce = "mean_win_rate",
        column: str = "reference",
        group_size: int | None = None,
    ) -> None:
        check_choice("reduce", reduce, Reduce)
        if group_size is not None and (type(group_size) is not int or group_size < 2):
            raise OptionError(f"group_size={group_size!r} must be a whole number of at least 2.")
        self.judge = judge
        self.relative = reduce != "reference"
        self.calls = 0
        self._reduce, self._column, self._size = reduce, column, group_size

    def score(self, conversations: Sequence[Conversation], progress: Progress | None = None) -> list[Score]:
        """Scores in order; a conversation without a readable comparison has no value.

        Raises:
            ScoringError: a prompt has a number of answers that `group_size` does not divide.
        """
        return (self._among if self.relative else self._against_column)(conversations, progress)

    def _among(self, conversations: Sequence[Conversation], progress: Progress | None) -> list[Score]:
        groups = by_prompt(conversations)
        self._check_sizes(groups)
        pairs = [pair for group in groups for pair in combinations(group, 2)]  # of answers, each once
        advance = rescaled(progress, 2 * len(pairs), len(conversations))
        told = self._both_orders([(conversations[a[0]], conversations[b[0]]) for a, b in pairs], advance)
        known = {(a[0], b[0]): win for (a, b), win in zip(pairs, told, strict=True)}
        scores = {row: score for group in groups for row, score in self._of_group(group, known).items()}
        return [scores[row] for row in range(len(conversations))]

    def _check_sizes(self, groups: Sequence[Sequence[Distinct]]) -> None:
        for rows in (sorted(row for answer in group for row in answer) for group in groups):
            if self._size and len(rows) % self._size:
                raise ScoringError(
                    f"The prompt of row {rows[0]} has {len(rows)} answers and group_size is {self._size}: some are "
                    "missing, or its text differs between rows."
                )

    def _of_group(self, group: Sequence[Distinct], known: Mapping[tuple[int, int], Preference]) -> dict[int, Score]:
        rows = [row for answer in group for row in answer]
        if len(rows) == 1:
            return {rows[0]: _failed("its prompt has no other answer to compare with")}
        owner = {row: answer[0] for answer in group for row in answer}
        told = {
            (a, b): Preference(0.5) if owner[a] == owner[b] else known[owner[a], owner[b]]
            for a, b in combinations(rows, 2)
        }
        values = RULES[self._reduce](rows, {pair: win.first for pair, win in told.items() if win.first is not None})
        return {row: _summed(values.get(row), [win for pair, win in told.items() if row in pair]) for row in rows}

    def _against_column(self, conversations: Sequence[Conversation], progress: Progress | None) -> list[Score]:
        answers = [conversation.columns.get(self._column) for conversation in conversations]
        rows = [row for row, answer in enumerate(answers) if answer is not None]
        pairs = [(conversations[row], _with_answer(conversations[row], answers[row])) for row in rows]
        advance = rescaled(progress, 2 * len(pairs), len(conversations))
        told = dict(zip(rows, self._both_orders(pairs, advance), strict=True))
        lost = _failed(f"the row has no {self._column!r} to compare with")
        return [_summed(told[r].first, [told[r]]) if r in told else lost for r in range(len(conversations))]

    def _both_orders(self, pairs: Sequence[tuple[Conversation, Conversation]], advance: Progress) -> list[Preference]:
        """Probability that the first of each pair wins, over both orders."""
        asked = [Pair(*order) for a, b in pairs for order in ((a, b), (b, a))]
        self.calls += len(asked)
        if not asked:
            return []
        told = self.judge.prefer(asked, advance)
        return [_over_orders(told[i], told[i + 1]) for i in range(0, len(told), 2)]


def _over_orders(forward: Preference, backward: Preference) -> Preference:
    flags = forward.flags | backward.flags
    if forward.first is None or backward.first is None:
        return Preference(None, flags | {"failed"}, forward.error or backward.error)
    return Preference((forward.first + 1 - backward.first) / 2, flags)


def _summed(value: float | None, comparisons: Sequence[Preference]) -> Score:
    """The score of an answer with its comparisons; the flags of all of them, and why there is no value."""
    flags = frozenset().union(*(win.flags for win in comparisons))
    readable = sum(win.first is not None for win in comparisons)
    error = None if value is not None else next((win.error for win in comparisons if win.error), "no verdict")
    return Score(value, {"comparisons": float(readable)}, flags=flags, error=error)


def _failed(why: str) -> Score:
    return Score(None, {"comparisons": 0.0}, flags=frozenset({"failed"}), error=why)


def _with_answer(conversation: Conversation, answer: Any) -> Conversation:
    text = answer if isinstance(answer, str) else plain_text(answer[-1]["content"])
    return Conversation((*conversation.messages[:-1], {"role": "assistant", "content": text}), conversation.columns)


def pairwise(spec: LoadSpec, judge: PairJudge) -> Pairwise:
    """The reward model of a judge of pairs, with the options of `PAIR_OPTIONS`.

    Raises:
        OptionError: a rule that does not exist, or a column that the rule does not read.
    """
    chosen = {name: spec.options[name] for name in PAIR_OPTIONS if name in spec.options}
    if "column" in chosen and chosen.get("reduce") != "reference":
        raise OptionError("column= names the answer to compare with, which only reduce='reference' does.")
    if "group_size" in chosen and chosen.get("reduce") == "reference":
        raise OptionError("group_size= counts the answers to one prompt, and reduce='reference' compares none of them.")
    return Pairwise(judge, **chosen)
