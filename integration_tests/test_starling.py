"""Starling-RM-7B, against the numbers of the published class."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from integration_tests_builder import hub_server
from published import CHAT, LONGER
from published_starling import STARLING, starling_checkpoint

from rm_plugins import load_reward
from rm_plugins.errors import CheckpointError, HeadError

UPSTREAM = json.loads(Path(__file__).parent.joinpath("upstream", "starling.json").read_text())


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return starling_checkpoint(tmp_path_factory.mktemp("starling"))


def load(made, **options):
    folder, base = made
    return load_reward(str(folder), **({"record": STARLING, "base": str(base), "device": "cpu"} | options))


@pytest.mark.parametrize(("number", "talk"), [(0, CHAT), (1, LONGER)])
def test_the_published_class_gives_the_same_ids_and_number(made, number, talk):
    theirs, reward = UPSTREAM["talks"][number], load(made)
    seen, (score,) = reward.explain(talk), reward.score([talk])
    assert list(seen.ids) == [*theirs["ids"], 0] and seen.read_at == (len(theirs["ids"]),)  # the pad, <unk>
    assert score.value == pytest.approx(theirs["score"], abs=1e-6) and "2047" in seen.notes[-1]
    plain = load(made, text="rewardbench")
    assert list(plain.explain(talk).ids) == theirs["rewardbench"]["ids"]
    assert plain.score([talk])[0].value == pytest.approx(theirs["rewardbench"]["score"], abs=1e-6)


@pytest.mark.parametrize("end", ["full", "one short"])
def test_a_text_that_fills_the_limit_is_read_at_its_own_end(made, end):
    words, length, score = UPSTREAM["ends"][end]
    talk = [{"role": "user", "content": "fox"}, {"role": "assistant", "content": " ".join(["dog"] * words)}]
    reward = load(made, attn_implementation="eager")
    assert len(reward.explain(talk).ids) == 2048 and length == {"full": 2048, "one short": 2047}[end]
    assert reward.score([talk])[0].value == pytest.approx(score, abs=1e-6)


def test_a_batch_gives_every_text_the_number_it_has_alone(made):
    talks = [[CHAT[0], {"role": "assistant", "content": "dog " * n}] for n in (1, 30, 7)]
    together, alone = (load(made, max_tokens_in_flight=n).score(talks) for n in (4096, 1))
    assert [s.value for s in together] == pytest.approx([s.value for s in alone], abs=1e-6)


@pytest.mark.parametrize("prefix", ["model.model.", "transformer.", "model."])
def test_any_of_the_names_that_the_weights_are_known_by_will_do(tmp_path, made, prefix):
    other = starling_checkpoint(tmp_path / "other", (prefix,), "pytorch_model.bin")
    assert load(other).score([CHAT])[0].value == load(made).score([CHAT])[0].value


def test_a_pickle_on_a_hub_needs_no_config_and_is_fetched_once(tmp_path, made):
    folder, base = made
    (folder / "README.md").write_text("its card")
    asks = {"record": STARLING, "base": str(base), "device": "cpu"}
    ask = f"from rm_plugins import load_reward as r; print(r('some/starling', **{asks}).score([{CHAT}])[0].value)"

    def score(address, offline):
        changes = {"HF_ENDPOINT": address, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": offline}
        ran = subprocess.run([sys.executable, "-c", ask], env=os.environ | changes, capture_output=True, text=True)
        assert ran.returncode == 0, ran.stderr
        return float(ran.stdout)

    with hub_server(starling=folder) as (address, _):
        first = score(address, "0")
    assert first == score("http://127.0.0.1:9", "1") == load(made).score([CHAT])[0].value


def test_what_cannot_be_loaded_says_why(tmp_path, made):
    folder, base = made
    lost = tmp_path / "lost"
    lost.mkdir()
    with pytest.raises(CheckpointError, match=r"no \.pt or model\.bin"):
        load((lost, base))
    torch.save({"transformer.norm.weight": torch.ones(32)}, lost / "rm.pt")
    with pytest.raises(HeadError, match=r"no v_head\.weight among 1 tensors"):
        load((lost, base))
    weights = torch.load(folder / "starling.pt")
    torch.save({n: t for n, t in weights.items() if "layers.1.mlp" not in n}, lost / "rm.pt")
    with pytest.raises(HeadError, match=r"layers\.1\.mlp"):
        load((lost, base))
    with pytest.raises(CheckpointError, match=r"has no config\.json; base="):
        load((folder, folder))
    with pytest.raises(CheckpointError, match="neither config"):
        load_reward(str(folder))
