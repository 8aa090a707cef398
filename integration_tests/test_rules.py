"""Families without a model of their own: rules and ensembles."""

import threading

import pytest

from rm_plugins import load_reward
from rm_plugins.errors import ConversationError, OptionError

pytest.importorskip("math_verify", reason="the extra 'verify' is not installed")


RULES = ["verifiable:json", "verifiable:format"]


def judge(target, answers, **columns):
    """Scores of answers under a rule; options and columns by name, a column as a list."""
    options = {name: value for name, value in columns.items() if not isinstance(value, list)}
    rows = {name: value for name, value in columns.items() if isinstance(value, list)}
    return load_reward(f"verifiable:{target}", **options)(["q"] * len(answers), answers, **rows)


def test_mathematics_is_compared_as_trl_compares_it():
    answers = [r"So \boxed{\frac{1}{3}}", r"\boxed{0.5}", "no idea", r"\boxed{x", r"first \boxed{1}, no, \boxed{2}"]
    gold = [r"\frac{1}{3}", r"\frac{1}{2}", "7", "7", "2"]
    ours = judge("math", answers, solution=gold)
    from trl.rewards import accuracy_reward

    assert ours == accuracy_reward([[{"role": "assistant", "content": a}] for a in answers], gold)
    assert ours[:3] == [1.0, 1.0, 0.0]


def test_a_solution_that_is_no_mathematics_is_no_score():
    reward = load_reward("verifiable:math")
    assert reward(["q", "q"], [r"\boxed{1}"] * 2, answer=["?!", None], log_metric=lambda *_: None) == [None, None]


def test_mathematics_is_compared_in_any_thread():
    reward, found = load_reward("verifiable:math"), []
    ask = threading.Thread(target=lambda: found.extend(reward(["q"] * 2, [r"\boxed{4}"] * 2, solution=["4", "5"])))
    ask.start()
    ask.join()
    assert found == [1.0, 0.0]


def test_a_verdict_that_never_comes_is_no_score_and_the_next_row_is_judged():
    from rm_families.math_process import MathProcess

    process = MathProcess(seconds=20)
    assert process.compare("4", r"\boxed{4}") is True
    process._process.send_signal(19)  # SIGSTOP: it hangs
    process._seconds = 0.5
    assert process.compare("4", r"\boxed{4}") == "no verdict within 0 s"
    process._seconds = 20
    assert process.compare("4", r"\boxed{4}") is True


@pytest.mark.parametrize(
    ("target", "options", "answers", "expected"),
    [
        ("exact", {"answer": ["fox", "fox", "fox"]}, [" fox\n", "Fox", ""], [1.0, 0.0, 0.0]),
        ("exact", {"column": "gold", "gold": ["a", "b"], "answer": ["x", "x"]}, ["a", "x"], [1.0, 0.0]),
        ("format", {}, ["<think>x</think> y", "y", "<think>a<think>b</think>"], [1.0, 0.0, 0.0]),
        ("format", {"pattern": "[0-9]+"}, ["12", "12a"], [1.0, 0.0]),
        ("json", {}, ['{"a": 1}', "```json\n[1]\n```", "{a}", "NaN", "[" * 100_000], [1.0, 1.0, 0.0, 0.0, 0.0]),
        ("json", {"schema": {"type": "object", "required": ["a"]}}, ['{"a": 1}', "{}", "[]"], [1.0, 0.0, 0.0]),
    ],
)
def test_a_rule_gives_one_or_nought(target, options, answers, expected):
    assert judge(target, answers, **options) == expected


def test_a_pattern_that_takes_for_ever_is_no_score():
    [score] = load_reward("verifiable:format", pattern="(a|a)*b").score(
        [[{"role": "user", "content": "q"}, {"role": "assistant", "content": "a" * 60 + "bc"}]]
    )
    assert score.value is None and "took longer" in score.error


def test_any_python_function_is_a_rule(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("def length(answer, limit, **_):\n    return None if limit == 0 else len(answer) / limit\n")
    reward = load_reward(f"verifiable:{file}:length")
    keep = {"log_metric": lambda *_: None}
    assert reward(["q"] * 3, ["fox", "dog!", "x"], limit=[3, 8, 0], **keep) == [1.0, 0.5, None]
    assert reward(["q"], ["fox"], limit=["3"], **keep) == [None]
    [score] = reward.score([[{"role": "user", "content": "q"}, {"role": "assistant", "content": "fox"}]])
    assert score.value is None and score.error.startswith("TypeError")


@pytest.mark.parametrize(
    ("target", "options", "says"),
    [
        ("maths", {}, "no rule 'maths'; there are verifiable:math"),
        ("no.such.module:f", {}, "cannot be imported: ModuleNotFoundError"),
        ("math:no_such", {}, "cannot be imported: AttributeError"),
        ("format", {"pattern": "("}, "no regular expression"),
        ("json", {"schema": {"type": 3}}, "no JSON schema"),
        ("json", {"schema": "/no/such.json"}, "no JSON schema"),
        ("math", {"pattern": "x", "schema": {}}, "verifiable:math does not read pattern, schema"),
    ],
)
def test_a_rule_that_cannot_be_is_an_error(target, options, says):
    with pytest.raises(OptionError, match=says):
        load_reward(f"verifiable:{target}", **options)


def ensemble(tmp_path, rule, **options):
    for name, body in (("one", "1.0"), ("four", "4.0"), ("length", "float(len(answer)) if answer else None")):
        (tmp_path / f"{name}.py").write_text(f"def f(answer, **_):\n    return {body}\n")
    members = [f"verifiable:{tmp_path / name}.py:f" for name in ("one", "four", "length")]
    return load_reward("ensemble:", rewards=members, rule=rule, **options)


@pytest.mark.parametrize(
    ("rule", "options", "value"),
    [
        ("mean", {}, 10 / 3),
        ("min", {}, 1.0),
        ("mean_minus_variance", {}, 10 / 3 - 26 / 9 * 1.0),
        ("mean_minus_variance", {"penalty": 0.5}, 10 / 3 - 13 / 9),
    ],
)
def test_an_ensemble_is_its_members_joined_by_the_rule(tmp_path, rule, options, value):
    reward = ensemble(tmp_path, rule, **options)  # members give 1, 4 and 5: mean 10/3, variance 26/9
    [score] = reward.score([[{"role": "user", "content": "q"}, {"role": "assistant", "content": "dog! "}]])
    assert score.value == pytest.approx(value)
    assert list(score.parts.values()) == [1.0, 4.0, 5.0]


def test_an_ensemble_has_no_score_where_a_member_has_none(tmp_path):
    reward = ensemble(tmp_path, "mean")
    [score] = reward.score([[{"role": "user", "content": "q"}, {"role": "assistant", "content": ""}]])
    assert score.value is None and "length.py:f: the rule does not apply" in score.error
    assert score.flags == {"empty", "failed"}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "needs two or more members"),
        ({"rewards": "verifiable:json"}, "needs two or more members"),
        ({"rewards": ["verifiable:json", "verifiable:json"]}, "are called verifiable/json"),
        ({"rewards": ["verifiable:json", "verifiable:exact"], "rule": "median"}, "is none of mean, min"),
        ({"rewards": ["verifiable:json", {"family": "x"}]}, "has no 'model'"),
        ({"rewards": RULES, "penalty": 3}, "penalty= is of rule='mean_minus_variance'"),
        ({"rewards": RULES, "rule": "mean_minus_variance", "penalty": -3}, "penalty=-3 must be a number of at least 0"),
    ],
)
def test_an_ensemble_that_cannot_be_is_an_error(options, says):
    with pytest.raises(OptionError, match=says):
        load_reward("ensemble:", **options)


def test_a_target_of_an_ensemble_is_refused():
    with pytest.raises(OptionError, match="ensemble:foo names no member"):
        load_reward("ensemble:foo", rewards=RULES)


def test_a_column_that_no_row_has_is_an_error_of_the_call():
    reward = load_reward("verifiable:exact", column="solutoin")
    with pytest.raises(OptionError, match="'solutoin' is in no row; the rows have solution"):
        reward(["q"], ["4"], solution=["4"])
    assert reward(["q", "q"], ["4", "4"], solutoin=["4", None]) == [1.0, None]
    with pytest.raises(ConversationError, match="Column 'solution' has 1 values for 2 rows"):
        load_reward("verifiable:exact")(["q", "q"], ["4", "5"], solution=["4"])
