"""Shaping around rewards: what a trainer gets, what is learnt when, and what is said aloud."""

import json
import logging
import pickle
import random
import subprocess
import sys
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from integration_tests_builder import tokenizer
from transformers import AutoModelForCausalLM

from rm_plugins import load_reward
from rm_plugins.errors import CheckpointError, OptionError, ScoringError
from rm_plugins.shaping import (
    Clip,
    GroupLength,
    Linear,
    MinMax,
    MissingEnd,
    Reference,
    Running,
    Sigmoid,
    SoftOverlong,
    Term,
    ZScore,
    combine,
    shape,
)
from rm_plugins.shaping.batch import Batch
from rm_plugins.shaping.combine import Combine
from rm_plugins.shaping.honesty import advantages
from rm_plugins.shaping.shaper import Trainer

ANSWERS = ["a", "bb", "ccc", "dddd"]


def given(prompts, completions, values, **_):
    """A reward that is told what to say; at the top of the module, so that it pickles."""
    return values


def score(prompts, completions, score, **_):
    return score


def other(prompts, completions, others, **_):
    return others


def call(reward, values, prompts=None, in_trainer=False, **columns):
    state = {"trainer_state": None} if in_trainer else {}
    answers = [ANSWERS[row % 4] for row in range(len(values))]
    return reward(prompts=prompts or ["p"] * len(values), completions=answers, values=values, **state, **columns)


def test_none_passes_through_every_step_and_counts_nowhere():
    reward = shape(given, [ZScore(), Clip(low=-1, high=1), Linear(slope=0.5, unit="characters")])
    assert call(reward, [1.0, None, 3.0]) == pytest.approx([-0.7071068 - 0.5, None, 0.7071068 - 1.5])
    assert call(reward, [float("nan"), 1.0, 3.0])[0] is None and reward.__name__ == "given"


def test_groups_follow_the_prompt():
    reward = shape(given, [MinMax()])
    assert call(reward, [0.0, 5, 1, 7], prompts=["p", "q", "p", "q"]) == [0, 0, 1, 1]


def test_steps_learn_in_training_alone():
    reward = shape(given, [Running(min_count=2)])
    callback = reward.callback()
    call(reward, [1.0, 2.0])
    assert callback.shapers["given"].state_dict()[0]["state"]["count"] == 0  # nobody trains
    call(reward, [1.0, 2.0, None], in_trainer=True)
    assert callback.shapers["given"].state_dict()[0]["state"]["count"] == 2
    model = AutoModelForCausalLM.from_config(_tiny())
    callback.on_train_begin(_Args(), _State(0), None, model=model.eval(), processing_class=tokenizer("chatml"))
    call(reward, [5.0, 6.0], in_trainer=True)
    assert callback.shapers["given"].state_dict()[0]["state"]["count"] == 2  # it evaluates
    model.train()
    call(reward, [5.0, 6.0], in_trainer=True)
    assert callback.shapers["given"].state_dict()[0]["state"]["count"] == 4


def _tiny():
    from integration_tests_builder import tiny_config

    return tiny_config("llama", 300)


class _Args:
    output_dir = "out"
    num_generations = 4
    scale_rewards = "group"
    max_completion_length = 4


class _State:
    is_world_process_zero = True

    def __init__(self, step):
        self.global_step = step


def test_state_lies_beside_the_checkpoint_and_comes_back(tmp_path):
    args = _Args()
    args.output_dir = str(tmp_path)
    first, second = (shape(given, [Running(min_count=2), Clip(high=3)]) for _ in range(2))
    more = combine([given, other], rule="constrained", cost="other")
    call(first, [1.0, 2.0, 4.0], in_trainer=True)
    for reward in (first, more):
        reward.callback().on_save(args, _State(7), None)
    assert set(json.loads((tmp_path / "checkpoint-7" / "rm_plugins_state.json").read_text())) == {
        "given",
        "constrained(given, other)",
    }
    second.callback().on_train_begin(args, _State(7), None)
    assert call(second, [1.0, 2.0, 3.0]) == call(first, [1.0, 2.0, 3.0])
    with pytest.raises(CheckpointError, match=r"checkpoint-8.*has no state of given"):
        second.callback().on_train_begin(args, _State(8), None)
    second.callback(resume_from=tmp_path / "checkpoint-7").on_train_begin(args, _State(0), None)
    with pytest.raises(OptionError, match=r"other steps or settings \(running, clip\)"):
        shape(given, [Running(min_count=3)]).callback().on_train_begin(args, _State(7), None)


def test_the_steps_of_a_part_are_kept_with_those_of_the_whole(tmp_path):
    args = _Args()
    args.output_dir = str(tmp_path)

    def whole():
        return combine([shape(given, [Running(min_count=2)]), other], shaping=[Running(min_count=4)])

    first, second = whole(), whole()
    columns = {"others": [0.5, 1.5], "in_trainer": True}
    call(first, [1.0, 4.0], **columns)
    first.callback().on_save(args, _State(3), None)
    second.callback().on_train_begin(args, _State(3), None)
    assert call(second, [2.0, 9.0], **columns) == call(first, [2.0, 9.0], **columns)
    again = shape(shape(given, [Running(min_count=2)]), [Clip(high=1)])  # both have one name
    again.callback().on_save(args, _State(4), None)
    assert set(json.loads((tmp_path / "checkpoint-4" / "rm_plugins_state.json").read_text())) == {
        "given",
        "given > given",
    }


def test_a_step_in_two_rewards_learns_of_each_by_itself():
    step = Running(min_count=2)
    one, two = shape(given, [step]), shape(given, [step])
    call(one, [100.0, 200.0], in_trainer=True)
    assert call(two, [1.0, 3.0], in_trainer=True) == pytest.approx([-0.7071068, 0.7071068])
    assert step.state_dict()["count"] == 0


def test_a_shaped_reward_pickles_with_what_it_has_learnt():
    reward = shape(given, [Running(min_count=2)])
    call(reward, [1.0, 2.0, 4.0], in_trainer=True)
    copy = pickle.loads(pickle.dumps(reward))
    assert call(copy, [3.0]) == call(reward, [3.0]) != [3.0]


def test_a_reward_model_is_shaped_and_its_scores_stay_raw(builder):
    folder = str(builder.classifier())
    raw = load_reward(folder, device="cpu")
    steps = [Running(min_count=2), Linear(slope=0.5), Term(reward="verifiable:format", weight=2)]
    reward = load_reward(folder, device="cpu", shaping=steps)
    prompts, answers = ["fox?"] * 3, ["lazy dog", "<think>x</think> the fox", "jumps"]
    values, lengths = raw(prompts, answers), [raw.count_tokens(answer) for answer in answers]
    found = reward(prompts, answers, trainer_state=None, log_metric=(logged := {}).__setitem__)
    scaled = (np.array(values) - np.mean(values)) / np.std(values, ddof=1)
    assert found == pytest.approx(scaled - 0.5 * np.array(lengths) + [0, 2, 0])
    talks = [[{"role": "user", "content": "fox?"}, {"role": "assistant", "content": answers[0]}]]
    assert reward.score(talks)[0].value == pytest.approx(values[0])
    assert logged[f"{reward.__name__}/1-running/std"] == pytest.approx(1)
    copy = pickle.loads(pickle.dumps(reward))
    assert copy(prompts, answers) == pytest.approx(found)
    with pytest.raises(OptionError, match="no state to keep"):
        raw.callback()


def test_references_of_a_reward_model_and_of_a_plain_reward(builder):
    raw = load_reward(str(builder.classifier()), device="cpu")
    of_model, of_text = (
        shape(reward, [Reference(rule="subtract")])(prompts=["fox?"], completions=["dog dog"], reference=["lazy dog"])
        for reward in (raw, lambda prompts, completions, **_: [float(len(answer)) for answer in completions])
    )
    assert of_model == pytest.approx([raw(["fox?"], ["dog dog"])[0] - raw(["fox?"], ["lazy dog"])[0]])
    assert of_text == [-1]


@pytest.mark.parametrize(
    ("rule", "weights", "values", "others", "expected"),
    [
        ("sum", [2, -1], [1, 2], [10, None], [-8, None]),
        ("sum", [1, 0], [1, 2], [10, None], [1, 2]),
        ("minimum", [1, 10], [1, 2], [3, 0.1], [1, 1]),
        ("product", [1, 1], [0.5, 1], [0.5, 0], [0.25, 0]),
        ("normalized_sum", [1, 1], [0, 1, 2, 3], [0.3, 0.2, 0.1, 0], [0, 0, 0, 0]),
        ("normalized_sum", [3, 1], [0, 10], [1, 2], [-4 * 0.7071068, 4 * 0.7071068]),
    ],
)
def test_several_rewards_become_one(rule, weights, values, others, expected):
    reward = combine([given, other], rule=rule, weights=weights)
    assert call(reward, values, others=others) == pytest.approx(expected, abs=1e-6)


def test_a_factor_below_nought_is_refused():
    with pytest.raises(ScoringError, match=r"gates in \[0, 1\], and other gave -2 to 0\.5"):
        call(combine([given, other], rule="product"), [1.0, 1.0], others=[-2.0, 0.5])


def test_the_price_of_a_cost_rises_while_it_is_too_high():
    reward = combine([given, other], rule="constrained", cost="other", limit=1.0, rate=0.5, start=2.0)
    costs = [3.0, 2.0]  # a cost model of this library is negated
    expected = [10 - 2.75 * (3 - 1), 20 - 2.75 * (2 - 1)]  # lambda 2 + 0.5 * (2.5 - 1)
    assert call(reward, [10.0, 20.0], others=[-c for c in costs], in_trainer=True) == pytest.approx(expected)
    for _ in range(40):
        call(reward, [0.0, 0.0], others=[9.0, 9.0], in_trainer=True)
    assert call(reward, [10.0, 20.0], others=[-5.0, -5.0]) == [10, 20]  # cheap for long: lambda is 0, never below


def test_what_cannot_be_combined_or_ordered_is_named():
    with pytest.raises(OptionError, match="different names; these are given, given"):
        combine([given, given])
    with pytest.raises(OptionError, match="2 rewards and 1 weights"):
        combine([given, other], weights=[1])
    with pytest.raises(OptionError, match="belong together"):
        combine([given, other], rule="constrained")
    with pytest.raises(OptionError, match="'zscore' stands behind 'linear_length'"):
        shape(given, [Linear(slope=1), ZScore()])
    with pytest.raises(OptionError, match="which is no step"):
        shape(given, ["zscore"])
    with pytest.raises(ScoringError, match="returned 1 values for 2 rows"):
        shape(given, [])(prompts=["p", "p"], completions=["a", "b"], values=[1.0])

    async def slow(**_):
        return []

    with pytest.raises(OptionError, match="not async"):
        shape(slow, [])


def test_shares_of_the_spread_and_what_a_sum_hides():
    first, second = [0.0, 1, 2, 3], [0.3, 0.2, 0.1, 0]
    batch = Batch.of([None] * 4, measured=list(zip(first, second, strict=True)))
    step = Combine(weights={"first": 1, "second": 1})
    assert step.shares(batch) == pytest.approx({"first": 1 / 1.1, "second": 0.1 / 1.1})
    total = batch.rewarded(step.apply(batch))
    assert advantages(total, "group") == pytest.approx([-1.1618, -0.3873, 0.3873, 1.1618], abs=1e-4)


def attached(reward, **facts):
    """As the callback leaves it in a trainer."""
    reward._shaper.trainer = Trainer(**facts)
    return reward


@pytest.mark.parametrize(
    ("make", "values", "says"),
    [
        (lambda: shape(given, [Running(min_count=2)]), [1.0, 0, 2, 5], "step 'running' changes no advantage"),
        (lambda: shape(given, [Linear(slope=1, unit="characters")]), [1, 1.2, 0.8, 1.1], "outweighs the rewards"),
        (lambda: shape(given, [Clip(low=-9)]), [10.0, 20, 30, 40], "rewards follow length: correlation 1.00"),
        (lambda: combine([given, other]), [0.0, 2, 1, 3], "'given' decides the sign of every advantage, with 0.909"),
    ],
)
def test_what_was_hardly_meant_is_said_once(caplog, make, values, says):
    reward = attached(make(), scale="group")
    for _ in range(4):
        call(reward, values, others=[0.3, 0.1, 0.2, 0], in_trainer=True)
    assert [says in message for message in caplog.messages if says[:18] in message] == [True]


def test_a_step_that_does_something_is_not_called_idle(caplog):
    reward = attached(shape(given, [Sigmoid(), SoftOverlong(max_length=99, cache=9)]), scale="group")
    for _ in range(4):
        call(reward, [1.0, 0, 2, -5], completion_ids=[[1]] * 4, in_trainer=True)
    assert "changes no advantage" not in caplog.text and "outweighs" not in caplog.text


def test_a_batch_that_was_cut_and_has_one_reward_is_said_once(caplog):
    reward = attached(shape(given, [Clip(low=0)]), max_length=4, eos=frozenset([2]))
    for _ in range(2):
        call(reward, [0.0] * 4, completion_ids=[[5, 6, 7, 8]] * 3 + [[5, 2]], in_trainer=True)
    assert [m for m in caplog.messages if "75% of the answers were cut" in m and "all rewards are 0" in m] != []
    assert sum("were cut" in message for message in caplog.messages) == 1


def test_a_state_that_nobody_saves_is_said_once(caplog):
    reward = shape(given, [Running(min_count=2)])
    for _ in range(3):
        call(reward, [1.0, 2.0], in_trainer=True)
    assert sum("callbacks=[reward.callback()]" in message for message in caplog.messages) == 1


def test_a_report_of_shares_at_the_start(caplog):
    caplog.set_level(logging.INFO)
    call(combine([given, other]), [0.0, 2, 1, 3], others=[0.3, 0.1, 0.2, 0], in_trainer=True)
    assert "shares of the spread within groups: given 0.909, other 0.091" in caplog.text


@pytest.mark.slow
def test_one_two_and_four_processes_give_the_same_rewards_and_state_also_when_resumed(tmp_path):
    draw, batches = random.Random(0), []
    for rows in (8, 8, 7):  # the last batch is uneven: of four processes one has a single row
        batches.append(
            {
                "prompts": [f"p{row // 2 % 3}" for row in range(rows)],
                "completions": ["x" * draw.randint(1, 9) for _ in range(rows)],
                "completion_ids": [[5] * draw.randint(1, 9) + [2] * draw.randint(0, 1) for _ in range(rows)],
                "score": [None if row % 3 == 2 else draw.gauss(0, 3) for row in range(rows)],
                "safety": [draw.gauss(0, 1) for _ in range(rows)],
            }
        )
    source, script = tmp_path / "batches.json", Path(__file__).with_name("launched_shaping.py")
    source.write_text(json.dumps(batches))
    found = {}
    for processes in (1, 2, 4):
        launch = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(processes)]
        ran = subprocess.run([sys.executable, *launch, script, source, tmp_path], capture_output=True, text=True)
        assert ran.returncode == 0, ran.stderr
        parts = [json.loads(path.read_text()) for path in sorted(tmp_path.glob(f"{processes}-*.json"))]
        assert len(parts) == processes and all(part["state"] == parts[0]["state"] for part in parts)
        told = [[list(chain(*(part["told"][batch][kind] for part in parts))) for kind in (0, 1)] for batch in range(3)]
        found[processes] = (told, parts[0]["state"])
    assert found[1] == found[2] == found[4]
    same = [Running(min_count=4), Clip(low=-2, high=2), GroupLength(weight=0.1), MissingEnd(eos_token_id=2)]
    never_killed = shape(score, same)
    told = [never_killed(trainer_state=None, **batch) for batch in batches]
    assert told == [batch[0] for batch in found[1][0]]
    assert found[1][1][0]["score"][0]["state"]["count"] == sum(v is not None for b in batches for v in b["score"])
