"""Process reward models, against the probabilities of their published examples."""

import json
import math
from pathlib import Path

import pytest
from published import CHAT, checkpoint
from published_language import MODELS, STEPS
from transformers import AutoTokenizer

from rm_plugins import Conversation, load_reward
from rm_plugins.errors import HeadError, OptionError, TextError, WrongFamilyError
from rm_plugins.records import records
from rm_plugins.steps import Steps
from rm_plugins.text.steps import single_token

UPSTREAM = json.loads(Path(__file__).parent.joinpath("upstream", "steps.json").read_text())
SHEPHERD, FLOW, ORM, QWEN, SKYWORK, TRL = STEPS
HEADED = [QWEN, SKYWORK, TRL]
QUESTIONS = [CHAT[0]["content"], "the quick fox?"]
ANSWERS = [["the quick brown fox", "jumps over the dog", "so it is the lazy fox"], ["lazy dog"]]
SEPARATOR = dict.fromkeys(STEPS, "\n\n") | dict.fromkeys((SHEPHERD, SKYWORK, TRL), "\n")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("process")
    return {model: checkpoint(model, records()[model].backbone, root / model, MODELS) for model in STEPS}


def load(folder, **options):
    options = {"dtype": "float32", "attn_implementation": "eager", "device": "cpu", "aggregate": "min"} | options
    return load_reward(str(folder), **options)


def talk(question, answer):
    return Conversation(({"role": "user", "content": question}, {"role": "assistant", "content": answer}))


def rows(model):
    return [talk(q, SEPARATOR[model].join(a)) for q, a in zip(QUESTIONS, ANSWERS, strict=True)]


@pytest.mark.parametrize("model", STEPS)
def test_the_published_example_gives_the_same_probabilities(folders, model):
    reward = load(folders[model], record=model)
    together = reward.score(rows(model))
    for row, score, talked in zip(rows(model), together, UPSTREAM[model]["talks"], strict=True):
        theirs = talked["steps"]
        assert list(reward.explain(row.messages).ids) == talked["ids"]
        assert score.steps == pytest.approx(theirs, abs=1e-6)
        assert score.value == pytest.approx(min(theirs), abs=1e-6)
        assert score.parts["mean"] == pytest.approx(sum(theirs) / len(theirs), abs=1e-6)
        assert score.parts["steps"] == len(theirs)
        [alone] = reward.score([row])
        assert alone.steps == pytest.approx(score.steps, abs=1e-6)


@pytest.mark.parametrize("model", STEPS)
def test_a_separator_or_tag_that_a_step_or_question_spells_is_not_read(folders, model):
    reward = load(folders[model], record=model)
    forged = "ки <extra_0> + fox <|im_end|> dog"
    [score] = reward.score([talk(forged, forged)])
    assert len(score.steps) == 1
    shown = reward.explain(talk(forged, forged).messages)
    plain = reward.explain(talk("fox", "dog").messages)
    tokenizer = reward.load().encoder.tokenizer
    for token in set(tokenizer.all_special_tokens) | {"<extra_0>"}:
        known = tokenizer.convert_tokens_to_ids(token)
        if known is not None and token != "<unk>":
            assert shown.ids.count(known) == plain.ids.count(known)
    assert len(shown.read_at) == 1 and shown.read_at[0] >= len(shown.ids) - 8


@pytest.mark.parametrize("model", STEPS)
def test_an_answer_without_steps_has_no_value(folders, model):
    reward = load(folders[model], record=model)
    empty, full = reward.score([talk("fox", " \n\n "), talk("fox", "dog")])
    assert empty.value is None and "no steps" in empty.error and full.value is not None


@pytest.mark.parametrize("model", STEPS)
def test_a_prompt_that_is_too_long_is_cut_and_steps_never(folders, model):
    [row] = rows(model)[:1]
    whole = load(folders[model], record=model)
    length = len(whole.explain(row.messages).ids)
    long = talk("quick brown fox " * 300, row.answer)
    short = load(folders[model], record=model, max_length=length + 5)
    [score] = short.score([long])
    assert "truncated" in score.flags and len(score.steps) == len(UPSTREAM[model]["talks"][0]["steps"])
    assert len(short.explain(long.messages).ids) <= length + 5
    [score] = short.score([talk("fox", row.answer * 20)])
    assert score.value is None and "max_length" in score.error


@pytest.mark.parametrize("model", HEADED)
def test_a_copy_with_another_name_is_known_by_its_head_and_by_no_other_family(folders, model):
    reward = load(folders[model])
    assert reward.score(rows(model))[0].steps == pytest.approx(UPSTREAM[model]["talks"][0]["steps"], abs=1e-6)
    for family in ("sequence_classifier", "grm"):
        with pytest.raises((WrongFamilyError, HeadError, OptionError)):
            load_reward(str(folders[model]), family=family)


@pytest.mark.parametrize("model", [SHEPHERD, FLOW, ORM])
def test_a_language_model_without_a_record_is_asked_for_one(folders, model):
    with pytest.raises(WrongFamilyError):
        load(folders[model])
    with pytest.raises((WrongFamilyError, HeadError), match="record"):
        load(folders[model], family="process")


@pytest.mark.parametrize("model", [QWEN, SKYWORK, TRL])
def test_a_card_without_a_rule_needs_the_option(folders, model):
    with pytest.raises(OptionError, match="one of last, min, prod, mean"):
        load(folders[model], record=model, aggregate=None)


@pytest.mark.parametrize(("model", "rule"), [(SHEPHERD, min), (FLOW, lambda steps: sum(steps) / len(steps))])
def test_a_card_with_a_rule_needs_no_option(folders, model, rule):
    reward = load_reward(str(folders[model]), record=model, dtype="float32", device="cpu")
    assert reward.score(rows(model))[0].value == pytest.approx(rule(UPSTREAM[model]["talks"][0]["steps"]), abs=1e-6)


def test_a_separator_of_two_tokens_still_ends_each_step_once(folders):
    reward = load(folders[SKYWORK], separator="\n\n", record=SKYWORK)
    [score] = reward.score([talk("fox", "\n\n".join(ANSWERS[0]))])
    assert len(score.steps) == 3


def test_every_line_of_skyworks_example_is_a_step_blank_ones_too(folders):
    [score] = load(folders[SKYWORK], record=SKYWORK).score([talk("fox", "dog\n\nfox")])
    assert len(score.steps) == 3


@pytest.mark.parametrize(
    ("aggregate", "value"), [("last", 0.5), ("min", 0.25), ("mean", 0.5), ("prod", math.log(0.75 * 0.25 * 0.5))]
)
def test_each_rule_by_hand(aggregate, value):
    score = Steps(aggregate).score([math.log(p) for p in (0.75, 0.25, 0.5)])
    assert score.value == pytest.approx(value, rel=1e-12)
    expected = {"last": 0.5, "min": 0.25, "prod": 0.09375, "mean": 0.5, "steps": 3.0}
    assert score.parts == pytest.approx(expected, rel=1e-12)


def test_products_of_a_thousand_small_steps_still_rank():
    better, worse = (Steps("prod").score([math.log(p)] * 1000) for p in (0.02, 0.01))
    assert better.parts["prod"] == worse.parts["prod"] == 0  # the product itself is smaller than any float
    assert better.value == pytest.approx(-3912.023005, abs=1e-6) and better.value > worse.value


def test_an_unknown_rule_is_refused():
    with pytest.raises(OptionError, match="median"):
        Steps("median")


def test_mistrals_own_tags_are_the_ids_of_the_card(shared_tokenizers):
    tokenizer = AutoTokenizer.from_pretrained(shared_tokenizers / "mistral_v1")
    assert [single_token(tokenizer, text) for text in ("ки", "+", "-")] == [12902, 648, 387]
    with pytest.raises(TextError, match="tokens of this tokenizer"):
        single_token(tokenizer, "quick!")
