"""A hub model is judged by its small files and tensor headers before its weights come; refusals are one sentence."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from integration_tests_builder import hub_server, rewrite
from safetensors.torch import load_file, save_file

from rm_plugins import load_reward


@pytest.fixture
def command(tmp_path):
    """Runs rm-plugins as a person would, against a hub at an address."""

    def run(address, *arguments, offline=False):
        script = Path(sys.executable).with_name("rm-plugins")
        changes = {"HF_ENDPOINT": address, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": str(int(offline))}
        return subprocess.run([script, *arguments], env=os.environ | changes, capture_output=True, text=True)

    return run


def weight_bytes(asked):
    return [span for path, span in asked if path.endswith(".safetensors")]


def test_inspecting_reads_headers_and_scoring_brings_the_weights_once(builder, tmp_path, command):
    folder = builder.classifier()
    save_file({"other.layout": torch.zeros(1)}, folder / "consolidated.safetensors")
    row = {"prompt": "fox?", "completion": "lazy dog"}
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(row))
    with hub_server(rm=folder) as (address, asked):
        shown = json.loads(command(address, "inspect", "some/rm", "--json").stdout)
        assert shown["family"] == "sequence_classifier" and shown["heads"] == ["score.weight (1, 32)"]
        assert weight_bytes(asked) == ["bytes=0-100000"]
        asked.clear()
        done = command(address, "score", "some/rm", str(file), "--device", "cpu", "--json")
        assert done.returncode == 0, done.stderr
        assert None in weight_bytes(asked)
    again = command(
        "http://127.0.0.1:9", "score", "some/rm", str(file), "--device", "cpu", "--out", str(tmp_path / "o")
    )
    assert again.returncode == 0, again.stderr  # from the cache, with no hub in reach
    expected = load_reward(str(folder), device="cpu")([row["prompt"]], [row["completion"]])[0]
    assert json.loads((tmp_path / "o").read_text())["score"] == pytest.approx(expected, abs=1e-6)


def test_a_download_that_was_interrupted_goes_on(builder, tmp_path, command):
    folder = builder.classifier()
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    head = {"score.weight": tensors.pop("score.weight")}
    parts = {"a.safetensors": tensors, "b.safetensors": head}
    for name, part in parts.items():
        save_file(part, folder / name, metadata={"format": "pt"})
    index = {"metadata": {}, "weight_map": {key: name for name, part in parts.items() for key in part}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps({"prompt": "fox?", "completion": "dog"}))
    with hub_server(rm=folder) as (address, asked):
        fetch = "from huggingface_hub import snapshot_download as s; s('some/rm', allow_patterns=['*.json', 'a.*'])"
        environment = os.environ | {"HF_ENDPOINT": address, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "0"}
        subprocess.run([sys.executable, "-c", fetch], env=environment, check=True, capture_output=True)
        done = command(address, "score", "some/rm", str(file), "--device", "cpu", "--json")
    assert done.returncode == 0, done.stderr
    assert [path.rsplit("/")[-1] for path, span in asked if path.endswith("b.safetensors") and span is None]


def test_a_hub_model_of_another_family_is_refused_before_its_weights_come(builder, command):
    def rename(tensors):
        return {"verdict.weight" if k == "score.weight" else k: v for k, v in tensors.items()}

    with hub_server(other=rewrite(builder.classifier(), rename)) as (address, asked):
        refused = command(address, "score", "some/other", __file__)
    assert "verdict.weight" in refused.stderr and refused.returncode == 2
    assert None not in weight_bytes(asked)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("some/gated", "some/gated is gated: accept its licence on its hub page"),
        ("some/nothing", "The hub has no repository 'some/nothing' that you may read"),
    ],
)
def test_a_hub_that_refuses_is_told_in_one_line(command, name, message):
    with hub_server() as (address, _):
        result = command(address, "inspect", name)
    assert result.returncode == 2 and message in result.stderr and "Traceback" not in result.stderr


@pytest.mark.parametrize("offline", [True, False])
def test_no_network_is_told_in_one_line(command, offline):
    result = command("http://127.0.0.1:9", "inspect", "some/model", offline=offline)
    assert result.returncode == 2 and "some/model is not on this machine and the hub cannot be reached" in result.stderr
    assert "Traceback" not in result.stderr
