"""Where a model is put: whole, where there is room for it, and never moved from there."""

import json
import struct

import pytest
import torch
from integration_tests_builder import tiny_config
from safetensors import safe_open
from transformers import AutoModel
from transformers.integrations import deepspeed

from rm_plugins import load_reward
from rm_plugins.engine.placing import check_room
from rm_plugins.engine.runner import Engine
from rm_plugins.errors import CheckpointError
from rm_plugins.text.encoder import Encoded

CHAT = [{"role": "user", "content": "quick fox?"}, {"role": "assistant", "content": "lazy dog"}]
GB = 10**9


def test_two_models_of_ten_gigabytes_do_not_fit_on_sixteen():
    free = 16 * GB
    check_room("one", 10 * GB, torch.bfloat16, "cuda:0", free)
    with pytest.raises(CheckpointError, match=r"two needs 10\.0 GB in bfloat16 and cuda:0 has 6\.0 GB free"):
        check_room("two", 10 * GB, torch.bfloat16, "cuda:0", free - 10 * GB)


def test_a_model_larger_than_memory_is_refused_before_it_is_loaded(builder):
    folder = builder.classifier()
    path = folder / "model.safetensors"
    with safe_open(path, framework="pt") as file:
        files = dict.fromkeys(file.keys(), "own.safetensors")
    path.rename(folder / "own.safetensors")
    for layer in range(2, 42):
        name = f"model.layers.{layer}.mlp.up_proj.weight"
        files[name] = f"{layer}.safetensors"
        head = json.dumps({name: {"dtype": "U8", "shape": [GB], "data_offsets": [0, GB]}}).encode()
        with (folder / files[name]).open("wb") as file:  # with a hole: it takes no room on the disk
            file.write(struct.pack("<Q", len(head)) + head)
            file.truncate(8 + len(head) + GB)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    with pytest.raises(CheckpointError, match=r"needs 160\.0 GB in float32 and cpu has .* GB free.*device='auto'"):
        load_reward(str(folder), dtype="float32", device="cpu")


def test_a_trainer_s_zero_3_does_not_shard_a_reward_model(builder):
    class Sharding:
        def is_zero3(self):
            return True

    folder, config = builder.classifier(), Sharding()
    [before] = load_reward(str(folder), device="cpu").score([CHAT])
    deepspeed.set_hf_deepspeed_config(config)
    try:
        assert deepspeed.is_deepspeed_zero3_enabled()
        assert load_reward(str(folder), device="cpu").score([CHAT]) == [before]
        assert deepspeed.is_deepspeed_zero3_enabled()  # the trainer's own models are still sharded
    finally:
        deepspeed.unset_hf_deepspeed_config()


@pytest.mark.parametrize("weight", ["embed_tokens.weight", "layers.1.mlp.up_proj.weight"])
def test_a_weight_that_lies_on_other_processes_is_named(weight):
    model = AutoModel.from_config(tiny_config("llama", 300))
    model.get_parameter(weight).data = torch.empty(0)
    with pytest.raises(CheckpointError, match=rf"{weight} is empty .* sharded by ZeRO-3"):
        Engine(model)


def test_a_quantized_model_is_never_moved():
    model = AutoModel.from_config(tiny_config("llama", 300))
    sequences = [Encoded(tuple(range(10, 18)), (7,), "")]
    [expected] = Engine(model).hidden(sequences)

    def refuse(*_, **__):
        raise ValueError("`.to` is not supported for 4-bit models")

    model.is_loaded_in_4bit, model.to = True, refuse
    assert torch.equal(Engine(model).hidden(sequences)[0], expected)
