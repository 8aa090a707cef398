"""Two real processes of one launcher: they share the work, give the numbers of one, and end in order."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from published import checkpoint
from published_language import MODELS

from rm_plugins import load_reward
from rm_plugins.conversation import from_trl

TOGETHER = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
MEMBER = """
import atexit, pathlib, sys

def threads():
    return [path.read_text().strip() for path in pathlib.Path("/proc/self/task").glob("*/comm")]

def at_the_end():  # registered first, so it runs last
    pathlib.Path(sys.argv[1], f"{state.process_index}-after").write_text(" ".join(threads()))

atexit.register(at_the_end)
from rm_plugins.process import this_process
state = this_process()
pathlib.Path(sys.argv[1], f"{state.process_index}-before").write_text(" ".join(threads()))
"""


def launched(*arguments):
    """Runs the arguments in two processes and refuses any other end than a good one."""
    result = subprocess.run([*TOGETHER, *map(str, arguments)], capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.slow
def test_two_processes_write_the_file_of_one(tmp_path, builder):
    source, alone, together = (tmp_path / name for name in ("in.jsonl", "alone.jsonl", "together.jsonl"))
    talks = ([{"role": "user", "content": "fox?"}, {"role": "assistant", "content": "dog " * n}] for n in range(11))
    source.write_text("".join(json.dumps({"messages": talk}) + "\n" for talk in talks))
    score = ["rm_plugins", "score", builder.classifier(), source, "--device", "cpu", "--chunk", 2, "--out"]
    subprocess.run([sys.executable, "-m", *map(str, [*score, alone])], check=True)
    launched("-m", *score, together)
    assert [row["line"] for row in lines(together)] == list(range(1, 12))
    assert [row["score"] for row in lines(together)] == pytest.approx([row["score"] for row in lines(alone)], abs=1e-6)


@pytest.mark.slow
def test_two_training_processes_get_the_numbers_of_one(tmp_path, builder):
    script = Path(__file__).with_name("launched_training.py")
    model = builder.classifier("llama", "llama")
    launched(script, builder.policy(), model, tmp_path)
    ranks = [lines(tmp_path / f"rank-{n}.jsonl") for n in (0, 1)]
    assert [len(calls) for calls in ranks] == [2, 2]
    assert ranks[0] != ranks[1]
    prompts, completions, values = ([x for calls in ranks for call in calls for x in call[part]] for part in range(3))
    alone = load_reward(str(model), device="cpu").score(from_trl(prompts, completions))
    assert values == pytest.approx([score.value for score in alone], abs=1e-6)


@pytest.mark.slow
def test_answers_on_two_processes_are_compared_with_each_other(tmp_path, builder):
    script = Path(__file__).with_name("launched_training.py")
    pair = "RLHFlow/pair-preference-model-LLaMA3-8B"
    model = checkpoint(pair, "llama", tmp_path / "rm", MODELS)
    launched(script, builder.policy(), model, tmp_path, 2, pair)  # four answers to a prompt, two on each process
    ranks = [lines(tmp_path / f"rank-{n}.jsonl") for n in (0, 1)]
    reward = load_reward(str(model), record=pair, device="cpu")
    for mine, theirs in zip(*ranks, strict=True):
        prompts, completions, values = (a + b for a, b in zip(mine, theirs, strict=True))
        assert len(set(map(str, prompts))) == 1 and len(values) == 4
        assert sum(values) == pytest.approx(2)  # of six comparisons each gives one win in all
        assert values == pytest.approx([s.value for s in reward.score(from_trl(prompts, completions))], abs=1e-2)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="thread names are read from /proc")
def test_a_process_leaves_the_group_before_it_ends(tmp_path):
    script = tmp_path / "member.py"
    script.write_text(MEMBER)
    launched(script, tmp_path)
    for rank in (0, 1):
        assert "gloo" in (tmp_path / f"{rank}-before").read_text()
        assert "gloo" not in (tmp_path / f"{rank}-after").read_text()
