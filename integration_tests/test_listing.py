"""`rm-plugins list` and `inspect`: what is installed, what is known, and what a model is."""

import json
import subprocess
import sys

import pytest
from integration_tests_builder import command


@pytest.fixture
def model(builder):
    return str(builder.classifier())


def test_importing_and_listing_never_import_torch():
    code = (
        "import sys, rm_plugins\n"
        "from rm_plugins.cli.main import app\n"
        "from typer.testing import CliRunner\n"
        "assert CliRunner().invoke(app, ['list']).exit_code == 0\n"
        "bad = {'torch', 'transformers', 'trl'} & set(sys.modules)\n"
        "sys.exit(f'imported {bad}' if bad else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_list_shows_families_and_known_models():
    shown = json.loads(command("list", "--json", "--models").stdout)
    assert {f["name"] for f in shown["families"]} >= {"sequence_classifier"}
    assert "Ray2333/GRM-Gemma2-2B-rewardmodel-ft" in {m["id"] for m in shown["models"]}


@pytest.mark.parametrize("width", ["60", "80", "200"])
def test_list_breaks_no_name_on_a_narrow_terminal(width, monkeypatch):
    monkeypatch.setenv("COLUMNS", width)
    shown = command("list").stdout
    assert all(f" {name} " in shown for name in ("sequence_classifier", "pair_preference", "generative"))


def test_inspect_says_family_head_and_assumptions(model):
    shown = json.loads(command("inspect", model, "--json").stdout)
    assert shown["family"] == "sequence_classifier" and shown["heads"] == ["score.weight (1, 32)"]
    assert any("bos" in line for line in shown["assumed"])
    known = json.loads(command("inspect", model, "--json", "--record", "ncsoft/llama-3-offsetbias-rm-8b").stdout)
    assert known["bos"] == "strip_all" and known["assumed"] == []


def test_what_is_known_of_a_model_is_shown_without_the_model():
    shown = json.loads(command("inspect", "Ray2333/GRM-Gemma2-2B-rewardmodel-ft", "--json").stdout)
    assert shown["dtype"] == "float16" and "the hub cannot be reached" in shown["checkpoint"]


def test_inspect_takes_family_options_for_its_explanation(builder):
    two = builder.classifier(labels=2)
    shown = command("inspect", two, "--json", "--explain", "dog", "-o", "positive=LABEL_1")
    assert json.loads(shown.stdout)["sees"]["ids"]


def test_inspect_explains_an_answer(model):
    shown = json.loads(command("inspect", model, "--json", "--explain", "dog <|eot|>").stdout)
    assert "control_tokens" in shown["sees"]["flags"] and "dog <|eot|>" in shown["sees"]["text"]


def test_a_family_shows_its_options():
    shown = command("list", "pairrm", "--json")
    assert {"reduce", "group_size", "max_tokens_in_flight"} <= set(json.loads(shown.stdout)["options"])
    assert "mean_win_rate" in command("list", "pairrm").stdout
    assert "Did you mean 'pairrm'?" in str(command("list", "parirm").exception)
