"""Speed of scoring, side by side with what a user would otherwise run; writes results/speed.json.

python -m benchmarks.speed [--quick] [--only WORD] [--vllm PYTHON]
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
import transformers
import trl
from torch.nn.functional import linear

from benchmarks.peers import PipelinePath, TrlPath, ours
from benchmarks.vllm_server import VllmPath
from benchmarks.world import SHAPES, Texts, Turns, checkpoint

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


def rows(folder: Path, asked: argparse.Namespace) -> list[dict[str, Any]]:
    """One row per work and peer; vLLM, where it was given, takes its turn at every work."""
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
    made = []
    for name, (batch, targets) in works(Texts(), asked.quick).items():
        if asked.only not in name:
            continue
        here = {"ours": reward} | {peer: peers[peer] for peer in targets} | everywhere
        found = compare(here, batch, asked.repeats)
        seconds, scores = found.pop("ours")
        for peer, (theirs, their_scores) in found.items():
            row = {
                "work": name,
                "peer": peer,
                "peer seconds": round(theirs, 2),
                "our seconds": round(seconds, 2),
                "ratio": round(theirs / seconds, 2),
                "target": targets.get(peer),
                "largest difference": max(abs(a - b) for a, b in zip(scores, their_scores, strict=True)),
            }
            sys.stderr.write(f"{row}\n")
            made.append(row)
    for scorer in everywhere.values():
        scorer.close()
    return made


def efficiency(folder: Path, shape: str) -> dict[str, float]:
    """Our rate on a GRPO batch against the machine's own rate at the model's matrix products, in the same run."""
    reward, batch = ours(folder), Texts().groups(4, 8, 512)
    model: Any = reward.load()
    model.encoder.encode(_conversations(Texts(2).groups(1, 2, 8))[0])  # finds out what its template can do
    conversations = _conversations(batch)
    started = time.perf_counter()
    talks = [model.encoder.encode(conversation) for conversation in conversations]
    plan = model.engine.plan(talks)
    text = time.perf_counter() - started
    products, attended = products_per_token(shape), attention_pairs(plan)
    rates, runs = [], []
    for _ in range(5):  # in turns, because the machine's own rate moves
        rates.append(product_rate(shape))
        runs.append(timed(lambda *_: model.engine.hidden(plan), batch)[0])
    limit, seconds = median(rates), median(runs)
    work = plan.tree.tokens * products + attended * attention_per_pair(shape)
    return {
        "tokens computed": plan.tree.tokens,
        "tokens padded by TRL": len(talks) * max(len(t.ids) for t in talks),
        "GFLOP/s of matrix products alone": round(limit / 1e9, 1),
        "GFLOP/s of scoring": round(work / seconds / 1e9, 1),
        "share of the limit": round(work / seconds / limit, 3),
        "text work, share of the forward pass": round(text / seconds, 4),
    }


def _conversations(batch: Batch) -> list[Any]:
    from rm_plugins.conversation import from_trl

    return from_trl(*batch)


def _sizes(shape: str) -> list[tuple[int, int]]:
    hidden, inner = SHAPES[shape]["hidden_size"], SHAPES[shape]["intermediate_size"]
    attention = [(hidden, hidden), (hidden, hidden // 3), (hidden, hidden // 3), (hidden, hidden)]
    return [*attention, (hidden, inner), (hidden, inner), (inner, hidden)]


def products_per_token(shape: str) -> int:
    """Floating-point operations of the linear layers for one token."""
    return 2 * SHAPES[shape]["num_hidden_layers"] * sum(a * b for a, b in _sizes(shape))


def attention_per_pair(shape: str) -> int:
    """Operations of scores and weighted values for one query and one key."""
    return 4 * SHAPES[shape]["num_hidden_layers"] * SHAPES[shape]["hidden_size"]


def attention_pairs(plan: Any) -> int:
    """Pairs of query and key that causal attention needs."""
    return sum((s.start + s.stop + 1) * len(s) // 2 for s in plan.tree.segments)


def product_rate(shape: str, rows: int = 1024) -> float:
    """Operations per second of the model's own matrix products, each with `rows` tokens: the median of many."""
    pairs = [(torch.randn(rows, a), torch.randn(b, a)) for a, b in _sizes(shape)]
    seconds = []
    for _ in range(40):
        started = time.perf_counter()
        for states, weight in pairs:
            linear(states, weight)
        seconds.append(time.perf_counter() - started)
    return 2 * rows * sum(a * b for a, b in _sizes(shape)) / median(seconds)


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    named = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{named[0]} ({torch.backends.cpu.get_cpu_capability()})" if named else platform.machine()


def main() -> None:
    """Measures and writes the JSON that the README shows; a quick run only prints it."""
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
    report = {
        "model": f"Llama, {shape}, random weights, float32",
        "machine": f"{_processor()}, {torch.get_num_threads()} threads",
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__, "trl": trl.__version__},
        "repeats": asked.repeats,
        "efficiency": efficiency(folder, shape),
        "rows": rows(folder, asked),
    }
    text = json.dumps(report, indent=1) + "\n"
    sys.stdout.write(text)
    if not (asked.quick or asked.only):
        RESULTS.write_text(text)


if __name__ == "__main__":
    main()
