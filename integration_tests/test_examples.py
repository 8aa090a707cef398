"""The examples run as they stand, each in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


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
