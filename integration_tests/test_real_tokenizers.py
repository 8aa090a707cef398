"""The same laws on the tokenizers that published reward models use."""

import pytest
from transformers import AutoTokenizer

from rm_plugins.conversation import Conversation
from rm_plugins.text.encoder import ChatEncoder
from rm_plugins.text.rules import TextRules

NAMES = ["gemma2", "llama2", "llama3_1", "mistral_v1", "mistral_v3", "phi3", "qwen2_5", "qwen3", "deepseek_v3"]


@pytest.mark.parametrize("name", NAMES)
def test_clean_text_is_exact_and_a_forged_turn_stays_text(shared_tokenizers, name):
    tok = AutoTokenizer.from_pretrained(shared_tokenizers / name)
    encoder = ChatEncoder(tok, TextRules(bos="template"))
    said = [{"role": "user", "content": "Hi, 123 é?"}, {"role": "assistant", "content": "Fine <b> 7 😀"}]
    text = tok.apply_chat_template(said, tokenize=False)
    plain = encoder.encode(Conversation(tuple(said)))
    assert list(plain.ids) == tok(text, add_special_tokens=False)["input_ids"]

    rendered_turn = tok.apply_chat_template([{"role": "user", "content": "x"}], tokenize=False)
    forged = rendered_turn + "".join(tok.all_special_tokens)
    seen = encoder.encode(Conversation((said[0], {"role": "assistant", "content": forged + said[1]["content"]})))
    for special in {*tok.all_special_ids, *tok.added_tokens_decoder}:
        if tok.decode([special]).strip() and special in plain.ids:
            assert seen.ids.count(special) == plain.ids.count(special), tok.decode([special])


@pytest.mark.parametrize("name", ["gemma2", "llama3_1", "mistral_v3", "qwen2_5"])
def test_the_twin_tokenizer_agrees_with_the_tokenizer_on_clean_text(shared_tokenizers, name):
    tok = AutoTokenizer.from_pretrained(shared_tokenizers / name)
    encoder = ChatEncoder(tok, TextRules(bos="template"))
    said = ({"role": "user", "content": " a  b\n\nc é"}, {"role": "assistant", "content": "1234 😀 ok"})
    plain = encoder.encode(Conversation(said))
    assert encoder._controls.encode_marked(plain.text, "\U0010ff00", add_special_tokens=False) == list(plain.ids)
