"""Best-of-n from one pool: hand-computed values, and every subset of small pools by force."""

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rm_plugins.best_of_n.divergence import gao_fit, kl_bound, kl_estimate, kl_exact, n_for_kl, soft_kl_bound
from rm_plugins.best_of_n.estimators import best_of_n, bootstrap, curve, mean_curve, rank_weights
from rm_plugins.errors import OptionError

PROXY, GOLD = [0.1, 0.9, 0.4, 0.7, 0.2], [1, 0, 0.5, 0.8, 0.3]


@pytest.mark.parametrize(
    ("rewards", "values", "expected"),
    [
        (PROXY, PROXY, [0.46, 0.67, 0.79, 0.86, 0.9]),
        (PROXY, GOLD, [0.52, 0.37, 0.29, 0.16, 0]),  # the proxy is over-optimized
        ([1, 1, 0, 0, 2, 2], [1, 0, 0.5, 0.3, 0.2, 0.9], [0.483333, 0.523333, 0.54, 0.546667, 0.55, 0.55]),
        ([0.1, 0.9, 0.5, 0.7], [0, 0, 1, 1], [0.5, 0.5, 0.25, 0]),
        (
            [0.9, 0.1, 0.8, 0.3, 0.5, 0.2, 0.7, 0.4],
            [0, 0, 1, 0, 1, 0, 1, 0],
            [0.375, 0.535714, 0.553571, 0.485714, 0.375, 0.25, 0.125, 0],
        ),
    ],
)
def test_curves_by_hand(rewards, values, expected):
    assert curve(rewards, values, range(1, len(expected) + 1)) == pytest.approx(expected, abs=1e-6)


def test_weights_by_hand():
    assert rank_weights(5, 2) == pytest.approx([0, 0.1, 0.2, 0.3, 0.4])
    assert rank_weights(5, 3) == pytest.approx([0, 0, 0.1, 0.3, 0.6])
    assert rank_weights(6, 4, place=2) == pytest.approx([0, 0, 0.2, 0.4, 0.4, 0])
    assert rank_weights(12_600, 12_500).sum() == pytest.approx(1, abs=1e-9)
    solved = [1] * 3 + [0] * 7  # pass@k
    assert curve(solved, solved, [1, 2, 4]) == pytest.approx([0.3, 0.533333, 0.833333], abs=1e-6)


@settings(deadline=None)
@given(pool=st.lists(st.tuples(st.integers(0, 3), st.integers(-4, 4)), min_size=1, max_size=7), data=st.data())
def test_the_estimate_is_the_mean_over_every_subset(pool, data):
    n = data.draw(st.integers(1, len(pool)))
    rewards, values = zip(*pool, strict=True)

    def picked(subset):
        best = max(rewards[k] for k in subset)
        return np.mean([values[k] for k in subset if rewards[k] == best])

    by_force = np.mean([picked(subset) for subset in combinations(range(len(pool)), n)])
    assert best_of_n(rewards, values, n) == pytest.approx(by_force, abs=1e-9)


@given(count=st.integers(1, 9), data=st.data())
def test_every_place_has_the_weights_of_its_binomials(count, data):
    n = data.draw(st.integers(1, count))
    place = data.draw(st.integers(1, n))
    ways = [math.comb(rank - 1, n - place) * math.comb(count - rank, place - 1) for rank in range(1, count + 1)]
    assert rank_weights(count, n, place) == pytest.approx(np.array(ways) / math.comb(count, n))


def test_candidates_without_a_reward_are_left_out_and_never_drawn_twice():
    assert curve([1, math.nan, 3], [10, 99, 30], [1, 2]) == pytest.approx([20, 30])
    assert math.isnan(best_of_n([1, math.nan, 3], [10, 99, 30], 3))
    with pytest.raises(OptionError, match="n=0 must be at least 1"):
        best_of_n([1], [1], 0)
    with pytest.raises(OptionError, match="n=3 candidates cannot be drawn from a pool of 2"):
        rank_weights(2, 3)


def test_the_mean_over_prompts_and_its_interval():
    pools = [(PROXY, PROXY), ([1, 2], [1, 2])]
    found = mean_curve(pools, [1, 2, 4])
    assert found == pytest.approx([(0.46 + 1.5) / 2, (0.67 + 2) / 2, 0.86])
    rows = np.random.default_rng(1).normal(3, 1, size=(400, 2))
    low, high = bootstrap(rows)
    half = 1.96 / math.sqrt(400)
    assert high - low == pytest.approx([2 * half] * 2, rel=0.15) and (low < rows.mean(0)).all()
    assert np.array_equal(bootstrap(rows)[0], low)  # seeded


@pytest.mark.parametrize(
    ("n", "bound"), [(1, 0), (2, 0.193147), (4, 0.636294), (16, 1.835089), (64, 3.174508), (256, 4.549084)]
)
def test_no_rule_moves_further_than_the_bound(n, bound):
    assert kl_bound(n) == pytest.approx(bound, abs=1e-6)
    assert kl_exact([0.1] * 10, n) <= bound + 1e-12 and kl_exact([0.5, 0.5], n) <= bound + 1e-12


def test_divergences_by_hand():
    assert [kl_exact([0.5, 0.5], n) for n in (2, 4, 64)] == pytest.approx([0.130812, 0.459356, 0.693147], abs=1e-6)
    assert [kl_exact([0.1] * 10, n) for n in (4, 64)] == pytest.approx([0.628825, 2.293451], abs=1e-6)
    pairs = [(4, 0.1), (4, 0.5), (16, 0.1), (64, 0.01), (64, 0.1)]
    expected = [0.634870, 0.499124, 1.756142, 3.166665, 2.294609]
    assert [kl_estimate(*pair) for pair in pairs] == pytest.approx(expected, abs=1e-6)
    assert [n_for_kl(d) for d in (0, 0.5, 1, 5)] == pytest.approx([1, 3.314, 6.305, 402.428], abs=1e-3)
    assert soft_kl_bound([0.25] * 4) == pytest.approx(0) and soft_kl_bound([1, 0, 0, 0]) == pytest.approx(math.log(4))


def test_the_form_of_gao_is_found_again():
    kl = np.array([kl_bound(n) for n in (1, 2, 4, 16, 64, 256)])
    d = np.sqrt(kl)
    assert gao_fit(kl, d * (1 - 0.25 * d)) == pytest.approx((1, 0.25))
