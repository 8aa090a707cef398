"""Random, lost, mismatched and foreign heads are refused, each with what to do."""

import json
import pickle
from pathlib import Path

import pytest
import torch
from integration_tests_builder import rewrite, tiny_config, tokenizer
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSequenceClassification

from rm_families import sequence_classifier
from rm_plugins import Conversation, load_reward
from rm_plugins.errors import (
    CheckpointError,
    ConversationError,
    HeadError,
    OptionError,
    UnknownFamilyError,
    UnknownModelError,
    WrongFamilyError,
)
from rm_plugins.family import LoadSpec

CHAT = [{"role": "user", "content": "quick fox?"}, {"role": "assistant", "content": "lazy dog"}]


def load(folder, **options):
    return load_reward(str(folder), device="cpu", **options)


def edit_config(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return folder


def test_a_language_model_without_a_head_is_refused(builder):
    folder = rewrite(builder.classifier(), lambda t: {k: v for k, v in t.items() if k != "score.weight"})
    with pytest.raises(WrongFamilyError, match=r"there is no score\.weight"):
        load(folder)
    with pytest.raises(HeadError, match="does not read"):
        load(folder, family="sequence_classifier")


@pytest.mark.parametrize("name", ["value_head.weight", "reward_head.weight"])
def test_a_head_of_another_name_is_named_in_the_error(builder, name):
    folder = rewrite(builder.classifier(), lambda t: {name if k == "score.weight" else k: v for k, v in t.items()})
    with pytest.raises(WrongFamilyError, match=name):
        load(folder)


def test_a_head_tensor_the_family_would_ignore_is_an_error(builder):
    def add_gate(tensors):
        return tensors | {"weights.fc.0.weight": torch.ones(32, 32), "gating.logit_scale": torch.ones(1)}

    folder = edit_config(
        rewrite(builder.classifier(), add_gate), architectures=["LlamaForSequenceClassificationWithNormal_Weights"]
    )
    message = r"made for LlamaForSequenceClassificationWithNormal_Weights.*gating\.logit_scale, weights\.fc\.0\.weight"
    with pytest.raises(WrongFamilyError, match=message):
        load(folder, family="sequence_classifier")


def test_a_backbone_tensor_that_is_missing_is_an_error_not_a_random_layer(builder):
    folder = rewrite(builder.classifier(), lambda t: {k: v for k, v in t.items() if "layers.1.mlp.up" not in k})
    with pytest.raises(HeadError, match=r"lacks weights.*layers\.1\.mlp\.up_proj\.weight"):
        load(folder)


@pytest.mark.parametrize(
    "extra", ["model.layers.0.self_attn.q_proj.bias", "model.layers.2.mlp.up_proj.weight", "model.value_head.weight"]
)
def test_a_weight_that_the_architecture_does_not_use_is_an_error(builder, extra):
    folder = rewrite(builder.classifier(), lambda t: t | {extra: torch.ones(32)})
    with pytest.raises(CheckpointError, match=f"does not use: {extra}"):
        load(folder)


def test_only_the_files_that_transformers_reads_are_read(builder):
    folder = builder.classifier()
    [before] = load(folder).score([CHAT])
    tensors = load_file(folder / "model.safetensors")
    for stray in ("model_old", "pytorch_model", "consolidated"):
        save_file(tensors | {"score.weight": -2 * tensors["score.weight"]}, folder / f"{stray}.safetensors")
    assert load(folder).score([CHAT]) == [before]
    save_file({"v_head.summary.weight": torch.ones(1, 32)}, folder / "value_head.safetensors")
    with pytest.raises(WrongFamilyError, match=r"v_head\.summary\.weight would not be read"):
        load(folder)


def test_a_shard_that_is_missing_is_named(builder):
    folder = builder.classifier()
    (folder / "model.safetensors").rename(folder / "a.safetensors")
    index = {"weight_map": {"score.weight": "a.safetensors", "model.norm.weight": "b.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=r"lacks b\.safetensors, which model\.safetensors\.index\.json names"):
        load(folder)


def test_a_class_of_its_own_is_refused_by_name_and_a_record_of_another_backbone_too(builder):
    folder = edit_config(builder.classifier(), architectures=["AceCodeRM"])
    with pytest.raises(WrongFamilyError, match="made for AceCodeRM, which may read its tensors otherwise"):
        load(folder)
    with pytest.raises(WrongFamilyError, match=r"is a 'llama' model and the published .* a 'qwen3' one"):
        load(builder.classifier(), record="Skywork/Skywork-Reward-V2-Qwen3-0.6B")


def test_a_backbone_tensor_of_another_shape_is_an_error(builder):
    def shrink(tensors):
        return {k: v[:, :16].contiguous() if "layers.0.mlp.up" in k else v for k, v in tensors.items()}

    with pytest.raises(CheckpointError, match="mismatched_sizes"):
        load(rewrite(builder.classifier(), shrink))


def test_the_width_of_the_head_comes_from_its_tensor_not_from_the_config(builder):
    folder = builder.classifier()
    [before] = load(folder).score([CHAT])
    edit_config(folder, id2label={str(i): f"LABEL_{i}" for i in range(2)}, label2id={"LABEL_0": 0, "LABEL_1": 1})
    assert load(folder).score([CHAT])[0].value == before.value


def test_two_labels_need_a_rule_and_give_the_difference(builder):
    folder = builder.classifier(labels=2, id2label={0: "bad", 1: "good"}, label2id={"bad": 0, "good": 1})
    with pytest.raises(OptionError, match="positive='good' or 'bad'"):
        load(folder)
    with pytest.raises(OptionError, match="its labels are bad, good"):
        load(folder, positive="best")
    good, bad = (load(folder, positive=p).score([CHAT])[0].value for p in ("good", "bad"))
    assert good == pytest.approx(-bad) and good != 0


def test_a_cost_model_is_negated_once(builder):
    reward = load(builder.classifier())
    cost = reward.record.model_copy(update={"sign": -1})
    spec = LoadSpec(target="cost", checkpoint=reward.checkpoint, record=cost, device="cpu")
    [score] = sequence_classifier.load(spec).score([Conversation(tuple(CHAT))])
    assert score.value == -reward.score([CHAT])[0].value != 0


def test_more_than_two_outputs_belong_to_another_family(builder):
    with pytest.raises(WrongFamilyError, match="has 10 outputs"):
        load(builder.classifier(labels=10))


@pytest.fixture
def adapter(builder):
    from peft import LoraConfig, get_peft_model

    base = builder.classifier(seed=1)
    model = AutoModelForSequenceClassification.from_pretrained(base, num_labels=1)
    model = get_peft_model(
        model, LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["q_proj"], modules_to_save=["score"])
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.5)
            if "modules_to_save" in name:
                parameter.fill_(1.0)
    folder = builder.folder("adapter")
    model.save_pretrained(folder)
    tokenizer("llama").save_pretrained(folder)
    return folder, model.eval()


def test_an_adapter_scores_with_its_own_head_and_layers(adapter):
    folder, model = adapter
    reward = load(folder)
    seen = reward.explain(CHAT)
    with torch.no_grad():
        hidden = model.base_model.model.model(torch.tensor([seen.ids])).last_hidden_state[0, -1]
    assert reward.score([CHAT])[0].value == pytest.approx(hidden.sum().item(), abs=1e-5)  # a head of ones is a sum


@pytest.mark.parametrize("lost", ["layers.1.self_attn.q_proj.lora_A", "lora_"])
def test_an_adapter_that_lost_layers_is_refused(adapter, lost):
    folder, _ = adapter
    path = folder / "adapter_model.safetensors"
    save_file({k: v for k, v in load_file(path).items() if lost not in k}, path)
    with pytest.raises(HeadError, match=r"lacks \d of its own tensors: .*lora_A"):
        load(folder)


@pytest.mark.parametrize("changes", [{"use_dora": True}, {"modules_to_save": ["score", "embed_tokens"]}])
def test_other_kinds_of_adapter_score_as_peft_does(builder, changes):
    from peft import LoraConfig, get_peft_model

    base = AutoModelForSequenceClassification.from_pretrained(builder.classifier(seed=1), num_labels=1)
    settings = {"r": 2, "target_modules": ["q_proj"], "modules_to_save": ["score"], "init_lora_weights": False}
    model = get_peft_model(base, LoraConfig(task_type="SEQ_CLS", **(settings | changes))).eval()
    folder = builder.folder("adapter")
    model.save_pretrained(folder)
    tokenizer("llama").save_pretrained(folder)
    reward = load(folder)
    expected = model(torch.tensor([reward.explain(CHAT).ids])).logits.item()
    assert reward.score([CHAT])[0].value == pytest.approx(expected, abs=1e-5)


def test_an_adapter_without_a_head_is_refused(adapter):
    folder, _ = adapter
    path = folder / "adapter_model.safetensors"
    save_file({k: v for k, v in load_file(path).items() if "score" not in k}, path)
    with pytest.raises(WrongFamilyError, match="this adapter has no reward head"):
        load(folder)


def test_an_adapter_with_the_head_under_another_name_is_an_error_not_a_random_head(adapter):
    folder, _ = adapter
    path = folder / "adapter_model.safetensors"
    save_file({k.replace("base_model.model.score", "score"): v for k, v in load_file(path).items()}, path)
    with pytest.raises(HeadError, match=r"peft cannot put adapter .*score\.weight"):
        load(folder)


def test_an_adapter_layer_without_a_place_is_an_error(adapter):
    folder, _ = adapter
    path = folder / "adapter_model.safetensors"
    save_file({k.replace("layers.1", "layers.7"): v for k, v in load_file(path).items()}, path)
    with pytest.raises(HeadError, match=r"have no place in its base.*layers\.7"):
        load(folder)


def test_dropout_never_makes_two_calls_differ(builder):
    folder = builder.classifier(attention_dropout=0.5)
    reward = load(folder)
    before = reward.score([CHAT])
    reward.load().engine.backbone.train()  # as a trainer that owns it would
    assert reward.score([CHAT]) == before


@pytest.mark.parametrize("record", [None, "Ray2333/GRM-Llama3-8B-rewardmodel-ft"])
def test_a_text_beyond_the_model_s_positions_is_shortened_and_flagged(builder, record):
    long = [{"role": "user", "content": "quick fox " * 400}, CHAT[1]]
    seen = load(builder.classifier(), record=record, dtype="float32").explain(long)
    assert len(seen.ids) <= 512 and "truncated" in seen.flags  # 512: the tiny model's positions


def test_raw_logits_are_never_squashed(builder):
    def big(tensors):
        return tensors | {"score.weight": tensors["score.weight"] * 1000}

    folder = builder.classifier()
    [small] = load(folder).score([CHAT])
    [large] = load(rewrite(folder, big)).score([CHAT])
    assert large.value == pytest.approx(1000 * small.value, rel=1e-4) and abs(large.value) > 1


def test_a_non_finite_score_is_none_with_a_flag_and_its_neighbours_keep_theirs(builder):
    folder = builder.classifier()
    talks = [CHAT, [CHAT[0], {"role": "assistant", "content": "~"}], [CHAT[0], CHAT[1]]]
    only_in_second = load(folder).explain(talks[1]).tokens.index("~")
    poisoned = load(folder).explain(talks[1]).ids[only_in_second]

    def poison(tensors):
        tensors["model.embed_tokens.weight"][poisoned] = float("nan")
        return tensors

    before = load(folder).score(talks)
    scores = load(rewrite(folder, poison)).score(talks)
    assert scores[1].value is None and "non_finite" in scores[1].flags and "nan" in scores[1].error
    assert [scores[0].value, scores[2].value] == pytest.approx([before[0].value, before[2].value], abs=1e-6)


def test_another_attention_than_the_record_s_is_warned_of_by_both_names(builder, caplog):
    from rm_plugins.reward.spec import RewardSpec

    folder = str(builder.classifier("gemma2", "gemma"))
    RewardSpec(folder, record="Skywork/Skywork-Reward-Gemma-2-27B", attn_implementation="sdpa").resolve()
    assert "attn_implementation='eager', not 'sdpa'" in caplog.text


def test_a_reward_pickles_by_its_spec_and_has_a_name_of_its_own(builder):
    one, two = load(builder.classifier()), load(builder.classifier(seed=2))
    copy = pickle.loads(pickle.dumps(one))
    assert copy.score([CHAT]) == one.score([CHAT])
    assert one.__name__ != two.__name__ and one.__name__.startswith("sequence_classifier/")
    assert len(pickle.dumps(one)) < 2000


def test_unknown_things_are_named(builder, monkeypatch):
    folder = builder.classifier()
    with pytest.raises(UnknownModelError, match="There is no folder /no/such"):
        load("/no/such")
    with pytest.raises(UnknownModelError, match="a hub id is 'owner/name'"):
        load("no such model")
    with pytest.raises(UnknownModelError, match="Did you mean 'smollm2-135m-on-topic'"):
        load("smollm2-135m-on-topc")
    with pytest.raises(UnknownModelError, match="Did you mean 'berkeley-nest/Starling-RM-7B-alpha'"):
        load("Starling-RM-7B")
    with pytest.raises(CheckpointError, match="Did you mean 'llm-blender/PairRM-hf'"):
        load("llm-blender/PairRM")
    with pytest.raises(UnknownModelError, match=r"'generative:https://\.\.\.' with record='gpt-4o'"):
        load("gpt-4o")
    with pytest.raises(UnknownModelError, match="is a family: write 'sequence_classifier:' and its target"):
        load("sequence_classifier")
    assert load_reward(f"sequence_classifier:{folder}").score([CHAT]) == load(folder).score([CHAT])
    assert load_reward(Path(folder)).score([CHAT]) == load(folder).score([CHAT])
    with pytest.raises(UnknownModelError, match="Did you mean 'Skywork/Skywork-Reward-V2-Qwen3-8B'"):
        load(folder, record="Skywork/Skywork-Reward-V2-Qwen-8B")
    with pytest.raises(UnknownFamilyError, match="Unknown reward family 'nothing'"):
        load("nothing:here")
    with pytest.raises(OptionError, match="no option temperature"):
        load(folder, temperature=1)
    with pytest.raises(OptionError, match="on_failure='zero'"):
        load(folder, on_failure="zero")
    with pytest.raises(OptionError, match="dtype 'int8' is not a floating"):
        load(folder, dtype="int8")
    with pytest.raises(OptionError, match="device='nowhere' cannot be used here"):
        load_reward(str(folder), device="nowhere")
    with pytest.raises(OptionError, match="max_tokens_in_flight='many' must be a whole number"):
        load(folder, max_tokens_in_flight="many")
    with pytest.raises(OptionError, match="max_tokens_in_flight=True must be a whole number"):
        load(folder, max_tokens_in_flight=True)
    for nothing in (5, ""):
        with pytest.raises(OptionError, match=f"cache={nothing!r} must be text or a path"):
            load(folder, cache=nothing)
    with pytest.raises(ConversationError, match="Expected a list of messages, got NoneType"):
        load(folder).score([None])
    with pytest.raises(OptionError, match="max_length='10' must be a whole number"):
        load(folder, max_length="10")


def test_corrupt_and_foreign_folders_are_named(builder, tmp_path):
    with pytest.raises(CheckpointError, match=r"neither config\.json nor adapter_config\.json"):
        load(tmp_path)
    folder = builder.classifier()
    (folder / "model.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0{broken")
    with pytest.raises(CheckpointError, match="not a readable safetensors file"):
        load(folder)
    (folder / "config.json").write_text("{broken")
    with pytest.raises(CheckpointError, match="not readable JSON"):
        load(folder)


def test_a_folder_without_a_tokenizer_is_named(builder):
    folder = builder.classifier()
    for path in folder.glob("token*"):
        path.unlink()
    with pytest.raises(CheckpointError, match="has no tokenizer that loads; save it in its folder"):
        load(folder)


def test_remote_code_is_never_run(builder, tmp_path):
    folder = builder.classifier()
    witness = tmp_path / "ran"
    (folder / "modeling_evil.py").write_text(f"open({str(witness)!r}, 'w')\nclass Evil: pass\n")
    edit_config(folder, auto_map={"AutoModelForSequenceClassification": "modeling_evil.Evil"})
    assert load(folder).score([CHAT])[0].value is not None
    assert not witness.exists()


def test_a_pickled_checkpoint_is_not_read(builder):
    folder = builder.classifier()
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(WrongFamilyError, match="no safetensors file"):
        load(folder)


def test_tiny_configs_are_the_architectures_they_claim():
    assert tiny_config("gemma2", 300).model_type == "gemma2"


def test_an_eos_inside_the_text_that_is_also_pad_does_not_hide_the_answer(builder, caplog):
    folder = builder.classifier(tok=tokenizer("llama", pad="eos"))
    reward = load(folder)
    assert "pads with its eos" in caplog.text and "pooling='last' reads the eos" in caplog.text
    talks = [[*CHAT, CHAT[0], {"role": "assistant", "content": answer}] for answer in ("fox", "dog", "x y z")]
    scores = [score.value for score in reward.score(talks)]
    assert len(set(scores)) == 3
    stock = AutoModelForSequenceClassification.from_pretrained(folder)  # reads one token early, and so was it trained
    for talk, score in zip(talks, scores, strict=True):
        seen = reward.explain(talk)
        assert seen.read_at == (len(seen.ids) - 2,) and "has the pad token in it" in seen.notes[-1]
        assert score == pytest.approx(stock(torch.tensor([seen.ids])).logits.item(), abs=1e-6)
    at_eos = load(folder, pooling="last").explain(talks[0])
    assert at_eos.read_at == (len(at_eos.ids) - 1,)


def test_a_config_without_a_pad_scores_a_batch_like_single_rows(builder):
    folder = edit_config(builder.classifier("mistral", "mistral"), pad_token_id=None)
    reward = load(folder)
    talks = [[CHAT[0], {"role": "assistant", "content": "dog " * n}] for n in (1, 12, 5)]
    assert [s.value for s in reward.score(talks)] == pytest.approx(
        [reward.score([talk])[0].value for talk in talks], abs=1e-5
    )


def test_a_policy_of_another_vocabulary_cannot_reach_outside_the_embedding(builder):
    reward = load(builder.classifier())
    far = [[10**6, 10**6 + 1]]
    assert reward(["fox?"], ["dog 😀"], completion_ids=far) == reward(["fox?"], ["dog 😀"])


def test_a_trl_reward_with_one_failed_row_is_none_there_and_finite_elsewhere(builder):
    reward = load(builder.classifier("gemma2", "gemma"))
    odd = [{"role": "assistant", "content": "starts"}, {"role": "user", "content": "late"}]  # Gemma's template refuses
    values = reward([[CHAT[0]], odd, [CHAT[0]]], ["a", "b", "c"])
    assert values[1] is None and all(isinstance(v, float) for v in (values[0], values[2]))
    image = [{"role": "user", "content": [{"type": "image"}]}]
    surrogate = [CHAT[0], {"role": "assistant", "content": "\ud83d"}]
    scores = reward.score([CHAT, [*image, CHAT[1]], surrogate])
    assert [s.value is None for s in scores] == [False, True, True]
    assert "part of type 'image'" in scores[1].error and "surrogate" in scores[2].error
    assert "roles must alternate" in reward.score([[*odd, CHAT[1]]])[0].error


def test_a_server_has_no_weights_to_run_here_nor_what_would_choose_among_them():
    with pytest.raises(OptionError, match="has no weights that run here, so revision, dtype would do nothing"):
        load_reward("sequence_classifier:https://host/v1", revision="main", dtype="float32")
    with pytest.raises(HeadError, match="runs a model's weights here, and 'https://host/v1' has none"):
        load_reward("sequence_classifier:https://host/v1")
    with pytest.raises(UnknownModelError, match="No record of 'nobody/rm'"):
        load_reward("sequence_classifier:https://host/v1", record="nobody/rm")
