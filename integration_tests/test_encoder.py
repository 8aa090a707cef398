"""Encoders of two texts, against stock transformers on the same checkpoint."""

import pytest
import torch
from integration_tests_builder import CORPUS, rewrite
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoModelForSequenceClassification, AutoTokenizer, PreTrainedTokenizerFast
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from rm_plugins import load_reward
from rm_plugins.errors import HeadError, WrongFamilyError

OASST = "OpenAssistant/reward-model-deberta-v3-large-v2"
MARKS = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"]
TALKS = [
    ("quick fox?", "over the lazy dog."),
    ("over what does the quick brown fox jump, tool or model?", "x"),
    ("the system", "the brown fox jumps " * 8),
]


def deberta(folder, seed=0, **config):
    backend = Tokenizer(models.Unigram())
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    letters = [chr(code) for code in range(33, 127)]
    trainer = trainers.UnigramTrainer(
        vocab_size=300, special_tokens=MARKS, unk_token="[UNK]", initial_alphabet=letters, show_progress=False
    )
    backend.train_from_iterator([*CORPUS, " ".join(letters)], trainer)
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(mark, backend.token_to_id(mark)) for mark in ("[CLS]", "[SEP]")],
    )
    names = {f"{mark[1:-1].lower()}_token": mark for mark in MARKS}
    tok = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="[CLS]", eos_token="[SEP]", **names)
    settings = {
        "vocab_size": len(tok),
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "relative_attention": True,
        "position_buckets": 16,
        "norm_rel_ebd": "layer_norm",
        "share_att_key": True,
        "pos_att_type": ["p2c", "c2p"],
        "position_biased_input": False,
        "type_vocab_size": 0,
        "max_position_embeddings": 64,
        "max_relative_positions": -1,
        "pooler_hidden_size": 32,
        "pooler_dropout": 0.5,
        "pad_token_id": 0,
        "num_labels": 1,
    } | config
    torch.manual_seed(seed)
    model = AutoModelForSequenceClassification.from_config(CONFIG_MAPPING["deberta-v2"](**settings))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.2)
    model.save_pretrained(folder)
    tok.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return deberta(tmp_path_factory.mktemp("deberta"))


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
    folder = deberta(tmp_path / "rm")
    rewrite(folder, lambda tensors: {n: t for n, t in tensors.items() if not n.startswith("pooler")})
    with pytest.raises((HeadError, WrongFamilyError), match=r"pooler\.dense"):
        load_reward(str(folder), record=OASST, device="cpu")


def test_a_classifier_of_two_classes_is_refused(tmp_path):
    with pytest.raises(WrongFamilyError, match="one output"):
        load_reward(str(deberta(tmp_path / "rm", num_labels=2)), record=OASST, device="cpu")
