"""Tournaments: a judge of pairs chooses among candidates without comparing all of them.

Every match is judged in both orders. What was judged is remembered by prompt and answers, so that no two answers are
compared twice by one tournament object. What cannot be judged, or what the budget has no room for, is won by the better
seed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

import numpy as np

from rm_plugins.best_of_n.pool import Array, Pool
from rm_plugins.best_of_n.rules import Selection, ranked, selection
from rm_plugins.conversation import Conversation
from rm_plugins.errors import OptionError, ScoringError
from rm_plugins.judging.pairs import Pair, PairJudge
from rm_plugins.judging.strength import bradley_terry

Scheme: TypeAlias = Literal["knockout", "swiss", "round_robin"]
Seeds: TypeAlias = Callable[[Pool], Array]
_Match: TypeAlias = tuple[int, int]


class Tournament:
    """Chooses by matches between candidates.

    Args:
        judge: says which of two answers is better.
        scheme: `knockout`: losers leave, n - 1 matches. `swiss`: everyone plays each round against an equal, `rounds`
            rounds. `round_robin`: everyone plays everyone.
        rounds: of `swiss`; the rounds of a knockout by default.
        seeds: a number for each candidate, highest first, so that the likely best meet late: rewards or likelihood. By
            default the rewards that the candidates have, else the order in which they were drawn.
        budget: most judgements of one pool, two a match.

    Attributes:
        position_bias: mean |p(a before b) + p(b before a) - 1| of the matches so far: 0 for a judge without one.
    """

    def __init__(
        self,
        judge: PairJudge,
        scheme: Scheme = "knockout",
        *,
        rounds: int | None = None,
        seeds: Seeds | None = None,
        budget: int | None = None,
    ) -> None:
        if scheme not in ("knockout", "swiss", "round_robin"):
            raise OptionError(f"scheme={scheme!r} is none of knockout, swiss, round_robin.")
        if budget is not None and budget < 2:
            raise OptionError(f"budget={budget!r} must allow one match, which is two judgements.")
        self._judge, self._scheme, self._rounds, self._seeds, self._budget = judge, scheme, rounds, seeds, budget
        self._known: dict[tuple[str, str, str], float | None] = {}
        self._bias: list[float] = []

    @property
    def position_bias(self) -> float:
        """See the class; NaN before the first match."""
        return float(np.mean(self._bias)) if self._bias else float("nan")

    def select(self, pool: Pool, rng: np.random.Generator) -> Selection:
        """The winner.

        Raises:
            ScoringError: no match could be judged.
        """
        table = _Table(self, pool)
        order = self._order(pool)
        ranking = {"knockout": _knockout, "swiss": self._swiss, "round_robin": _round_robin}[self._scheme](table, order)
        if len(pool) > 1 and not table.judged:
            raise ScoringError(f"No match among {len(pool)} candidates could be judged.")
        certain = np.zeros(len(pool))
        certain[ranking[0]] = 1.0
        return selection(pool, ranking[0], certain, ranking, calls=table.calls)

    def _order(self, pool: Pool) -> list[int]:
        numbers = self._seeds(pool) if self._seeds else pool.rewards
        return ranked(numbers)

    def _swiss(self, table: _Table, order: list[int]) -> list[int]:
        wins = dict.fromkeys(order, 0.0)
        place = {row: number for number, row in enumerate(order)}
        played: set[frozenset[int]] = set()
        for _ in range(self._rounds or max(1, (len(order) - 1).bit_length())):
            standing = sorted(order, key=lambda row: (-wins[row], place[row]))
            matches = _neighbours(standing, played)
            played |= {frozenset(match) for match in matches}
            for (a, b), chance in zip(matches, table.settle(matches), strict=True):
                wins[a] += chance
                wins[b] += 1 - chance
        return sorted(order, key=lambda row: (-wins[row], place[row]))

    def chances(
        self, conversations: Sequence[Conversation], matches: Sequence[_Match]
    ) -> tuple[list[float | None], int]:
        """Probability that the first of each match wins, over both orders, and how many judgements it took."""
        keys = [_key(conversations[a], conversations[b]) for a, b in matches]
        new = {key: match for key, match in zip(keys, matches, strict=True) if key not in self._known}
        asked = [Pair(conversations[x], conversations[y]) for a, b in new.values() for x, y in ((a, b), (b, a))]
        told = self._judge.prefer(asked) if asked else []
        for place, key in enumerate(new):
            forward, backward = told[2 * place].first, told[2 * place + 1].first
            if forward is None or backward is None:
                self._known[key] = None
                continue
            self._bias.append(abs(forward + backward - 1))
            self._known[key] = (forward + 1 - backward) / 2
            prompt, first, second = key
            self._known[prompt, second, first] = 1 - (forward + 1 - backward) / 2
        return [self._known[key] for key in keys], len(asked)

    def allows(self, calls: int) -> bool:
        """Whether the budget has room for so many judgements of one pool."""
        return self._budget is None or calls <= self._budget


class _Table:
    """The matches of one pool."""

    def __init__(self, tournament: Tournament, pool: Pool) -> None:
        self._tournament, self._conversations = tournament, pool.conversations
        self._texts = [candidate.text for candidate in pool.candidates]
        self.calls = self.judged = 0

    def play(self, matches: Sequence[_Match]) -> list[float | None]:
        """Probability that the first of each match wins; None if nobody can tell, or the budget has no room for it."""
        played = [(a, b) for a, b in matches if self._texts[a] != self._texts[b]]
        while played and not self._tournament.allows(self.calls + 2 * len(played)):
            played.pop()
        found, calls = self._tournament.chances(self._conversations, played) if played else ([], 0)
        self.calls += calls
        self.judged += sum(chance is not None for chance in found)
        known = dict(zip(played, found, strict=True))
        even = {match for match in matches if self._texts[match[0]] == self._texts[match[1]]}
        self.judged += len(even)
        return [0.5 if match in even else known.get(match) for match in matches]

    def settle(self, matches: Sequence[_Match]) -> list[float]:
        """The same; what nobody can tell is won by the first, which is the better seed."""
        return [1.0 if chance is None else chance for chance in self.play(matches)]


def _knockout(table: _Table, order: list[int]) -> list[int]:
    """Best against worst seed in each round; those who left last rank highest."""
    left, out = list(order), list[int]()
    while len(left) > 1:
        half = len(left) // 2
        matches = list(zip(left[:half], reversed(left[-half:]), strict=True))
        middle = left[half : len(left) - half]
        chances = table.settle(matches)
        winners = [a if chance >= 0.5 else b for (a, b), chance in zip(matches, chances, strict=True)]
        losers = [b if chance >= 0.5 else a for (a, b), chance in zip(matches, chances, strict=True)]
        out = losers + out
        left = winners + middle
    return left + out


def _round_robin(table: _Table, order: list[int]) -> list[int]:
    matches = [(a, b) for place, a in enumerate(order) for b in order[place + 1 :]]
    told = {match: chance for match, chance in zip(matches, table.play(matches), strict=True) if chance is not None}
    strength = bradley_terry(order, told)
    return sorted(order, key=lambda row: (-strength.get(row, -np.inf), order.index(row)))


def _neighbours(standing: list[int], played: set[frozenset[int]]) -> list[_Match]:
    """Pairs of neighbours in the standing that have not met; who finds no one sits out."""
    waiting, matches = list(standing), list[_Match]()
    while waiting:
        first = waiting.pop(0)
        other = next((row for row in waiting if frozenset((first, row)) not in played), None)
        if other is not None:
            waiting.remove(other)
            matches.append((first, other))
    return matches


def _key(first: Conversation, second: Conversation) -> tuple[str, str, str]:
    return repr(first.messages[:-1]), first.answer, second.answer
