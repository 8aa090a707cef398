"""Scores do not depend on the batch; memory that runs out costs speed, not results."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from integration_tests_builder import tokenizer

from rm_plugins import load_reward
from rm_plugins.engine.batches import plan
from rm_plugins.engine.runner import Engine
from rm_plugins.errors import ScoringError
from rm_plugins.text.encoder import Encoded


@given(lengths=st.lists(st.integers(1, 50), max_size=40), budget=st.integers(1, 200))
def test_a_plan_holds_every_row_once_within_the_budget(lengths, budget):
    batches = list(plan(lengths, budget))
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) == 1 or max(lengths[i] for i in batch) * len(batch) <= budget


def test_a_plan_packs_similar_lengths():
    assert list(plan([5, 1, 9, 1], 10)) == [[2], [0, 1], [3]]


ARCHITECTURES = {"llama": "llama", "gemma2": "gemma", "mistral": "mistral", "qwen3": "chatml", "gpt2": "llama"}


@pytest.fixture(scope="module")
def backbones(builder):
    folders = {name: builder.classifier(name, style) for name, style in ARCHITECTURES.items()}
    return {name: load_reward(str(at), device="cpu").load().engine.backbone for name, at in folders.items()}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_a_score_does_not_depend_on_the_batch(backbones, architecture, data):
    backbone = backbones[architecture]
    rows = data.draw(st.lists(st.lists(st.integers(10, 200), min_size=1, max_size=24), min_size=1, max_size=8))
    budget, side = data.draw(st.integers(1, 120)), data.draw(st.sampled_from(["left", "right"]))
    sequences = [Encoded(tuple(row), (len(row) - 1,), "") for row in rows]
    engine = Engine(backbone, pad_id=data.draw(st.integers(0, 200)), token_budget=budget, padding_side=side)
    together = engine.hidden(sequences)
    for sequence, state in zip(sequences, together, strict=True):
        [alone] = Engine(backbone).hidden([sequence])
        assert torch.allclose(alone, state, atol=1e-5)


def test_a_tokenizer_without_a_pad_still_batches(builder):
    assert tokenizer("mistral").pad_token_id is None
    reward = load_reward(str(builder.classifier("mistral", "mistral")), device="cpu")
    talks = [[{"role": "user", "content": "fox " * n}, {"role": "assistant", "content": "dog"}] for n in (1, 9, 3)]
    together = [score.value for score in reward.score(talks)]
    alone = [reward.score([talk])[0].value for talk in talks]
    assert together == pytest.approx(alone, abs=1e-5) and len(set(together)) == 3


def test_out_of_memory_halves_the_budget_and_loses_nothing(backbones):
    class Small(torch.nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, input_ids, attention_mask):
            if input_ids.numel() > 20:
                raise torch.OutOfMemoryError("too many tokens")
            return self.inner(input_ids=input_ids, attention_mask=attention_mask)

    sequences = [Encoded(tuple(range(10, 10 + n)), (n - 1,), "") for n in (8, 3, 8, 8, 5)]
    seen = []
    engine = Engine(Small(backbones["llama"]), token_budget=64)
    states = engine.hidden(sequences, seen.append)
    assert engine.token_budget == 16 and sum(seen) == 5
    expected = Engine(backbones["llama"]).hidden(sequences)
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(states, expected, strict=True))
    with pytest.raises(ScoringError, match="single sequence of 30 tokens"):
        engine.hidden([Encoded(tuple(range(10, 40)), (29,), "")])
