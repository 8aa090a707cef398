"""Published models that are no stock classifiers, against the numbers that their upstream code gave."""

import json
import os
from pathlib import Path

import pytest
import torch
from integration_tests_builder import rewrite
from published import CHAT, LONGER, MODELS, PICKLES, PREFIX, checkpoint
from transformers import AutoTokenizer

from rm_plugins import load_reward
from rm_plugins.checkpoint import Checkpoint
from rm_plugins.conversation import from_trl
from rm_plugins.errors import CheckpointError, HeadError, OptionError, WrongFamilyError
from rm_plugins.records import records
from rm_plugins.text.locate import prompt_end_and_pooled

UPSTREAM = json.loads(Path(__file__).parent.joinpath("upstream", "heads.json").read_text())
ARMO = "RLHFlow/ArmoRM-Llama3-8B-v0.1"


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("published")
    return {model: checkpoint(model, records()[model].backbone, root / model) for model in MODELS}


def load(folder, **options):
    return load_reward(str(folder), **{"dtype": "float32", "attn_implementation": "eager", "device": "cpu"} | options)


@pytest.mark.parametrize("model", UPSTREAM)
def test_upstream_code_gives_the_same_ids_and_number(folders, model):
    reward = load(folders[model], record=model)
    for talk, theirs in zip((CHAT, LONGER), UPSTREAM[model]["talks"], strict=True):
        assert list(reward.explain(talk).ids) == theirs["ids"]
        [ours] = reward.score([talk])
        assert ours.value == pytest.approx(theirs["score"], rel=1e-6, abs=1e-6)
        if "parts" in theirs:
            assert list(ours.parts.values()) == pytest.approx(theirs["parts"], rel=1e-6, abs=1e-6)


def test_worldpm_is_read_as_the_class_whose_name_it_has(folders):
    mathematics, world = (
        load(folders["Qwen/Qwen2.5-Math-RM-72B"], record=f"Qwen/{n}") for n in ("Qwen2.5-Math-RM-72B", "WorldPM-72B")
    )
    assert world.score([CHAT]) == mathematics.score([CHAT])


def test_every_model_has_a_number_from_upstream():
    assert set(UPSTREAM) == set(MODELS)


@pytest.mark.parametrize("model", MODELS)
def test_a_missing_head_tensor_is_an_error(tmp_path, model):
    folder = checkpoint(model, records()[model].backbone, tmp_path / "rm")
    head = next(n for n in [*PICKLES.get(model, {}), *MODELS[model][3]] if not n.startswith(("lm_head", "normalizer")))
    (folder / head).unlink(missing_ok=True)
    rewrite(folder, lambda tensors: {name: tensor for name, tensor in tensors.items() if name != head})
    with pytest.raises((HeadError, WrongFamilyError)):
        load(folder, record=model)


@pytest.mark.parametrize("model", MODELS)
def test_a_missing_weight_of_the_backbone_is_an_error(tmp_path, model):
    folder = checkpoint(model, records()[model].backbone, tmp_path / "rm")
    lost = PREFIX.get(model, "model.") + "layers.1.mlp.up_proj.weight"
    rewrite(folder, lambda tensors: {name: tensor for name, tensor in tensors.items() if name != lost})
    with pytest.raises(HeadError, match="up_proj"):
        load(folder, record=model)


@pytest.mark.parametrize("model", MODELS)
def test_a_copy_that_nobody_names_is_read_by_the_same_family(folders, model):
    assert load(folders[model]).family == records()[model].family


@pytest.mark.parametrize("model", ["openbmb/Eurus-RM-7b", "openbmb/UltraRM-13b", "Nexusflow/Starling-RM-34B"])
def test_a_copy_that_nobody_names_has_the_text_that_the_card_writes_by_hand(folders, model):
    assert load(folders[model]).explain(CHAT).text == load(folders[model], record=model).explain(CHAT).text


@pytest.mark.parametrize(
    ("model", "text"),
    [
        ("openbmb/Eurus-RM-7b", "[INST] Q [/INST] A</s></s>"),
        ("openbmb/UltraRM-13b", "User: Q\n\nAssistant: A\n\n</s>"),
        ("PKU-Alignment/beaver-7b-v1.0-reward", "BEGINNING OF CONVERSATION: USER: Q ASSISTANT: A </s>"),
    ],
)
def test_rewardbench_writes_some_texts_otherwise(folders, model, text):
    reward = load(folders[model], record=model, text="rewardbench")
    assert reward.explain([{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}]).text == text


def test_a_cost_is_negated_with_a_record_and_without(folders):
    cost = "PKU-Alignment/beaver-7b-v1.0-cost"
    [named], [found] = (load(folders[cost], **more).score([CHAT]) for more in ({"record": cost}, {}))
    assert named.value == found.value == pytest.approx(UPSTREAM[cost]["talks"][0]["score"], abs=1e-6)


def test_athene_reads_the_cls_token_even_of_a_text_that_is_too_long(folders):
    reward = load(folders["Nexusflow/Athene-RM-8B"], record="Nexusflow/Athene-RM-8B", max_length=30)
    seen = reward.explain([CHAT[0], {"role": "assistant", "content": "dog " * 50}])
    assert seen.flags == {"truncated"} and len(seen.ids) <= 30
    assert seen.tokens[seen.read_at[0]] == "<|cls|>" and seen.read_at[0] == len(seen.ids) - 1


def test_attributes_combine_by_name_and_by_weights(folders):
    [card] = load(folders[ARMO], record=ARMO).score([CHAT])
    [one] = load(folders[ARMO], record=ARMO, combine="code-style").score([CHAT])
    weights = {"helpsteer-helpfulness": 2.0, "helpsteer-verbosity": -0.5}
    [some] = load(folders[ARMO], record=ARMO, combine=weights).score([CHAT])
    assert one.parts == some.parts == card.parts and one.value == card.parts["code-style"]
    assert some.value == 2 * card.parts["helpsteer-helpfulness"] - 0.5 * card.parts["helpsteer-verbosity"]


@pytest.mark.parametrize(
    ("combine", "says"),
    [
        ("helpfulness", "'helpfulness', which is no attribute of this model; it has helpsteer-helpfulness"),
        ({}, "must be 'card', one of"),
        ({"code-style": float("nan")}, "no finite number"),
        ({"code-style": "much"}, "no finite number"),
        (3, "must be 'card', one of"),
    ],
)
def test_a_rule_that_cannot_be_is_an_error_that_names_the_attributes(folders, combine, says):
    with pytest.raises(OptionError, match=says):
        load(folders[ARMO], record=ARMO, combine=combine)


def test_attributes_are_logged_by_name_whatever_the_batch(folders):
    reward, seen = load(folders[ARMO], record=ARMO), {}
    reward(["fox?"] * 2, ["dog", "lazy dog"], log_metric=seen.__setitem__)
    scores = reward.score(from_trl(["fox?"] * 2, ["dog", "lazy dog"]))
    mean = sum(score.parts["code-style"] for score in scores) / 2
    assert seen[f"{reward.__name__}/code-style"] == pytest.approx(mean, abs=1e-6)
    failed = {}
    reward(["\ud800"], ["dog"], log_metric=failed.__setitem__)
    assert set(failed) == set(seen)


@pytest.mark.parametrize(
    ("name", "ids"), [("llama3", [128009, 128006, 78191, 128007, 271]), ("gemma2", [107, 108, 106, 2516, 108])]
)
def test_the_gate_reads_where_the_published_pattern_starts(shared_tokenizers, name, ids):
    tok = AutoTokenizer.from_pretrained(shared_tokenizers / name)
    locate = prompt_end_and_pooled(tok)
    assert locate([1, *ids, 2, *ids, 3], 12) == (7, 12)


def test_no_family_runs_remote_code(folders, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("remote code")

    monkeypatch.setattr("transformers.dynamic_module_utils.get_class_from_dynamic_module", refuse)
    monkeypatch.setattr("transformers.dynamic_module_utils.get_cached_module_file", refuse)
    for model, folder in folders.items():
        (folder / "modeling_custom.py").write_text("raise SystemExit('remote code ran')")
        assert load(folder, record=model).score([CHAT])[0].value is not None


def test_a_copy_taken_for_a_published_model_is_said_aloud(folders, caplog):
    reward = load(folders["openbmb/UltraRM-13b"])
    assert "text is written by hand as for openbmb/UltraRM-13b" in caplog.text
    assert reward.record.assumed[0] == "text: as for openbmb/UltraRM-13b, by hand"


def test_a_checkpoint_that_two_families_could_read_is_refused_by_name(folders, monkeypatch):
    from rm_plugins.catalog import catalog
    from rm_plugins.family import Fit

    other = catalog().found["grm"].family
    monkeypatch.setitem(vars(other), "fits", lambda checkpoint: Fit(True, "reads everything"))
    with pytest.raises(WrongFamilyError, match="of family 'grm' or 'openbmb'; say which"):
        load(folders["openbmb/UltraRM-13b"])


def test_a_pickle_of_more_than_tensors_is_refused_and_never_run(tmp_path):
    ldl = "ShikaiChen/LDL-Reward-Gemma-2-27B-v0.1"
    folder = checkpoint(ldl, "gemma2", tmp_path / "rm")

    class Bomb:
        def __reduce__(self):
            return Path.touch, (tmp_path / "ran",)

    torch.save({"network.0.weight": Bomb()}, folder / "gating_layer.pt")
    with pytest.raises(CheckpointError, match=r"gating_layer\.pt is no pickle of plain tensors"):
        load(folder, record=ldl)
    assert not (tmp_path / "ran").exists()
    torch.save([1, 2], folder / "gating_layer.pt")
    with pytest.raises(CheckpointError, match="holds list, not names and their tensors"):
        load(folder, record=ldl)


def test_a_head_in_a_pickle_counts_as_part_of_the_checkpoint(folders):
    folder = folders["ShikaiChen/LDL-Reward-Gemma-2-27B-v0.1"]
    before, gate = Checkpoint.open(str(folder)).fingerprint(), folder / "gating_layer.pt"
    os.utime(gate, ns=(1, 1))
    assert Checkpoint.open(str(folder)).fingerprint() != before
