"""Every sequence-classifier record against its card's recipe, written out by hand: ids, position, number."""

import pytest
import torch
from integration_tests_builder import tokenizer
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from rm_plugins import load_reward
from rm_plugins.records import records

STYLE = {"gemma": "gemma", "gemma2": "gemma", "llama": "llama", "mistral": "mistral", "qwen3": "chatml"}
REAL = {"gemma": "gemma2", "gemma2": "gemma2", "llama": "llama3_1", "mistral": "mistral_v1", "qwen3": "qwen3"}
VARIATIONS = ("infly/", "Qwen/", "Nexusflow/")  # other heads, see test_family_parity
CLASSIFIERS = [r for r in records().values() if r.family == "sequence_classifier" and not r.id.startswith(VARIATIONS)]
CHAT = [
    {"role": "user", "content": "Can you pretend to be me while I am out, 10 minutes?"},
    {"role": "assistant", "content": "Sorry, I would rather not. The lazy dog could."},
]


def grm_card(tok, chat):
    """GRM -ft and Skywork v1: rendered text, then the tokenizer with its specials on."""
    return tok(tok.apply_chat_template(chat, tokenize=False), truncation=True)["input_ids"]  # padding one row adds none


def offsetbias_card(tok, chat):
    """OffsetBias, FsfairX, RM-Mistral: every BOS replaced by nothing, then the pipeline's tokenizer."""
    text = tok.apply_chat_template(chat, tokenize=False, add_generation_prompt=False)
    return tok(text.replace(tok.bos_token or "\0", ""))["input_ids"]


def skywork_v2_readme(tok, chat):
    """Skywork V2: a leading BOS cut off, then the plain tokenizer."""
    text = tok.apply_chat_template(chat, tokenize=False)
    if tok.bos_token is not None and text.startswith(tok.bos_token):
        text = text[len(tok.bos_token) :]
    return tok(text)["input_ids"]


def chat_ids(tok, chat):
    """Tulu 3: ids of the chat template."""
    return tok.apply_chat_template(chat, tokenize=True, return_dict=False)


RECIPES = {"keep": grm_card, "strip_all": offsetbias_card, "strip_prefix": skywork_v2_readme, "template": chat_ids}


def check(folder, record):
    tok = AutoTokenizer.from_pretrained(folder)
    ids = RECIPES[record.bos](tok, CHAT)
    model = AutoModelForSequenceClassification.from_pretrained(
        folder, num_labels=1, dtype=torch.float32, attn_implementation="eager"
    )
    with torch.no_grad():
        expected = model.eval()(torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.long))[0].item()
        hidden = getattr(model, model.base_model_prefix)(torch.tensor([ids])).last_hidden_state[0]
    reward = load_reward(str(folder), record=record.id, dtype="float32", attn_implementation="eager", device="cpu")
    seen = reward.explain(CHAT)
    assert list(seen.ids) == ids
    assert model.score(hidden)[seen.read_at[0]].item() == pytest.approx(expected, abs=1e-6)
    [score] = reward.score([CHAT])
    assert score.value == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("record", CLASSIFIERS, ids=lambda record: record.id)
def test_a_record_gives_the_card_s_number(builder, record):
    check(builder.classifier(record.backbone, STYLE[record.backbone]), record)


@pytest.mark.parametrize(
    "record",
    {(record.backbone, record.bos): record for record in CLASSIFIERS}.values(),
    ids=lambda record: f"{record.backbone}-{record.bos}",
)
def test_a_record_gives_the_card_s_number_with_the_real_tokenizer(builder, shared_tokenizers, record):
    tok = AutoTokenizer.from_pretrained(shared_tokenizers / REAL[record.backbone])
    check(builder.classifier(record.backbone, tok=tok), record)


def test_a_record_with_pad_as_eos_reads_where_the_stock_class_reads(builder):
    record = records()["sfairXC/FsfairX-LLaMA3-RM-v0.1"]
    check(builder.classifier("llama", tok=tokenizer("llama", pad="eos")), record)


def test_every_recipe_policy_is_covered_and_sources_are_named():
    assert {record.bos for record in CLASSIFIERS} == set(RECIPES)
    assert all(record.sources for record in CLASSIFIERS)
