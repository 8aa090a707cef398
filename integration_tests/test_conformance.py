"""The conformance suite over every family, and every family without remote code."""

from contextlib import ExitStack

import pytest
import torch
import transformers.dynamic_module_utils as remote_code
from integration_tests_builder import Builder, json_server
from published import MODELS, checkpoint
from published_encoders import BETTER, OASST, PAIRRM, STEAM, encoder_checkpoint, steam_checkpoint
from published_internlm import POLAR, REWARD, internlm_checkpoint
from published_language import DPO, EURUS, PAIR, STEPS
from published_language import MODELS as LANGUAGE
from published_starling import STARLING, starling_checkpoint

from rm_families.nemotron import NAMES
from rm_plugins import load_reward
from rm_plugins.catalog import catalog
from rm_plugins.conformance import Conformance
from rm_plugins.records import records

LOCAL = {"dtype": "float32", "attn_implementation": "eager", "device": "cpu"}
LLAMA = ("<|bos|>", "<|eot|>", "<|start|>", "<|end|>")
GRM = "Ray2333/GRM-llama3.2-3B-sftreg"


class Made:
    """Tiny checkpoints of published models and servers on this machine, each made once."""

    def __init__(self, root):
        self.root, self.known, self.servers = root, {}, ExitStack()

    def published(self, model, **options):
        return load_reward(self.folder(model), record=model, **(LOCAL | options))

    def language(self, family, **options):
        return load_reward(self.folder(DPO), family=family, **(LOCAL | options))

    def folder(self, model):
        if model not in self.known:
            source = LANGUAGE if model in LANGUAGE else MODELS
            self.known[model] = str(checkpoint(model, records()[model].backbone, self.root / model, source))
        return self.known[model]

    def classifier(self):
        return load_reward(str(Builder(self.root / "classifier").classifier()), **LOCAL)

    def encoder(self, model):
        if model not in self.known:
            self.known[model] = str(encoder_checkpoint(model, self.root / model))
        return load_reward(self.known[model], record=model, device="cpu")

    def steam(self, **options):
        folder = steam_checkpoint(self.root / f"steam-{len(list(self.root.iterdir()))}")
        return load_reward(str(folder), record=STEAM, device="cpu", **options)

    def starling(self):
        folder, base = starling_checkpoint(self.root / f"starling-{len(list(self.root.iterdir()))}")
        return load_reward(str(folder), record=STARLING, base=str(base), **LOCAL)

    def internlm(self, model, **options):
        folder = internlm_checkpoint(model, self.root / f"internlm-{len(list(self.root.iterdir()))}")
        return load_reward(str(folder), record=model, **(LOCAL | options))

    def served(self):
        say = json_server(lambda path, body, number: (200, {"rewards": [_length(body["query"])]}))
        url, _ = self.servers.enter_context(say)
        return load_reward(f"remote:{url}", wire="openrlhf", tokenizer=self.folder(DPO))

    def nemo(self):
        def say(path, body, number):
            return 200, {"outputs": [{"name": "rewards", "data": [_length(body["inputs"][0]["data"])] * len(NAMES)}]}

        return load_reward(f"nemotron:{self.servers.enter_context(json_server(say))[0]}")

    def ensemble(self):
        return load_reward("ensemble:", rewards=["verifiable:exact", {"model": self.folder(GRM), **LOCAL}])


def _length(texts):
    return float(len(texts[0]))


CASES = {
    "armorm": (lambda made: made.published("RLHFlow/ArmoRM-Llama3-8B-v0.1"), LLAMA),
    "beaver": (lambda made: made.published("PKU-Alignment/beaver-7b-v1.0-cost"), ("</s>",)),
    "encoder": (lambda made: made.encoder(OASST), ("[SEP]", "[CLS]")),
    "ensemble": (lambda made: made.ensemble(), ()),
    "generative": (lambda made: made.language("generative", format="verify"), ()),
    "generative pairs": (
        lambda made: made.language("generative", format="genrm", read="probability", max_new_tokens=0),
        (),
    ),
    "grm": (lambda made: made.published(GRM), LLAMA),
    "implicit": (lambda made: made.published(DPO, reference="none"), LLAMA),
    "implicit steps": (
        lambda made: made.published(EURUS, reference=made.folder(EURUS), aggregate="mean"),
        ("<|im_end|>",),
    ),
    "internlm": (lambda made: made.internlm(REWARD), ("<|im_end|>", "<|reward|>")),
    "internlm against a column": (lambda made: made.internlm(POLAR, column="answer"), ("[UNUSED_TOKEN_130]", "<s>")),
    "ldl": (lambda made: made.published("ShikaiChen/LDL-Reward-Gemma-2-27B-v0.1"), ("<start_of_turn>",)),
    "nemotron": (lambda made: made.language("nemotron"), LLAMA),
    "nemotron served": (lambda made: made.nemo(), ()),
    "openbmb": (lambda made: made.published("openbmb/Eurus-RM-7b"), ("</s>",)),
    "pair_preference": (lambda made: made.published(PAIR), ()),
    "pairrm": (lambda made: made.encoder(PAIRRM), ()),
    "pairrm better": (lambda made: made.encoder(BETTER), ()),
    "qrm": (lambda made: made.published("nicolinho/QRM-Llama3.1-8B"), LLAMA),
    "remote": (lambda made: made.served(), ()),
    "sequence_classifier": (lambda made: made.classifier(), LLAMA),
    "starling": (lambda made: made.published("Nexusflow/Starling-RM-34B"), ("<|im_end|>",)),
    "starling 7B": (lambda made: made.starling(), ("</s>",)),
    "steamshp": (lambda made: made.steam(), ("</s>", "<extra_id_0>")),
    "steamshp alone": (lambda made: made.steam(alone=True), ("</s>", "<extra_id_0>")),
    "urm": (lambda made: made.published("LxzGordon/URM-LLaMa-3.1-8B"), LLAMA),
    "verifiable": (lambda made: load_reward("verifiable:exact"), ()),
} | {f"process {model}": (lambda made, model=model: made.published(model, aggregate="min"), ()) for model in STEPS}
"""Name, beginning with the family's -> how it is loaded, and control tokens that its tokenizer has."""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    found = Made(tmp_path_factory.mktemp("conformance"))
    with found.servers:
        yield found


@pytest.fixture(scope="class")
def reward(request, made, case):
    request.cls.control_tokens = CASES[case][1]
    return CASES[case][0](made)


@pytest.mark.parametrize("case", CASES, scope="class")
class TestEveryFamily(Conformance):
    tolerance = 1e-4  # an implicit reward is a sum over tokens
    columns = {"answer": "It is four."}  # noqa: RUF012  (a constant)


def test_no_family_is_left_out():
    ours = {name for name, found in catalog().found.items() if found.family.load.__module__.startswith("rm_families")}
    assert {case.split()[0] for case in CASES} == ours


@pytest.mark.parametrize("case", CASES)
def test_every_family_runs_while_every_way_to_remote_code_is_shut(case, made, monkeypatch):
    def shut(*_, **__):
        raise AssertionError("remote code was asked for")

    for name in ("get_class_from_dynamic_module", "get_cached_module_file", "get_class_in_module"):
        monkeypatch.setattr(remote_code, name, shut)
    load, unpickle = torch.load, []
    monkeypatch.setattr(torch, "load", lambda *a, **k: unpickle.append(k.get("weights_only")) or load(*a, **k))
    suite = TestEveryFamily()
    assert any(score.value is not None for score in suite.check(CASES[case][0](made), suite.rows()))
    assert all(unpickle)  # weights only, if at all


def test_a_family_that_breaks_a_law_is_found():
    class Moody:
        parts = ("mood",)
        calls = 0

        def score(self, conversations, progress=None):
            from rm_plugins import Score

            self.calls += 1
            return [Score(float(self.calls + row), {"mood": 1.0}) for row in range(len(conversations))]

    class Reward:
        def __init__(self):
            self.model = Moody()

        def load(self):
            return self.model

        def score(self, rows, progress=None):
            return self.model.score(rows, progress)

    laws = [getattr(Conformance(), name) for name in dir(Conformance) if name.startswith("test_")]
    broken = []
    for law in laws:
        try:
            law(Reward())
        except (AssertionError, TypeError, AttributeError):
            broken.append(law.__name__)
    assert {
        "test_every_conversation_has_one_score_in_order",
        "test_a_batch_changes_nothing",
        "test_the_same_twice",
        "test_a_broken_row_takes_no_other_with_it",
    } <= set(broken)
