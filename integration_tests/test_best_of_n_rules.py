"""Rules that choose among candidates, by hand-computed numbers."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rm_plugins import Score
from rm_plugins.best_of_n.divergence import kl_bound
from rm_plugins.best_of_n.lots import Pessimistic, Random, Soft, TopK
from rm_plugins.best_of_n.pool import Candidate, Pool
from rm_plugins.best_of_n.rules import (
    Best,
    Likelihood,
    Longest,
    MinimumBayesRisk,
    Regularized,
    SelfCertainty,
    Shortest,
    word_overlap,
)
from rm_plugins.best_of_n.votes import Majority, WeightedMajority, boxed
from rm_plugins.errors import OptionError, ScoringError

R = [0.1, 0.9, 0.4, 0.7, 0.2]


def pool(rewards, texts=None, **more):
    texts = texts or [f"answer {k}" for k in range(len(rewards))]
    found = []
    for k, (text, reward) in enumerate(zip(texts, rewards, strict=True)):
        score = Score(reward, error=None if reward is not None else "broken")
        found.append(Candidate(text, score=score, **{name: values[k] for name, values in more.items()}))
    return Pool(({"role": "user", "content": "q"},), tuple(found))


def chosen(rule, candidates, seed=0):
    return rule.select(candidates, np.random.default_rng(seed))


def test_the_best_wins_ties_go_to_the_first_and_are_counted():
    found = chosen(Best(), pool([0.5, None, 2.0, 2.0, -1.0]))
    assert (found.index, found.ties, found.ranking) == (2, 2, (2, 3, 0, 4, 1))
    assert found.probabilities == (0, 0, 1, 0, 0) and found.kl_bound == kl_bound(5)
    with pytest.raises(ScoringError, match=r"None of 2 candidates has a reward: broken \(2x\)"):
        chosen(Best(), pool([None, None]))


@pytest.mark.parametrize(
    ("rule", "chances"),
    [
        (Soft(10), [0.192841, 0.208902, 0.198714, 0.204765, 0.194779]),
        (Soft(1), [0.133286, 0.296632, 0.179917, 0.242862, 0.147303]),
        (Soft(0.1), [0.000293, 0.874645, 0.005893, 0.118370, 0.000798]),
        (Pessimistic(0.05), [0, 0.9, 0, 0.1, 0]),
        (Pessimistic(0.1), [0, 0.7, 0, 0.3, 0]),
        (TopK(2), [0, 0.5, 0, 0.5, 0]),
        (Random(), [0.2] * 5),
    ],
    ids=lambda value: type(value).__name__,
)
def test_lots_have_the_published_chances(rule, chances):
    assert chosen(rule, pool(R)).probabilities == pytest.approx(chances, abs=1e-6)
    picks = [chosen(rule, pool(R), seed).index for seed in range(400)]
    assert np.bincount(picks, minlength=5) / 400 == pytest.approx(chances, abs=0.08)
    assert chosen(rule, pool(R), 7).index == chosen(rule, pool(R), 7).index


def test_a_soft_choice_moves_the_policy_less():
    assert chosen(Soft(1), pool([0, 1, 0, 1])).kl_bound == pytest.approx(0.110944, abs=1e-6)  # log 4 - H(p)
    assert chosen(Random(), pool(R)).kl_bound == pytest.approx(0)


@given(rewards=st.lists(st.one_of(st.none(), st.integers(-9, 9)), min_size=1, max_size=8))
def test_what_failed_never_wins(rewards):
    if all(r is None for r in rewards):
        return
    for rule in (Best(), Soft(1), TopK(3), Pessimistic(1), Regularized(0.5)):
        found = chosen(rule, pool(rewards))
        assert rewards[found.index] is not None and sum(found.probabilities) == pytest.approx(1)
        assert all(p == 0 for p, r in zip(found.probabilities, rewards, strict=True) if r is None)
        assert sorted(found.ranking) == list(range(len(rewards)))


def test_a_regularised_choice_turns_where_the_paper_says():
    likeness = np.array([[1, 0.9, 0.8, 0.1], [0.9, 1, 0.85, 0.2], [0.8, 0.85, 1, 0.1], [0.1, 0.2, 0.1, 1]])
    four = pool([0.5, 0.6, 0.55, 1])
    picks = [chosen(Regularized(beta, lambda texts: likeness), four).index for beta in (0, 1.03, 1.04, 9)]
    assert picks == [3, 3, 1, 1]
    assert chosen(MinimumBayesRisk(lambda texts: likeness), four).index == 1


def test_words_in_common():
    assert word_overlap(["a b", "B c", "", ""]).tolist() == [
        [1, 0.5, 0, 0],
        [0.5, 1, 0, 0],
        [0, 0, 1, 1],
        [0, 0, 1, 1],
    ]


def test_controls_need_no_reward():
    some = pool(
        [None] * 3, ["aaa", "a", "aa"], ids=[(1, 2), (1,), (1, 2, 3)], log_prob=[-2.0, -0.5, -6.0], certainty=[1, 2, 3]
    )
    assert [chosen(rule, some).index for rule in (Longest(), Shortest(), Likelihood(), SelfCertainty())] == [2, 1, 1, 2]
    with pytest.raises(ScoringError, match="No candidate has a log_prob"):
        chosen(Likelihood(), pool(R))


def test_votes_by_hand():
    answers, scores = ["A", "B", "A", "C", "B"], [0.9, 0.8, 0.2, 0.95, 0.7]
    five = pool(scores, answers)
    most = chosen(Majority(lambda text: text), five)
    assert (most.index, most.ties) == (1, 2)  # two votes each; B has more reward
    assert chosen(WeightedMajority(lambda text: text), five).index == 1 and chosen(Best(), five).index == 3
    assert chosen(Majority(lambda text: text), pool([None] * 3, ["x", "y", "y"])).index == 1
    assert chosen(Majority(lambda text: None if text == "x" else text), pool([9, 1], ["x", "y"])).index == 1
    with pytest.raises(OptionError, match=r"one is -0\.2; bring them to \[0, 1\]"):
        chosen(WeightedMajority(lambda text: text), pool([-0.2, 1], ["x", "y"]))
    with pytest.raises(ScoringError, match="gives an answer to vote for"):
        chosen(Majority(boxed), pool(R))


def test_the_last_box_is_the_answer():
    assert boxed(r"\boxed{1} no, \boxed{\frac{1}{ 2}} done") == r"\frac{1}{2}"
    assert boxed("none") is None and boxed(r"\boxed{1") is None


@pytest.mark.parametrize(
    "make", [lambda: Soft(0), lambda: Soft(math.inf), lambda: TopK(0), lambda: Pessimistic(-1), lambda: Regularized(-1)]
)
def test_a_setting_that_cannot_be_is_an_error(make):
    with pytest.raises(OptionError, match="must be"):
        make()
