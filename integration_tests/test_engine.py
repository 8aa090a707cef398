"""Scores do not depend on how sequences are packed or batched; memory that runs out costs speed, not results."""

import copy
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from integration_tests_builder import tiny_config, tokenizer
from transformers import AutoModel

from rm_plugins import load_reward
from rm_plugins.engine.packs import lay_out
from rm_plugins.engine.padded import batches
from rm_plugins.engine.runner import Engine
from rm_plugins.engine.tree import MIN_SAVING, grow
from rm_plugins.errors import ScoringError
from rm_plugins.text.encoder import Encoded

PARTS = st.lists(st.integers(0, 2), min_size=1, max_size=50).map(tuple)
"""Three ids only: beginnings are shared at every length."""


@st.composite
def families(draw):
    """Sequences made of a few parts, so that they share nested beginnings, equal or contain one another."""
    parts = draw(st.lists(PARTS, min_size=1, max_size=3))
    made = st.lists(st.sampled_from(parts), min_size=1, max_size=4).map(lambda chosen: sum(chosen, ()))
    return draw(st.lists(made, min_size=1, max_size=10))


@given(sequences=families(), longest=st.none() | st.integers(1, 40))
def test_a_path_of_the_tree_is_the_sequence(sequences, longest):
    tree = grow(sequences, longest=longest)
    for sequence, end in zip(sequences, tree.ends, strict=True):
        path = [tree.segments[index] for index in tree.path(end)]
        assert sum((sequences[s.row][s.start : s.stop] for s in path), ()) == sequence
        assert [s.start for s in path] == [0, *(s.stop for s in path[:-1])]
    assert all(segment.parent is None or segment.parent < i for i, segment in enumerate(tree.segments))
    assert longest is None or all(len(segment) <= longest for segment in tree.segments)


def test_a_shared_beginning_is_computed_once_nested_ones_too():
    system, prompts = (9,) * 30, [(1,) * 40, (2,) * 40]
    rows = [system + prompt + (3, answer) for prompt in prompts for answer in (4, 5, 6)]
    assert grow(rows).tokens == 30 + 2 * (40 + 1) + 2 * 3 * 1  # system, prompts and 3, answers
    assert grow([rows[0]] * 5).tokens == len(rows[0])  # equal ones are one
    lone = [(1, *range(10, 30)), (1, *range(40, 60))]
    assert len(grow(lone).segments) == 2 and MIN_SAVING > 1  # one common id does not pay


@given(sequences=families(), budget=st.integers(1, 120), data=st.data())
def test_packs_stay_in_budget_and_read_every_position_once(sequences, budget, data):
    read_at = [data.draw(st.lists(st.integers(0, len(s) - 1), max_size=4, unique=True)) for s in sequences]
    plan = lay_out(sequences, read_at, budget)
    assert [i for pack in plan.packs for i in range(pack.first, pack.stop)] == list(range(len(plan.tree.segments)))
    seen = {}
    for pack in plan.packs:
        segments = plan.tree.segments[pack.first : pack.stop]
        ids = [i for s in segments for i in sequences[s.row][s.start : s.stop]]
        assert len(ids) <= budget
        seen |= {(read.row, read.k): ids[read.offset] for read in pack.reads}
    assert seen == {(r, k): sequences[r][p] for r, at in enumerate(read_at) for k, p in enumerate(at)}
    assert sorted(row for pack in plan.packs for row in pack.finished) == list(range(len(sequences)))


@given(lengths=st.lists(st.integers(1, 50), max_size=40), budget=st.integers(1, 200))
def test_a_batch_holds_every_row_once_within_the_budget(lengths, budget):
    found = list(batches(lengths, budget))
    assert sorted(i for batch in found for i in batch) == list(range(len(lengths)))
    for batch in found:
        assert len(batch) == 1 or max(lengths[i] for i in batch) * len(batch) <= budget


def test_a_batch_packs_similar_lengths():
    assert list(batches([5, 1, 9, 1], 10)) == [[2], [0, 1], [3]]


ARCHITECTURES = {
    "llama": {},
    "gemma2": {"sliding_window": 6},  # soft-capped scores, every other layer sees six tokens
    "gemma3_text": {"sliding_window": 6},
    "mistral": {"sliding_window": 6},
    "qwen3": {},
    "gpt2": {},  # absolute positions
    "bert": {},  # an encoder: plain batches
    "bloom": {},  # attention of its own: plain batches
}


def backbone(architecture):
    torch.manual_seed(0)
    model = AutoModel.from_config(tiny_config(architecture, 300, **ARCHITECTURES[architecture]))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


@pytest.fixture(scope="module")
def backbones():
    return {name: backbone(name) for name in ARCHITECTURES}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_a_score_does_not_depend_on_pack_or_batch(backbones, architecture, data):
    model = backbones[architecture]
    rows = [tuple(7 + 3 * i for i in row) for row in data.draw(families())]
    sequences = [Encoded(row, (0, len(row) // 2, len(row) - 1) if i else (), "") for i, row in enumerate(rows)]
    engine = Engine(
        model,
        max_tokens_in_flight=data.draw(st.integers(1, 200)),
        padding_side=data.draw(st.sampled_from(["left", "right"])),
        pad_id=data.draw(st.integers(0, 200)),
        pack=data.draw(st.booleans()),
    )
    for sequence, state in zip(sequences, engine.hidden(sequences), strict=True):
        [alone] = Engine(model, pack=False).hidden([sequence])
        assert torch.allclose(alone, state, atol=1e-5, rtol=1e-5)


def test_only_a_backbone_whose_packed_states_are_its_plain_ones_is_packed(backbones, caplog):
    caplog.set_level("INFO")
    assert {name for name, model in backbones.items() if not Engine(model).packs} == {"bert", "bloom"}
    assert "plain batches for BertModel: packed states are off by" in caplog.text
    assert backbones["llama"].config._attn_implementation != "rm_plugins_packed"  # it is put back


@pytest.mark.parametrize(
    ("architecture", "changes", "reason"),
    [
        ("llama4_text", {"attention_chunk_size": 70}, "attends in chunks"),
        (
            "qwen2_moe",
            {"layer_types": ["sliding_attention"] * 2, "sliding_window": 70, "use_sliding_window": True},
            "have a sliding window and 0",
        ),
        ("llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}, "longest sequence"),
    ],
)
def test_a_rule_that_begins_beyond_the_probe_is_read_from_the_config(caplog, architecture, changes, reason):
    caplog.set_level("INFO")
    try:
        config = tiny_config(architecture, 300, **changes)
        model = AutoModel.from_config(config)
    except (TypeError, ValueError, AttributeError) as error:
        pytest.skip(f"transformers builds no tiny {architecture}: {error}")
    assert not Engine(model).packs and reason in caplog.text


def test_positions_that_depend_on_length_do_not_depend_on_the_batch():
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    torch.manual_seed(0)
    model = AutoModel.from_config(tiny_config("llama", 300, max_position_embeddings=64, rope_parameters=rope))
    sequences = [Encoded(tuple(range(n)), (n - 1,), "") for n in (150, 40, 90)]
    alone = [Engine(copy.deepcopy(model)).hidden([s])[0] for s in sequences]  # models that saw no other length
    together = Engine(model).hidden(sequences)
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(together, alone, strict=True))


def test_engines_of_one_backbone_take_turns_and_leave_it_as_it_was(backbones):
    model = backbones["gemma2"].train()
    sequences = [Encoded((*range(40), 50 + n), (40,), "") for n in range(12)]
    engines = [Engine(model, max_tokens_in_flight=50) for _ in range(4)]
    expected = Engine(model, pack=False).hidden(sequences)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda engine: engine.hidden(sequences), engines * 2))
    assert all(torch.allclose(a, b, atol=1e-5) for one in found for a, b in zip(one, expected, strict=True))
    assert model.training and model.config._attn_implementation == "eager"
    model.eval()


def test_two_models_run_one_plan(backbones):
    torch.manual_seed(1)
    other = AutoModel.from_config(tiny_config("llama", 300))
    sequences = [Encoded((*range(50), answer), (50,), "") for answer in (60, 61, 62)]
    plan = Engine(backbones["llama"]).plan(sequences)
    assert plan.tree.tokens == 50 + 3
    for model in (backbones["llama"], other, backbones["bert"]):
        shared, plain = Engine(model).hidden(plan), Engine(model, pack=False).hidden(sequences)
        assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(shared, plain, strict=True))


def test_what_is_kept_between_packs_is_one_path(backbones):
    """Memory: keys and values of later packs' ancestors only, however many sequences there are."""
    rows = [(*range(i, i + 60), *range(200, 203 + i)) for i in range(20) for _ in range(4)]
    plan = lay_out(rows, [[0]] * len(rows), 64)
    kept = [sum(len(plan.tree.segments[i]) for i in pack.keep) for pack in plan.packs]
    assert len(plan.packs) > 15 and max(kept) <= max(map(len, rows))


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
    engine = Engine(Small(backbones["llama"]), max_tokens_in_flight=64)  # a wrapper has no attention to pack
    states = engine.hidden(sequences, seen.append)
    assert engine.max_tokens_in_flight == 16 and sum(seen) == 5
    expected = Engine(backbones["llama"]).hidden(sequences)
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(states, expected, strict=True))
    with pytest.raises(ScoringError, match="single sequence of 30 tokens"):
        engine.hidden([Encoded(tuple(range(10, 40)), (29,), "")])


def test_out_of_memory_halves_the_packs_and_loses_nothing(backbones, monkeypatch):
    model = backbones["llama"]
    sequences = [Encoded((*range(40 + i), 5, *range(100, 130)), (0, 60 + i), "") for i in range(8) for _ in range(2)]
    expected = Engine(model).hidden(sequences)
    forward, sizes = model.forward, []

    def small(input_ids, **rest):
        sizes.append(input_ids.numel())
        if input_ids.numel() > 150:
            raise RuntimeError("[enforce fail at alloc_cpu.cpp:1] DefaultCPUAllocator: can't allocate memory")
        return forward(input_ids=input_ids, **rest)

    engine, seen = Engine(model, max_tokens_in_flight=400), []
    assert engine.packs
    monkeypatch.setattr(model, "forward", small)
    states = engine.hidden(sequences, seen.append)
    assert engine.max_tokens_in_flight == 100 and sum(seen) == len(sequences) and max(sizes[2:]) <= 100
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(states, expected, strict=True))


def test_another_runtime_error_is_not_taken_for_memory(backbones, monkeypatch):
    def broken(**_):
        raise RuntimeError("shapes do not match")

    engine = Engine(backbones["llama"])
    assert engine.packs
    monkeypatch.setattr(backbones["llama"], "forward", broken)
    with pytest.raises(RuntimeError, match="shapes do not match"):
        engine.hidden([Encoded((1, 2), (1,), "")])


def test_a_model_spread_over_devices_gives_the_same_states(builder, tmp_path):
    folder = builder.classifier()
    sequences = [Encoded((*range(40), n), (40,), "") for n in range(50, 54)]
    spread = {"embed_tokens": "cpu", "layers.0": "cpu", "layers.1": "disk", "norm": "cpu", "rotary_emb": "cpu"}
    model = AutoModel.from_pretrained(folder, device_map=spread, offload_folder=tmp_path)
    assert model.layers[1].mlp.up_proj.weight.device.type == "meta"  # it is brought in when its turn comes
    whole = Engine(AutoModel.from_pretrained(folder)).hidden(sequences)
    engine = Engine(model)
    assert engine.packs
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(engine.hidden(sequences), whole, strict=True))
    chat = [{"role": "user", "content": "fox?"}, {"role": "assistant", "content": "dog"}]
    one, auto = (load_reward(str(folder), device=device).score([chat])[0].value for device in ("cpu", "auto"))
    assert one == pytest.approx(auto, abs=1e-6)
