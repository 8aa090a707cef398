"""Tournaments of pair judges, with judges of a few lines."""

import numpy as np
import pytest
from test_best_of_n_rules import chosen, pool
from test_pairs import Judge, longer

from rm_plugins.best_of_n.tournament import Tournament
from rm_plugins.errors import OptionError, ScoringError

WORDS = ["dd", "a", "hhhhhhhh", "ccc", "ggggggg", "eeeee", "bbbb", "ffffff"]


def eight(rewards=None):
    return pool(rewards or [None] * 8, WORDS)


@pytest.mark.parametrize(("scheme", "calls"), [("knockout", 14), ("swiss", 24), ("round_robin", 56)])
def test_the_better_answer_wins_in_both_orders_with_the_matches_of_the_scheme(scheme, calls):
    judge = Judge(longer)
    tournament = Tournament(judge, scheme)
    found = chosen(tournament, eight())
    assert (found.index, found.calls, len(judge.seen)) == (2, calls, calls)
    assert sorted(found.ranking) == list(range(8)) and found.probabilities[2] == 1
    assert {(a, b) for _, a, b in judge.seen} == {(b, a) for _, a, b in judge.seen}
    assert tournament.position_bias == 0
    assert chosen(tournament, eight()).calls == 0  # what was judged is remembered


def test_a_round_robin_ranks_everyone():
    assert [WORDS[k] for k in chosen(Tournament(Judge(longer), "round_robin"), eight()).ranking][:3] == [
        "hhhhhhhh",
        "ggggggg",
        "ffffff",
    ]


def test_seeds_meet_late_and_decide_what_nobody_can_tell():
    judge = Judge(longer)
    seeded = pool([1.0, 4, 3, 2], ["a", "bb", "ccc", "dddd"])
    chosen(Tournament(judge), seeded)
    assert {a + b for _, a, b in judge.seen[:2]} == {"bba", "abb"}  # the first seed meets the last
    first = Judge(lambda a, b: 1.0)
    found = Tournament(first)
    assert chosen(found, seeded).index == 1 and found.position_bias == 1  # a judge of places tells nothing
    with pytest.raises(ScoringError, match="No match among 8"):
        chosen(Tournament(Judge(lambda a, b: None), "swiss"), eight())


def test_an_unreadable_match_is_won_by_the_better_seed():
    judge = Judge(lambda a, b: None if "ccc" in (a, b) else longer(a, b))
    assert chosen(Tournament(judge), pool([1.0, 4, 3, 2], ["a", "bb", "ccc", "dddd"])).index in (1, 3)


def test_a_budget_is_never_passed():
    for scheme in ("knockout", "swiss", "round_robin"):
        judge = Judge(longer)
        found = chosen(Tournament(judge, scheme, budget=6), eight(list(range(8))))
        assert found.calls == len(judge.seen) <= 6
    with pytest.raises(OptionError, match="budget=1 must allow one match"):
        Tournament(Judge(longer), budget=1)
    with pytest.raises(OptionError, match="scheme='cup' is none of"):
        Tournament(Judge(longer), "cup")


def test_equal_answers_and_a_single_one_are_not_judged():
    judge = Judge(longer)
    assert chosen(Tournament(judge), pool([None], ["a"])).index == 0
    assert chosen(Tournament(judge), pool([None] * 2, ["a", "a"])).index == 0 and judge.seen == []


def test_three_of_five_rounds_of_swiss_never_repeat_a_match():
    judge = Judge(longer)
    chosen(Tournament(judge, "swiss", rounds=4), pool([None] * 5, WORDS[:5]))
    matches = [frozenset((a, b)) for _, a, b in judge.seen]
    assert all(matches.count(match) == 2 for match in matches) and np.isfinite(len(matches))
