"""Log-probabilities, generation and stored scores, each through a family of a few lines."""

import functools
import json
import multiprocessing
import sqlite3

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from integration_tests_builder import tiny_config, tokenizer
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from rm_plugins import Conversation, Score, load_reward
from rm_plugins.engine.generation import Generator
from rm_plugins.engine.runner import Engine
from rm_plugins.engine.store import ScoreStore
from rm_plugins.engine.vocabulary import VocabularyHead
from rm_plugins.errors import CheckpointError, OptionError
from rm_plugins.text.encoder import ChatEncoder, Encoded
from rm_plugins.text.rules import TextRules

CHAT = [{"role": "user", "content": "quick fox?"}, {"role": "assistant", "content": "lazy dog"}]


def language_model(architecture, seed=0, **changes):
    torch.manual_seed(seed)
    tok = tokenizer("chatml")
    settings = {"pad_token_id": tok.pad_token_id, "eos_token_id": tok.eos_token_id, "tie_word_embeddings": False}
    model = AutoModelForCausalLM.from_config(tiny_config(architecture, len(tok), **(settings | changes))).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return model


def full_log_probs(model, ids):
    """The usual way: all logits, all positions."""
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0].float().log_softmax(-1)


@pytest.mark.parametrize(
    ("architecture", "changes"),
    [
        ("llama", {}),
        ("gemma2", {"sliding_window": 6}),
        ("cohere", {"logit_scale": 0.3}),
        ("granite", {"logits_scaling": 4.0}),
    ],
)
@settings(max_examples=8, deadline=None)
@given(answers=st.lists(st.lists(st.integers(10, 250), min_size=1, max_size=20), min_size=1, max_size=5))
def test_log_probs_are_those_of_the_full_logits(architecture, changes, answers):
    model = language_model(architecture, **changes)
    engine, head = Engine(model.base_model, max_tokens_in_flight=64), VocabularyHead(model)
    prompt = tuple(range(40, 80))
    spans = [Encoded((*prompt, *a), tuple(range(len(prompt) - 1, len(prompt) + len(a) - 1)), "") for a in answers]
    verdicts = [20, 21]
    for row, own, asked in zip(
        spans, engine.log_probs(spans, head), engine.log_probs(spans, head, verdicts), strict=True
    ):
        expected = full_log_probs(model, row.ids)[list(row.read_at)]
        targets = torch.tensor(row.ids)[torch.tensor(row.read_at) + 1]
        assert torch.allclose(own, expected.gather(1, targets[:, None])[:, 0], atol=1e-5)
        assert torch.allclose(asked, expected[:, verdicts], atol=1e-5)


def test_a_uniform_model_gives_minus_log_of_the_vocabulary_to_every_token():
    model = language_model("llama")
    torch.nn.init.zeros_(model.lm_head.weight)
    [found] = Engine(model.base_model).log_probs([Encoded((5, 6, 7), (0, 1), "")], VocabularyHead(model))
    assert found == pytest.approx([-torch.tensor(float(len(tokenizer("chatml")))).log().item()] * 2)


def test_a_vocabulary_is_never_held_for_more_positions_than_a_chunk(monkeypatch):
    model = language_model("llama")
    head = VocabularyHead(model)
    monkeypatch.setattr("rm_plugins.engine.vocabulary._LOGITS", 3 * len(tokenizer("chatml")))
    sizes = []
    original = head._logits
    monkeypatch.setattr(head, "_logits", lambda states: sizes.append(len(states)) or original(states))
    Engine(model.base_model).log_probs([Encoded(tuple(range(20, 30)), tuple(range(9)), "")], head)
    assert sizes == [3, 3, 3]


def test_logits_of_an_unknown_form_are_refused():
    model = language_model("llama")
    forward = model.forward

    def doubled(**kwargs):
        output = forward(**kwargs)
        output.logits = output.logits * 2
        return output

    model.forward = doubled
    with pytest.raises(CheckpointError, match="computes its logits in a way that is not known here"):
        VocabularyHead(model)
    with pytest.raises(CheckpointError, match="has no language-model head"):
        VocabularyHead(AutoModelForSequenceClassification.from_config(tiny_config("llama", 300)))


class Implicit:
    """Log-ratio of two models over the answer: what a family of two models declares."""

    def __init__(self, policy, reference):
        self.models = [(Engine(m.base_model), VocabularyHead(m)) for m in (policy, reference)]

    def score(self, rows):
        plan = self.models[0][0].plan(rows)  # one plan, two models
        log_probs = [engine.log_probs(plan, head) for engine, head in self.models]
        return [Score(float((a - b).sum())) for a, b in zip(*log_probs, strict=True)]


def test_a_family_of_two_models_runs_one_plan():
    policy, reference = language_model("llama", 0), language_model("qwen3", 1)
    rows = [Encoded((*range(40, 80), *range(9, 9 + n)), tuple(range(39, 39 + n)), "") for n in (3, 7)]
    expected = []
    for row in rows:
        ratio = full_log_probs(policy, row.ids) - full_log_probs(reference, row.ids)
        expected.append(sum(ratio[p, row.ids[p + 1]].item() for p in row.read_at))
    assert [s.value for s in Implicit(policy, reference).score(rows)] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(("architecture", "changes"), [("llama", {}), ("mistral", {"sliding_window": 6})])
def test_a_continuation_does_not_depend_on_its_batch_or_the_shared_prefix(architecture, changes):
    model, tok = language_model(architecture, **changes), tokenizer("chatml")
    prompts = [(*range(40, 80), *range(20, 20 + n)) for n in (1, 6, 3, 6)]
    seen = []
    together = Generator(model, tok).write(prompts, max_new_tokens=12, progress=seen.append)
    alone = [
        tok.decode(
            model.generate(torch.tensor([p]), max_new_tokens=12, do_sample=False)[0, len(p) :], skip_special_tokens=True
        )
        for p in prompts
    ]
    assert together == alone and sum(seen) == 4 and len(set(alone)) > 1


def test_a_shared_prefix_is_prefilled_once(monkeypatch):
    model, tok = language_model("llama"), tokenizer("chatml")
    generator = Generator(model, tok)
    forward, tokens = model.model.forward, []

    @functools.wraps(forward)
    def counting(*args, **kwargs):
        tokens.append(kwargs["input_ids"].numel())
        return forward(*args, **kwargs)

    monkeypatch.setattr(model.model, "forward", counting)
    generator.write([(*range(40, 80), i) for i in range(20, 26)], max_new_tokens=2)
    assert tokens == [40, 6, 6]


def test_a_row_stops_as_soon_as_its_text_is_enough():
    model, tok = language_model("llama"), tokenizer("chatml")
    prompts = [(40, 41, 42), (50, 51, 52)]
    whole = Generator(model, tok).write(prompts, max_new_tokens=30)
    half = whole[0][: len(whole[0]) // 2]
    stopped = Generator(model, tok).write(prompts, max_new_tokens=30, enough=lambda text: text.startswith(half))
    assert stopped[0].startswith(half) and len(stopped[0]) < len(whole[0])
    assert stopped[1] == whole[1]  # the other row goes on


def test_a_row_without_an_end_of_sequence_stops_too_and_the_process_is_as_before():
    model, tok = language_model("llama", eos_token_id=None), tokenizer("chatml")
    model.generation_config.eos_token_id, model.generation_config.repetition_penalty = None, 3.0
    prompts = [(40, 41, 42), (50, 51, 52, 53)]
    model.train()
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    generator = Generator(model, tok)
    together = generator.write(prompts, max_new_tokens=20, enough=lambda text: len(text) > 9)
    generator.write(prompts, max_new_tokens=3, temperature=1.0, seeds=[1, 2])
    assert torch.equal(torch.rand(1), expected) and model.training
    alone = [generator.write([p], max_new_tokens=20, enough=lambda text: len(text) > 9)[0] for p in prompts]
    assert together == alone
    model.generation_config.repetition_penalty = 1.0
    assert generator.write(prompts, max_new_tokens=20, enough=lambda text: len(text) > 9) == together


def test_sampling_is_repeated_by_its_seed():
    generator = Generator(language_model("llama"), tokenizer("chatml"))
    first, again, other = (
        generator.write([(40, 41)] * 3, max_new_tokens=10, temperature=1.0, seeds=[seed] * 3) for seed in (1, 1, 2)
    )
    assert first == again != other


def test_identical_conversations_are_encoded_and_run_once(builder, monkeypatch):
    model = load_reward(str(builder.classifier()), device="cpu").load()
    encoded, run = [], []
    encode, hidden = model.encoder.encode, model.engine.hidden
    monkeypatch.setattr(model.encoder, "encode", lambda c: encoded.append(c) or encode(c))
    monkeypatch.setattr(
        model.engine, "hidden", lambda rows, progress=None: run.append(len(rows)) or hidden(rows, progress)
    )
    other = [CHAT[0], {"role": "assistant", "content": "fox"}]
    seen = []
    scores = model.score([Conversation(tuple(c)) for c in (CHAT, other, CHAT, CHAT)], seen.append)
    assert len(encoded) == 2 and run == [2] and sum(seen) == 4
    assert scores[0] == scores[2] == scores[3] != scores[1]


def test_what_is_held_at_once_does_not_grow_with_the_conversations(builder, monkeypatch):
    model = load_reward(str(builder.classifier()), device="cpu").load()
    monkeypatch.setattr("rm_plugins.engine.local._WINDOW", 4)
    run = []
    hidden = model.engine.hidden
    monkeypatch.setattr(
        model.engine, "hidden", lambda rows, progress=None: run.append(len(rows)) or hidden(rows, progress)
    )
    talks = [Conversation((CHAT[0], {"role": "assistant", "content": "dog " * n})) for n in range(10)]
    assert len(model.score(talks)) == 10 and run == [4, 4, 2]


def test_a_stored_score_is_the_score_and_costs_no_model(builder, tmp_path, monkeypatch):
    folder, cache = str(builder.classifier()), tmp_path / "new" / "scores.sqlite"
    talks = [CHAT, [CHAT[0], {"role": "assistant", "content": "dog <|eot|>"}]]
    first = load_reward(folder, device="cpu", cache=cache).score(talks)
    again = load_reward(folder, device="cpu", cache=cache)
    monkeypatch.setattr(
        again.load().engine, "read", lambda *_, **__: pytest.fail("it was computed again") if _[0] else []
    )
    assert again.score(talks) == first and "control_tokens" in again.score(talks)[1].flags


@pytest.mark.parametrize("change", [{"dtype": "bfloat16"}, {"pooling": "last"}, {"max_length": 300}])
def test_a_stored_score_is_found_only_under_the_same_choices(builder, tmp_path, change):
    folder, cache = str(builder.classifier()), tmp_path / "scores.sqlite"
    stores = [load_reward(folder, device="cpu", cache=cache, **c).load().store for c in ({}, change)]
    encoded = Encoded((1, 2, 3), (2,), "")
    stores[0].keep({encoded: Score(1.5, {"part": 2.0}, (0.5, None))})
    assert stores[0].find([encoded]) == {encoded: Score(1.5, {"part": 2.0}, (0.5, None))}
    assert stores[1].find([encoded]) == {}


def test_a_damaged_row_is_computed_again(tmp_path):
    store, encoded = ScoreStore(tmp_path / "s", "m"), Encoded((1,), (0,), "")
    for damage in ("{broken", '{"value": null, "parts": {}, "steps": null}', "[]"):
        store.keep({encoded: Score(1.0)})
        with sqlite3.connect(tmp_path / "s") as direct:
            direct.execute("UPDATE scores SET score = ?", (damage,))
        assert store.find([encoded]) == {}
    with pytest.raises(OptionError, match="cannot be used as a store"):
        ScoreStore(tmp_path / "s" / "below", "m").find([encoded])


def test_scores_without_a_value_are_not_stored(tmp_path):
    store = ScoreStore(tmp_path / "s", "m")
    failed, nan = Encoded((1,), (0,), ""), Encoded((2,), (0,), "")
    store.keep({failed: Score(None), nan: Score(float("inf"))})
    assert store.find([failed, nan]) == {}


def write_many(path, start):
    for i in range(start, start + 40):
        ScoreStore(path, "m").keep({Encoded((i,), (0,), ""): Score(float(i))})


def test_several_processes_write_one_store(tmp_path):
    path = tmp_path / "s"
    workers = [multiprocessing.get_context("fork").Process(target=write_many, args=(path, 40 * n)) for n in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    rows = [Encoded((i,), (0,), "") for i in range(120)]
    assert [s.value for s in ScoreStore(path, "m").find(rows).values()] == [float(i) for i in range(120)]
    assert sqlite3.connect(path).execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_a_file_that_is_no_store_and_a_family_without_a_model_are_named(builder, tmp_path):
    (tmp_path / "text").write_text(json.dumps(["no store"] * 100))
    with pytest.raises(OptionError, match="cannot be used as a store of scores: file is not a database"):
        ScoreStore(tmp_path / "text", "m").find([Encoded((1,), (0,), "")])


def test_a_prompt_is_tokenized_once_for_all_its_answers(monkeypatch):
    tok = tokenizer("chatml")
    encoder = ChatEncoder(tok, TextRules())
    prompt = {"role": "user", "content": "fox " * 100}
    talks = [Conversation((prompt, {"role": "assistant", "content": f"dog {n}"})) for n in range(5)]
    encoder.encode(talks[0])
    characters = []
    call = type(tok).__call__
    monkeypatch.setattr(
        type(tok), "__call__", lambda self, text, **k: characters.append(len(text)) or call(self, text, **k)
    )
    ids = [encoder.encode(talk).ids for talk in talks]
    assert max(characters) < 80  # the prompt has 400
    monkeypatch.undo()
    assert ids == [tuple(tok.apply_chat_template(list(t.messages), return_dict=False)) for t in talks]
