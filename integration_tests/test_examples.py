"""The examples run as they stand, each in a process of its own."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from integration_tests_builder import rewrite

from rm_plugins import Conversation, LoadSpec, load_reward
from rm_plugins.checkpoint import Checkpoint
from rm_plugins.errors import WrongFamilyError
from rm_plugins.records import derive

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_the_plugin_of_the_docs_reads_a_model(builder):
    page = (EXAMPLES.parent / "docs" / "write_a_plugin.md").read_text()
    code = next(block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "my_head" in block)
    exec(code, plugin := {})
    [family] = plugin["rm_families"]()
    talk = Conversation(({"role": "user", "content": "fox?"}, {"role": "assistant", "content": "dog"}))
    folder = builder.classifier()
    expected = load_reward(str(folder), device="cpu", pooling="last").score([talk])[0].value
    with pytest.raises(WrongFamilyError, match=r"it reads my_head\.weight; heads here: score\.weight"):
        family.load(spec_of(folder))
    rewrite(folder, lambda tensors: {n.replace("score.", "my_head."): t for n, t in tensors.items()})
    assert family.load(spec_of(folder)).score([talk])[0].value == pytest.approx(expected)


def spec_of(folder):
    checkpoint = Checkpoint.open(str(folder))
    return LoadSpec(target=str(folder), checkpoint=checkpoint, record=derive(checkpoint), device="cpu")


@pytest.mark.slow
@pytest.mark.parametrize("example", ["01_score.py", "02_grpo.py"])
def test_an_example_runs_alone(example):
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    result = subprocess.run(
        [sys.executable, EXAMPLES / example], capture_output=True, text=True, env=environment, timeout=900
    )
    assert result.returncode == 0, result.stderr[-2000:]
    if example.startswith("01"):
        on, off = (float(line.split()[0]) for line in result.stdout.splitlines()[:2])
        assert on > off and "control_tokens" in result.stdout


@pytest.mark.slow
def test_the_outside_plugin_installs_and_scores(tmp_path):
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(tmp_path)]
    subprocess.run([*pip, str(EXAMPLES / "03_write_a_plugin")], check=True)
    code = (
        "from rm_plugins import load_reward\n"
        "reward = load_reward('keyword:whale,crab')\n"
        "print(reward(['q'] * 2, ['a whale', 'x'], keywords=[['whale', 'crab'], []]), reward.__name__)"
    )
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert result.stdout.strip() == "[0.5, None] keyword/whale,crab", result.stderr
    suite = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", EXAMPLES / "03_write_a_plugin"]
    result = subprocess.run(suite, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert result.returncode == 0 and "12 passed" in result.stdout, result.stdout
