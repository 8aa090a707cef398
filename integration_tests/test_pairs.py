"""Rewards from comparisons, with judges of a few lines."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rm_plugins import Conversation
from rm_plugins.errors import OptionError, ScoringError
from rm_plugins.judging.pairs import Pairwise, Preference
from rm_plugins.judging.strength import bradley_terry, mean_win_rate


class Judge:
    """Prefers by a function of two answers, and writes down what it was shown."""

    def __init__(self, first_wins):
        self.first_wins, self.seen = first_wins, []

    def prefer(self, pairs, progress=None):
        self.seen += [(p.first.messages[0]["content"], p.first.answer, p.second.answer) for p in pairs]
        told = [self.first_wins(p.first.answer, p.second.answer) for p in pairs]
        if progress:
            progress(len(pairs))
        return [t if isinstance(t, Preference) else Preference(t) for t in told]


def talks(*rows):
    return [
        Conversation(({"role": "user", "content": prompt}, {"role": "assistant", "content": answer}))
        for prompt, answer in rows
    ]


def longer(a, b):
    return 0.9 if len(a) > len(b) else 0.1


def values(scores):
    return [score.value for score in scores]


def test_answers_are_compared_in_both_orders_with_those_of_their_own_prompt():
    judge = Judge(longer)
    model = Pairwise(judge)
    scores = model.score(talks(("p", "a"), ("q", "ccc"), ("p", "bb"), ("q", "d"), ("p", "eee")))
    assert values(scores) == pytest.approx([0.1, 0.9, 0.5, 0.1, 0.9])
    assert {(a, b) for prompt, a, b in judge.seen if prompt == "q"} == {("ccc", "d"), ("d", "ccc")}
    assert {a + b for prompt, a, b in judge.seen if prompt == "p"} == {"abb", "bba", "aeee", "eeea", "bbeee", "eeebb"}
    assert model.calls == len(judge.seen) == 8
    assert [s.parts["comparisons"] for s in scores] == [2, 1, 2, 1, 2]


@given(order=st.permutations(range(6)))
def test_rewards_follow_the_prompt_whatever_the_order_of_the_rows(order):
    rows = [("p", "a"), ("p", "bb"), ("p", "ccc"), ("q", "dddd"), ("q", "e"), ("q", "ff")]
    expected = values(Pairwise(Judge(longer)).score(talks(*rows)))
    found = values(Pairwise(Judge(longer)).score(talks(*(rows[i] for i in order))))
    assert found == pytest.approx([expected[i] for i in order])


@pytest.mark.parametrize("order", [(0, 1, 2, 3, 4, 5, 6, 7), (0, 4, 1, 5, 2, 6, 3, 7)])  # blocked, interleaved
def test_a_group_size_is_checked_and_changes_no_reward(order):
    rows = [(prompt, answer) for prompt in "pq" for answer in ("a", "bb", "ccc", "dddd")]
    expected = [0.1, 0.1 + 0.8 / 3, 0.1 + 1.6 / 3, 0.9] * 2
    model = Pairwise(Judge(longer), group_size=4)
    assert values(model.score(talks(*(rows[i] for i in order)))) == pytest.approx([expected[i] for i in order])
    with pytest.raises(ScoringError, match="row 4 has 3 answers and group_size is 4"):
        model.score(talks(*rows[:7]))
    with pytest.raises(OptionError, match="group_size=1"):
        Pairwise(Judge(longer), group_size=1)


@pytest.mark.parametrize(("reduce", "value"), [("mean_win_rate", 0.5), ("bradley_terry", 0.0)])
def test_a_judge_of_places_gives_every_answer_the_same(reduce, value):
    always_first = Judge(lambda a, b: 1.0)
    scores = Pairwise(always_first, reduce).score(talks(("p", "a"), ("p", "b"), ("p", "c")))
    assert values(scores) == pytest.approx([value] * 3, abs=1e-6)


@pytest.mark.parametrize(("reduce", "value"), [("mean_win_rate", 0.5), ("bradley_terry", 0.0)])
def test_answers_that_beat_each_other_in_a_ring_are_equal(reduce, value):
    ring = {("a", "b"), ("b", "c"), ("c", "a")}
    scores = Pairwise(Judge(lambda a, b: float((a, b) in ring)), reduce).score(
        talks(("p", "a"), ("p", "b"), ("p", "c"))
    )
    assert values(scores) == pytest.approx([value] * 3, abs=1e-6)


def test_strengths_are_the_likeliest_under_the_prior():
    # two answers, one won by p: 1 - p(1 + e^-d)... at the optimum p - sigmoid(2s) + 1/2 - sigmoid(s) = 0
    from math import exp

    found = bradley_terry([7, 9], {(7, 9): 1.0})
    s = found[7]
    assert found[9] == pytest.approx(-s, abs=1e-6)
    assert 1 - 1 / (1 + exp(-2 * s)) + 0.5 - 1 / (1 + exp(-s)) == pytest.approx(0, abs=1e-6)
    assert bradley_terry([1, 2, 3], {(1, 2): 1.0, (1, 3): 1.0, (2, 3): 1.0})[2] == pytest.approx(0, abs=1e-6)
    assert bradley_terry([1], {}) == {} and 3 not in bradley_terry([1, 2, 3], {(1, 2): 0.7})


def test_many_answers_of_which_each_beats_the_next_keep_their_order():
    n = 40
    found = bradley_terry(range(n), {(a, b): 1.0 for a in range(n) for b in range(a + 1, n)})
    assert sorted(found, key=found.get, reverse=True) == list(range(n))


def test_equal_answers_are_even_and_are_not_judged():
    judge = Judge(longer)
    scores = Pairwise(judge).score(talks(("p", "a"), ("p", "a"), ("p", "bb"), ("r", "x"), ("r", "x")))
    assert values(scores) == pytest.approx([(0.5 + 0.1) / 2, (0.5 + 0.1) / 2, 0.9, 0.5, 0.5])
    assert len(judge.seen) == 2


def test_an_answer_alone_has_no_reward():
    [score] = Pairwise(Judge(longer)).score(talks(("p", "a")))
    assert score.value is None and "no other answer" in score.error and "failed" in score.flags


def test_a_pair_that_cannot_be_read_in_one_order_does_not_count():
    def judge(a, b):
        if (a, b) == ("bb", "a"):
            return Preference(None, frozenset({"unreadable"}), "the judge wrote 'maybe'")
        return longer(a, b)

    one, two, three = Pairwise(Judge(judge)).score(talks(("p", "a"), ("p", "bb"), ("p", "ccc")))
    assert (one.value, two.value, three.value) == pytest.approx((0.1, 0.1, 0.9))
    assert "unreadable" in one.flags & two.flags and not three.flags and one.parts["comparisons"] == 1
    lost, _ = Pairwise(Judge(judge)).score(talks(("p", "a"), ("p", "bb")))
    assert lost.value is None and lost.error == "the judge wrote 'maybe'" and lost.flags == {"unreadable", "failed"}


def test_a_column_holds_the_answer_to_compare_with():
    rows = talks(("p", "a"), ("p", "ccc"), ("q", "d"))
    chat = [{"role": "assistant", "content": "bb"}]
    rows = [Conversation(c.messages, {"reference": r}) for c, r in zip(rows, ("bb", chat, None), strict=True)]
    model = Pairwise(Judge(longer), "reference")
    first, second, third = model.score(rows)
    assert (first.value, second.value) == pytest.approx((0.1, 0.9)) and not model.relative and model.calls == 4
    assert third.value is None and third.error == "the row has no 'reference' to compare with"


def test_progress_ends_at_the_number_of_conversations():
    seen = []
    Pairwise(Judge(longer)).score(talks(("p", "a"), ("p", "bb"), ("p", "ccc")), seen.append)
    assert sum(seen) == 3


def test_a_rule_that_does_not_exist_is_an_error():
    with pytest.raises(OptionError, match="reduce='elo' is none of mean_win_rate, bradley_terry, reference"):
        Pairwise(Judge(longer), "elo")


def test_a_win_rate_counts_only_what_was_told():
    assert mean_win_rate([1, 2, 3], {(1, 2): 0.8}) == {1: 0.8, 2: pytest.approx(0.2)}
