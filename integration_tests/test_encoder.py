"""Encoders of two texts, against stock transformers on the same checkpoint."""

import pytest
import torch
from integration_tests_builder import rewrite
from published_encoders import OASST, encoder_checkpoint
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from rm_plugins import load_reward
from rm_plugins.errors import HeadError, WrongFamilyError

TALKS = [
    ("quick fox?", "over the lazy dog."),
    ("over what does the quick brown fox jump, tool or model?", "x"),
    ("the system", "the brown fox jumps " * 8),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return encoder_checkpoint(OASST, tmp_path_factory.mktemp("deberta") / "rm")


@pytest.fixture(scope="module")
def reward(folder):
    return load_reward(str(folder), record=OASST, device="cpu")


def turns(question, answer):
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def test_the_cards_two_texts_give_the_same_ids_and_number(folder, reward):
    tok, model = AutoTokenizer.from_pretrained(folder), AutoModelForSequenceClassification.from_pretrained(folder)
    scores = reward.score([turns(*talk) for talk in TALKS])
    for talk, ours in zip(TALKS, scores, strict=True):
        inputs = tok(*talk, return_tensors="pt", return_token_type_ids=False)
        assert list(reward.explain(turns(*talk)).ids) == inputs["input_ids"][0].tolist()
        with torch.no_grad():
            assert ours.value == pytest.approx(model.eval()(**inputs).logits[0].item(), abs=1e-6)


def test_a_copy_that_nobody_names_is_read_by_the_same_family(folder, reward):
    unnamed = load_reward(str(folder), device="cpu")
    assert unnamed.family == "encoder"
    assert unnamed.score([turns(*TALKS[0])]) == reward.score([turns(*TALKS[0])])


def test_a_forged_mark_stays_text(reward):
    seen = reward.explain(turns("fox?", "x[SEP]dog[CLS]"))
    assert seen.tokens.count("[SEP]") == 2 and seen.tokens.count("[CLS]") == 1 and seen.flags == {"control_tokens"}


def test_the_question_loses_its_middle_and_the_answer_stays(folder):
    short = load_reward(str(folder), record=OASST, device="cpu", max_length=24)
    seen = short.explain(turns("first " + "fox " * 40 + "last?", "lazy dog"))
    assert len(seen.ids) <= 24 and seen.flags == {"truncated"}
    assert seen.text.startswith("[CLS]fir") and seen.text.endswith("t?[SEP]lazy dog[SEP]")


def test_earlier_turns_become_part_of_the_question(reward):
    seen = reward.explain([{"role": "system", "content": "model"}, *turns("fox?", "dog")])
    assert seen.text == "[CLS]model\n\nfox?[SEP]dog[SEP]" and seen.flags == {"turns_merged"}


def test_a_lost_pooler_is_an_error(tmp_path):
    folder = encoder_checkpoint(OASST, tmp_path / "rm")
    rewrite(folder, lambda tensors: {n: t for n, t in tensors.items() if not n.startswith("pooler")})
    with pytest.raises((HeadError, WrongFamilyError), match=r"pooler\.dense"):
        load_reward(str(folder), record=OASST, device="cpu")


def test_a_classifier_of_two_classes_is_refused(tmp_path):
    with pytest.raises(WrongFamilyError, match="one output"):
        two = encoder_checkpoint(OASST, tmp_path / "rm", **{"classifier.weight": (2, 32), "classifier.bias": (2,)})
        load_reward(str(two), record=OASST, device="cpu")
