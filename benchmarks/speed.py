"""Speed of scoring, side by side with what a user would otherwise run; writes results/speed.json.

python -m benchmarks.speed [--quick] [--only WORD] [--vllm PYTHON]
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import torch
import transformers
import trl

from benchmarks.peers import PipelinePath, TrlPath, ours
from benchmarks.vllm_server import VllmPath
from benchmarks.world import Texts, Turns, checkpoint

RESULTS = Path(__file__).parent / "results" / "speed.json"
Batch = tuple[list[Turns], list[Turns]]
Scorer = Callable[[list[Turns], list[Turns]], Any]


def works(texts: Texts, quick: bool) -> dict[str, tuple[Batch, dict[str, float]]]:
    """Name -> the conversations, and the ratio to reach against each peer."""
    size = 4 if quick else 1
    return {
        f"GRPO batch: 4 prompts of {512 // size} tokens x 8 answers": (texts.groups(4, 8, 512 // size), {"TRL": 5.0}),
        f"GRPO batch: 4 prompts of {1024 // size} tokens x 16 answers": (
            texts.groups(4, 16, 1024 // size),
            {"TRL": 8.0},
        ),
        "48 unrelated conversations of 20 to 600 tokens": (
            texts.singles(48, 20, 600),
            {"TRL": 1.5, "pipeline, batch 1": 1.5, "pipeline, batch 8": 1.5},
        ),
        "RM-Bench shape: 8 prompts of 60 tokens x 6 answers": (texts.groups(8, 6, 60), {"RewardBench": 2.5}),
    }


def timed(scorer: Scorer, batch: Batch) -> tuple[float, list[float]]:
    """Seconds, and the scores."""
    started = time.perf_counter()
    scores = list(scorer(*batch))
    return time.perf_counter() - started, scores


def compare(scorers: dict[str, Scorer], batch: Batch, repeats: int) -> dict[str, tuple[float, list[float]]]:
    """Median seconds and scores of every scorer; they take turns, so that a slow minute hits them all."""
    runs: dict[str, list[tuple[float, list[float]]]] = {name: [] for name in scorers}
    for _ in range(repeats):
        for name, scorer in scorers.items():
            runs[name].append(timed(scorer, batch))
    return {name: (median(seconds for seconds, _ in found), found[0][1]) for name, found in runs.items()}


def measured(folder: Path, asked: argparse.Namespace) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The rows of each work, as it is done; vLLM, where it was given, takes its turn at every work."""
    reward = ours(folder)
    trl_path, rewardbench = TrlPath(folder), PipelinePath(folder, 8)
    peers: dict[str, Scorer] = {
        "TRL": trl_path,
        "pipeline, batch 1": PipelinePath(folder, 1),
        "pipeline, batch 8": rewardbench,
        "RewardBench": rewardbench,
    }
    everywhere = {"vLLM": VllmPath(asked.vllm, folder)} if asked.vllm else {}
    for scorer in (reward, *everywhere.values()):
        scorer(*Texts(1).groups(1, 2, 8))  # the probe, and first use of the kernels
    for name, (batch, targets) in works(Texts(), asked.quick).items():
        if asked.only not in name:
            continue
        here = {"ours": reward} | {peer: peers[peer] for peer in targets} | everywhere
        found = compare(here, batch, asked.repeats)
        yield name, [row(peer, found, targets.get(peer), asked.repeats) for peer in found if peer != "ours"]
    for scorer in everywhere.values():
        scorer.close()


def row(peer: str, found: dict[str, tuple[float, list[float]]], target: float | None, turns: int) -> dict[str, Any]:
    """A peer's figures beside ours."""
    (seconds, scores), (theirs, their_scores) = found["ours"], found[peer]
    return {
        "peer": peer,
        "peer seconds": round(theirs, 2),
        "our seconds": round(seconds, 2),
        "ratio": round(theirs / seconds, 2),
        "target": target,
        "largest difference": max(abs(a - b) for a, b in zip(scores, their_scores, strict=True)),
        "turns": turns,
    }


def processor() -> str:
    """Name of the processor and its vector unit."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    named = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{named[0]} ({torch.backends.cpu.get_cpu_capability()})" if named else platform.machine()


def main() -> None:
    """Measures, writing what the README shows after each work; a quick run only prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small model, once: minutes instead of half an hour")
    parser.add_argument("--repeats", type=int, default=3, help="turns that every scorer takes")
    parser.add_argument("--only", default="", help="only works whose name has this word")
    parser.add_argument(
        "--vllm", metavar="PYTHON", help="interpreter of an environment with vLLM, to run its server too"
    )
    asked = parser.parse_args()
    torch.set_num_threads(2)
    transformers.logging.set_verbosity_error()
    shape = "quick" if asked.quick else "135M"
    folder = checkpoint(shape)
    report: dict[str, Any] = {
        "model": f"Llama, {shape}, random weights, float32",
        "machine": f"{processor()}, {torch.get_num_threads()} threads",
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__, "trl": trl.__version__},
        "works": {},
    }
    if not asked.quick and RESULTS.is_file() and (before := json.loads(RESULTS.read_text())) | {"works": {}} == report:
        report = before  # of the same machine and versions: works that are not run again stay
    for name, found in measured(folder, asked):
        sys.stderr.write(f"{name}: {found}\n")
        report["works"][name] = found
        if not asked.quick:
            RESULTS.write_text(json.dumps(report, indent=1) + "\n")
    sys.stdout.write(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
