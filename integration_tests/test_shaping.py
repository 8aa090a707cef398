"""Steps of shaping by hand-computed numbers, and the laws that they keep."""

import json
import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import spearmanr

from rm_plugins import Conversation
from rm_plugins.errors import OptionError
from rm_plugins.shaping import (
    Budget,
    Clip,
    Cosine,
    Fixed,
    GaussianRank,
    GroupLength,
    LengthCurve,
    Linear,
    MinMax,
    MissingEnd,
    Rank,
    Reference,
    Repetition,
    Robust,
    Running,
    RunningMinMax,
    Sigmoid,
    SoftOverlong,
    Tanh,
    TargetLength,
    ZScore,
)
from rm_plugins.shaping.batch import Batch, Rows
from rm_plugins.shaping.honesty import advantages
from rm_plugins.shaping.moments import Moments
from rm_plugins.shaping.steps import STEPS, step_of

R = [2, 0, -1, 5]
REFERENCES = [[1, 0.5]] * 4


def applied(step, values, groups=(), measured=()):
    """What a step makes of rewards, None for a row without one."""
    found = step.apply(Batch.of(values, groups, measured or [None] * len(values)))
    return [None if math.isnan(value) else value for value in found]


def rows(*answers, ids=None, **more):
    talks = [Conversation(({"role": "user", "content": "q"}, {"role": "assistant", "content": a})) for a in answers]
    return Rows(talks, ids, **more)


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (ZScore(eps=1e-4), [0.188975, -0.566925, -0.944875, 1.322826]),
        (ZScore(ddof=0), [0.218218, -0.654654, -1.091089, 1.527525]),
        (MinMax(), [0.5, 0.166667, 0, 1]),
        (Robust(), [0.44966, -0.44966, -0.89932, 1.798639]),
        (Rank(), [2 / 3, 1 / 3, 0, 1]),
        (GaussianRank(), [0.299307, -0.299307, -1.049131, 1.049131]),
        (Tanh(), [0.964028, 0, -0.761594, 0.999909]),
        (Clip(low=-3, high=3), [2, 0, -1, 3]),
        (Sigmoid(scale=3, centre=3), [0.047426, 0.000123, 0.000006, 0.997527]),
        (Fixed(mean=3, deviation=2), [-0.5, -1.5, -2, 1]),
        (Reference(), [0.774317, 0.323241, 0.150814, 0.985513]),
        (Reference(rule="subtract"), [1.25, -0.75, -1.75, 4.25]),
        (Reference(rule="lsc"), [-0.345932, -1.399691, -2.230174, -0.020369]),  # q85 = 0.75 + 1.0364334 * 0.3535534
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_the_published_formulas_by_hand(step, expected):
    assert applied(step, R, measured=REFERENCES) == pytest.approx(expected, abs=2e-6)
    with_a_gap = applied(step, [*R[:2], None, *R[2:]], measured=[*REFERENCES, REFERENCES[0]])
    assert with_a_gap.pop(2) is None and with_a_gap == pytest.approx(expected, abs=2e-6)


@pytest.mark.parametrize(
    ("step", "middle"), [(ZScore(), 0), (MinMax(), 0), (Robust(), 0), (Rank(), 0.5), (GaussianRank(), 0)]
)
@pytest.mark.parametrize("values", [[0.1] * 7, [3.0], [None, 0.3, None], [None, None], []])
def test_rewards_without_a_spread_are_the_middle(step, middle, values):
    assert applied(step, values) == pytest.approx([None if v is None else middle for v in values])


def test_more_than_half_equal_rewards_still_have_a_robust_scale():
    assert applied(Robust(), [1, 1, 1, 5]) == pytest.approx([0, 0, 0, 4 / 1.253314])


def test_a_group_is_the_answers_to_one_prompt_whatever_the_order():
    values, groups = [1.0, 10.0, 2.0, 30.0, 3.0], ["p", "q", "p", "q", "p"]
    assert applied(MinMax(), values, groups) == [0, 0, 0.5, 1, 1]
    assert applied(MinMax(scope="batch"), values, groups) == pytest.approx([0, 9 / 29, 1 / 29, 1, 2 / 29])


def test_moments_of_two_processes_are_those_of_one():
    merged = Moments.of(np.array([1.0, 2, 3])).merged(Moments.of(np.array([10.0, 20])))
    assert (merged.count, merged.mean) == (5, pytest.approx(7.2)) and merged.m2 == pytest.approx(254.8)
    assert merged.deviation(0) == pytest.approx(7.139, abs=1e-3) and merged.deviation() ** 2 == pytest.approx(63.7)


@given(parts=st.lists(st.lists(st.floats(-1e6, 1e6), max_size=6), min_size=1, max_size=6))
def test_moments_do_not_depend_on_how_numbers_are_dealt(parts):
    merged = Moments()
    for part in parts:
        merged = merged.merged(Moments.of(np.array(part)))
    whole = Moments.of(np.array([x for part in parts for x in part]))
    assert merged.count == whole.count and merged.mean == pytest.approx(whole.mean, rel=1e-9, abs=1e-6)
    assert merged.m2 == pytest.approx(whole.m2, rel=1e-6, abs=1e-3)


def test_running_statistics_wait_and_then_count_all():
    step = Running(min_count=4)
    first, second = Batch.of([1.0, 2.0, None, 3.0]), Batch.of([10.0, 20.0])
    step.update(first)
    assert step.apply(first)[:2].tolist() == [1, 2]  # three rewards are no scale yet
    step.update(second)
    assert step.apply(second) == pytest.approx((np.array([10, 20]) - 7.2) / math.sqrt(63.7))
    before = step.state_dict()
    step.apply(Batch.of([1e9]))
    assert step.state_dict() == before  # applying learns nothing


def test_a_running_range_is_kept():
    step = RunningMinMax()
    assert step.apply(Batch.of([3.0])).tolist() == [3]
    step.update(Batch.of([0.0, 4.0, None]))
    assert step.apply(Batch.of([1.0])).tolist() == [0.25]


def test_nothing_normalizes_without_statistics(tmp_path):
    with pytest.raises(OptionError, match="needs mean and deviation, or a file"):
        Fixed()
    with pytest.raises(OptionError, match=r"deviation=0 .*greater than 0"):
        Fixed(mean=1, deviation=0)
    assert applied(Fixed.of(np.array([1.0, 2, 3])), [4]) == [2]
    (tmp_path / "s.json").write_text(json.dumps({"mean": 3, "deviation": 2, "n": 9}))
    assert applied(Fixed(file=tmp_path / "s.json"), [5]) == [1]
    with pytest.raises(OptionError, match=r"no\.json has no mean and deviation"):
        Fixed(file=tmp_path / "no.json")


@pytest.mark.parametrize(
    ("step", "lengths", "terms"),
    [
        (Linear(slope=0.01), [0, 50], [0, -0.5]),
        (Budget(budget=100, slope=0.1), [99, 100, 103], [0, 0, -0.3]),
        (SoftOverlong(max_length=100, cache=20), [80, 81, 90, 100, 101, 140], [0, -0.05, -0.5, -1, -1, -1]),
        (Cosine(max_length=100), [0, 50, 100, 150, 200], [1, 0, -1, -1, -1]),
        (TargetLength(target=40, slope=0.5), [38, 40, 44], [-1, 0, -2]),
        (GroupLength(weight=2), [10, 20, 30], [2, 0, -2]),
        (GroupLength(weight=2), [10, 10], [0, 0]),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_length_terms_by_hand(step, lengths, terms):
    found = applied(step, [7.0] * len(lengths), measured=lengths)
    assert [value - 7 for value in found] == pytest.approx(terms)
    negative = applied(step, [-7.0] * len(lengths), measured=lengths)
    assert [value + 7 for value in negative] == pytest.approx(terms)  # added, so that it costs a bad answer the same


def test_lengths_are_the_policy_s_tokens_where_they_are_passed(caplog):
    caplog.set_level("INFO")
    step = Linear(slope=1)
    assert step.measure(rows("x" * 40, ids=[[5] * 12], count=len)) == [12]
    assert step.measure(rows("x" * 40, count=lambda text: 10)) == [10]
    assert Linear(slope=1, unit="characters").measure(rows("x" * 40, ids=[[5] * 12])) == [40]
    said = [record.message for record in caplog.records]
    assert "policy's completion ids" in said[0] and "reward model's tokenizer" in said[1] and len(said) == 3
    with pytest.raises(OptionError, match="no tokenizer to count with"):
        step.measure(rows("x"))


def test_a_missing_end_is_looked_for_in_the_completion_only():
    step = MissingEnd(unit="reward", eos_token_id=2)
    assert step.measure(rows("a", "b", ids=[[5, 6, 2], [5, 6]])) == [False, True]
    assert MissingEnd().measure(rows("a", ids=[[5, 9]], eos=frozenset([9]))) == [False]
    with pytest.raises(OptionError, match="completion ids"):
        step.measure(rows("a"))
    with pytest.raises(OptionError, match=r"eos_token_id= or reward\.callback"):
        MissingEnd().measure(rows("a", ids=[[5]]))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"unit": "reward"}, [1, 1.2, 0.8, 0.1]),
        ({"unit": "reward", "rule": "replace"}, [1, 1.2, 0.8, -1]),
        ({"unit": "reward", "rule": "floor", "amount": 0.5}, [1, 1.2, 0.8, -0.5]),
        ({"unit": "spread"}, [1, 1.2, 0.8, 1.1 - 0.1707825]),
        ({"unit": "spread", "rule": "replace"}, [1, 1.2, 0.8, 1.025 - 0.1707825]),
        ({"unit": "spread", "rule": "floor", "amount": 2}, [1, 1.2, 0.8, 1.025 - 0.341565]),
    ],
)
def test_what_a_missing_end_costs(settings, expected):
    rewards, lacks = [1, 1.2, 0.8, 1.1], [False, False, False, True]
    assert applied(MissingEnd(**settings), rewards, measured=lacks) == pytest.approx(expected, abs=1e-6)
    assert applied(MissingEnd(**settings), [1.0, None], measured=[False, True]) == [1, None]


def test_a_penalty_of_one_turns_the_advantages_that_it_was_not_meant_for():
    before = Batch.of([1, 1.2, 0.8, 1.1], measured=[False, False, False, True])
    after = before.rewarded(MissingEnd(unit="reward").apply(before))
    assert advantages(before, "group") == pytest.approx([-0.146, 1.024, -1.317, 0.439], abs=1e-3)
    assert advantages(after, "group") == pytest.approx([0.47, 0.888, 0.052, -1.41], abs=1e-3)


@pytest.mark.parametrize(
    ("step", "difference"),
    [(Fixed(mean=3, deviation=2), 0), (Reference(rule="subtract"), 0), (Sigmoid(), 0.466), (Reference(), 0.368)],
    ids=["fixed", "subtract", "sigmoid", "par"],
)
def test_what_a_trainer_that_scales_in_the_group_undoes(step, difference):
    before = Batch.of(R, measured=REFERENCES)
    changed = advantages(before.rewarded(step.apply(before)), "group") - advantages(before, "group")
    assert np.abs(changed).max() == pytest.approx(difference, abs=6e-4)


def test_repeated_n_grams_of_ids_or_words():
    step = Repetition(size=2)
    assert step.measure(rows("x", "x", "x", ids=[[5] * 5, [1, 2, 3], [7]])) == [0.75, 0, 0]
    assert step.measure(rows("so so so so so", "")) == [0.75, 0]
    assert applied(step, [1.0, -1.0], measured=[0.75, 0]) == [0.25, -1]


def test_references_are_asked_for_once_each():
    asked = []

    def rate(conversations):
        asked.extend(c.answer for c in conversations)
        return [None if c.answer == "bad" else float(len(c.answer)) for c in conversations]

    def row(reference):
        turns = ({"role": "user", "content": "q"}, {"role": "assistant", "content": "a"})
        return Conversation(turns, {"reference": reference})

    step = Reference(rule="subtract")
    messages = [{"role": "assistant", "content": "dd"}]
    given_rows = [row("dd"), row(["dd", "eeee"]), row(messages), row(None), row("bad")]
    for _ in range(2):
        assert step.measure(Rows(given_rows, rate=rate)) == [[2], [2, 4], [2], [], []]
    assert asked == ["dd", "eeee", "bad"]
    assert applied(step, [1.0] * 5, measured=step.measure(Rows(given_rows, rate=rate))) == [-1, -2, -1, None, None]
    with pytest.raises(OptionError, match="cannot be asked"):
        step.measure(Rows(given_rows))


def test_a_length_curve_takes_length_out_and_quality_stays():
    pytest.importorskip("statsmodels", reason="the extra 'fit' is not installed")
    random = np.random.default_rng(0)
    quality, lengths = random.normal(size=1000), random.uniform(50, 600, size=1000)
    pool = Batch.of(quality + 0.006 * lengths, measured=lengths.tolist())
    step = LengthCurve(alpha=1)
    with pytest.raises(OptionError, match="has no curve"):
        step.apply(pool)
    step.fit(pool)
    calibrated = step.apply(pool)
    assert spearmanr(lengths, pool.values).statistic > 0.5 and abs(spearmanr(lengths, calibrated).statistic) < 0.05
    assert np.corrcoef(calibrated, quality)[0, 1] > 0.99
    again = LengthCurve(**step.state_dict())
    assert again.apply(pool) == pytest.approx(calibrated)
    half = LengthCurve(alpha=0.5, **step.state_dict())
    assert half.apply(pool) == pytest.approx((calibrated + pool.values) / 2)


NUMBERS = st.lists(st.one_of(st.none(), st.integers(-50, 50).map(lambda n: n / 4)), min_size=1, max_size=12)
SCALES = [ZScore(), MinMax(), Robust(), Rank(), GaussianRank()]
MONOTONE = [*SCALES, Tanh(), Sigmoid(), Clip(low=-1, high=1), Fixed(mean=1, deviation=2)]


def known(values):
    return [value for value in values if value is not None]


@pytest.mark.parametrize("step", MONOTONE, ids=lambda step: step.name)
@given(values=NUMBERS)
def test_order_is_kept_and_none_stays_where_it_was(step, values):
    found = applied(step, values)
    assert [v is None for v in found] == [v is None for v in values]
    pairs = sorted(zip(known(values), known(found), strict=True))
    assert all(a[1] <= b[1] for a, b in pairwise(pairs))
    assert all(math.isfinite(value) for value in known(found))


@pytest.mark.parametrize("step", SCALES, ids=lambda step: step.name)
@settings(deadline=None)
@given(values=NUMBERS, shift=st.integers(-8, 8), scale=st.sampled_from([0.25, 2.0, 16.0]))
def test_a_scale_does_not_depend_on_that_of_the_rewards(step, values, shift, scale):
    moved = [None if value is None else scale * value + shift for value in values]
    assert applied(step, moved) == pytest.approx(applied(step, values), abs=1e-9)


@given(values=NUMBERS, power=st.sampled_from([1, 3]))
def test_ranks_depend_on_order_alone(values, power):
    for step in (Rank(), GaussianRank()):
        bent = [None if value is None else value**power for value in values]
        assert applied(step, bent) == applied(step, values)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: ZScore(scope="row"), r"scope='row' should be 'group' or 'batch'"),
        (lambda: ZScore(ddoff=1), r"there is no 'ddoff'; it has scope, ddof, eps"),
        (lambda: Clip(), r"needs low=, high= or both"),
        (lambda: Clip(low=2, high=1), r"low=2.* must be below high=1"),
        (lambda: SoftOverlong(max_length=10, cache=20), r"cache=20 must not be above max_length=10"),
        (lambda: Budget(budget=5), r"'slope' is missing"),
        (lambda: Linear(slope=math.nan), r"slope=nan should be a finite number"),
        (lambda: step_of("zscor"), r"no shaping step 'zscor'; there are running"),
        (lambda: step_of(["zscore"]), r"a name and its settings"),
        (lambda: step_of({"budget": {"budget": -1, "slope": 1}}), r"budget=-1 should be greater than or equal to 0"),
    ],
)
def test_a_setting_that_cannot_be_is_named(make, says):
    with pytest.raises(OptionError, match=says):
        make()


NEEDED = {
    "fixed": {"mean": 0, "deviation": 1},
    "clip": {"low": 0},
    "linear_length": {"slope": 1},
    "budget": {"budget": 1, "slope": 1},
    "soft_overlong": {"max_length": 2, "cache": 1},
    "cosine": {"max_length": 2},
    "target_length": {"target": 1, "slope": 1},
    "group_length": {"weight": 1},
    "term": {"reward": "verifiable:format"},
}
"""The settings that a step cannot do without."""
MEASURED = {"reference": [[1.0, 2.0]] * 4, "missing_end": [True, False, True, False]}


@pytest.mark.parametrize("name", STEPS)
def test_a_row_without_a_reward_has_none_behind_any_step_and_is_no_nought(name):
    settings = NEEDED.get(name, {}) | ({"lengths": [0, 9], "rewards": [0, 1]} if name == "length_curve" else {})
    step = step_of({name: settings})
    batch = Batch.of([1.0, None, 3.0, 2.0], measured=MEASURED.get(name, [0.5, 0.25, 0.75, 0.5]))
    step.update(batch)
    assert np.isnan(step.apply(batch)).tolist() == [False, True, False, False]
    alone = Batch.of([None] * 4, measured=batch.measured)
    step.update(alone)
    assert np.isnan(step.apply(alone)).all()


def test_every_step_has_a_name_and_can_be_written_down():
    for name in STEPS:
        step = step_of({name: NEEDED.get(name, {})})
        again = step_of({name: json.loads(json.dumps(step.model_dump(mode="json", exclude_none=True)))})
        again.load_state_dict(json.loads(json.dumps(step.state_dict())))
        assert again == step and again.state_dict() == step.state_dict()
