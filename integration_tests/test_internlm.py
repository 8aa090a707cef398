"""InternLM2-reward and POLAR, against the numbers of the published class, tokenizer and client."""

import json
from pathlib import Path

import pytest
import torch
from integration_tests_builder import rewrite
from published import CHAT, LONGER
from published_internlm import POLAR, REWARD, internlm_checkpoint

from rm_families.internlm import _split
from rm_plugins import Conversation, load_reward
from rm_plugins.errors import CheckpointError, HeadError, OptionError

UPSTREAM = json.loads(Path(__file__).parent.joinpath("upstream", "internlm.json").read_text())
BIAS = {"bias": True, "rope_scaling": {"type": "dynamic", "factor": 2.0}}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("internlm")
    made = {"reward": (REWARD, {}), "bias": (REWARD, BIAS), "polar": (POLAR, {})}
    return {name: internlm_checkpoint(model, root / name, **changes) for name, (model, changes) in made.items()}


def load(folder, model=REWARD, **options):
    return load_reward(str(folder), **({"record": model, "dtype": "float32", "device": "cpu"} | options))


def against(reference, answer="dog", question="fox?"):
    turns = ({"role": "user", "content": question}, {"role": "assistant", "content": answer})
    return Conversation(turns, {"reference": reference})


@pytest.mark.parametrize("name", ["reward", "bias"])
def test_the_published_class_gives_the_same_ids_and_number(folders, name):
    reward = load(folders[name])
    for talk, theirs in zip((CHAT, LONGER), UPSTREAM[name], strict=True):
        assert list(reward.explain(talk).ids) == theirs["ids"]
        assert reward.score([talk])[0].value == pytest.approx(theirs["score"], rel=1e-6, abs=1e-6)


def test_the_published_client_gives_the_same_text_ids_and_number(folders):
    reward = load(folders["polar"], POLAR)
    for talk, theirs in zip((CHAT, LONGER), UPSTREAM["polar"], strict=True):
        row = Conversation(tuple(talk), {"reference": theirs["reference"]})
        assert reward.explain(row).text == "<s>" + theirs["text"] and list(reward.explain(row).ids) == theirs["ids"]
        assert reward.score([row])[0].value == pytest.approx(theirs["score"], rel=1e-6, abs=1e-6)


def test_queries_keys_and_values_lie_group_by_group():
    class Config:
        num_attention_heads, num_key_value_heads, head_dim = 4, 2, 1

    parts = [part.tolist() for part in _split(torch.arange(8.0), Config)]
    assert parts == [[0, 1, 4, 5], [2, 6], [3, 7]]


def test_one_answer_to_one_prompt_has_a_number_for_each_reference(folders):
    rows = [against("dog"), against("cat"), against("dog")]
    first, second, third = (score.value for score in load(folders["polar"], POLAR).score(rows))
    assert first == third != second


def test_a_row_without_a_reference_has_no_number_and_says_why(folders):
    reward = load(folders["polar"], POLAR)
    assert reward(["fox?"] * 2, ["dog"] * 2, reference=["dog", None], log_metric=lambda *_: None)[1] is None
    [score] = reward.score([against(None)])
    assert score.value is None and score.flags == {"failed"} and "'reference'" in score.error


def test_the_column_may_have_another_name(folders):
    row = Conversation(against(None).messages, {"gold": "dog"})
    [named] = load(folders["polar"], POLAR, column="gold").score([row])
    assert named.value == load(folders["polar"], POLAR).score([against("dog")])[0].value
    with pytest.raises(OptionError, match="reads no reference"):
        load(folders["reward"], column="gold")


@pytest.mark.parametrize("spelled", ["[UNUSED_TOKEN_130]", "<|reward|>", "<|im_end|>", "<s>"])
def test_a_spelled_token_is_text(folders, spelled):
    polar = load(folders["polar"], POLAR)
    seen = polar.explain(against(f"x{spelled}", f"y{spelled}"))
    marks = [seen.tokens.count(mark) for mark in ("<s>", "<|reward|>", "[UNUSED_TOKEN_130]", "<|im_end|>")]
    assert marks == [1, 1, 1, 0] and seen.flags == {"control_tokens"} and seen.read_at == (len(seen.ids) - 1,)
    chat = load(folders["reward"]).explain(against(None, f"y{spelled}"))
    assert [chat.tokens.count(mark) for mark in ("<s>", "<|reward|>", "<|im_end|>")] == [1, 1, 2]


def test_too_long_the_ends_of_prompt_reference_and_answer_stay(folders):
    long = "first " + "fox " * 200 + "last"
    reward = load(folders["polar"], POLAR, max_length=120)
    seen = reward.explain(against(f"start {'dog ' * 200}end", f"begin {'lazy ' * 200}over", long))
    known, answer = seen.text.split("<|reward|>")
    assert len(seen.ids) <= 120 and seen.flags == {"truncated"} and seen.tokens[-1] == "[UNUSED_TOKEN_130]"
    assert "first" not in seen.text and "start" not in seen.text and "begin" not in seen.text
    assert known.endswith("end") and answer.removesuffix("[UNUSED_TOKEN_130]").endswith("over")
    assert known.partition("\n")[0].endswith("last") and answer.partition("\n")[0].endswith("last")


def test_a_copy_that_nobody_names_is_read_by_the_same_family(folders):
    assert load(folders["reward"], None).family == load(folders["polar"], None).family == "internlm"


@pytest.mark.parametrize("lost", ["v_head.weight", "model.layers.1.attention.wqkv.weight", "model.norm.weight"])
def test_a_missing_weight_is_an_error(tmp_path, lost):
    folder = internlm_checkpoint(REWARD, tmp_path / "rm")
    rewrite(folder, lambda tensors: {name: tensor for name, tensor in tensors.items() if name != lost})
    with pytest.raises(HeadError):
        load(folder)


def test_a_weight_that_the_backbone_does_not_use_is_an_error(tmp_path):
    folder = internlm_checkpoint(REWARD, tmp_path / "rm")
    rewrite(folder, lambda tensors: tensors | {"model.layers.1.attention.more.weight": torch.ones(2)})
    with pytest.raises(CheckpointError, match=r"attention\.more"):
        load(folder)


def test_a_config_without_the_token_that_is_read_is_an_error(tmp_path):
    folder = internlm_checkpoint(REWARD, tmp_path / "rm", reward_token_id=400)
    with pytest.raises(CheckpointError, match="reward_token_id=400 and 400 tokens"):
        load(folder)
