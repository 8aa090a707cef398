"""How near scoring comes to what the machine can do, and where the time goes; writes results/limit.json.

python -m benchmarks.limit [--quick]

The limit is the machine's own rate at the matrix products of the model's linear layers, measured in turns with scoring.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
import transformers
from torch.nn.functional import linear
from torch.profiler import ProfilerActivity, profile

from benchmarks.peers import ours
from benchmarks.speed import Batch, processor
from benchmarks.world import SHAPES, Texts, checkpoint

RESULTS = Path(__file__).parent / "results" / "limit.json"


def efficiency(folder: Path, shape: str, batch: Batch) -> dict[str, Any]:
    """Our rate on a batch against the limit, the share of text work, and the shares of each kind of operation."""
    from rm_plugins.conversation import from_trl

    model: Any = ours(folder).load()
    model.encoder.encode(from_trl(*Texts(2).groups(1, 2, 8))[0])  # finds out what its template can do
    assert model.engine.packs
    started = time.perf_counter()
    talks = [model.encoder.encode(conversation) for conversation in from_trl(*batch)]
    plan = model.engine.plan(talks)
    text = time.perf_counter() - started
    rates, runs = [], []
    for _ in range(5):  # in turns, because the machine's own rate moves
        rates.append(product_rate(shape))
        started = time.perf_counter()
        model.engine.hidden(plan)
        runs.append(time.perf_counter() - started)
    limit, seconds = median(rates), median(runs)
    work = plan.tree.tokens * products_per_token(shape) + attention_pairs(plan) * attention_per_pair(shape)
    return {
        "tokens computed": plan.tree.tokens,
        "tokens in one padded batch": len(talks) * max(len(t.ids) for t in talks),
        "GFLOP/s of matrix products alone": round(limit / 1e9, 1),
        "GFLOP/s of scoring": round(work / seconds / 1e9, 1),
        "share of the limit": round(work / seconds / limit, 3),
        "seconds": round(seconds, 2),
        "seconds at the limit": round(work / limit, 2),
        "text work, share of the forward pass": round(text / seconds, 4),
        "shares of time": shares(model.engine, plan),
    }


def shares(engine: Any, plan: Any) -> dict[str, float]:
    """Where a pass spends its time: linear layers, attention, and everything else."""
    with profile(activities=[ProfilerActivity.CPU]) as record:
        engine.hidden(plan)
    spent = {"linear layers": 0.0, "attention": 0.0, "everything else": 0.0}
    for event in record.key_averages():
        kind = "attention" if "dot_product" in event.key else "everything else"
        spent["linear layers" if event.key in ("aten::mm", "aten::addmm") else kind] += event.self_cpu_time_total
    return {kind: round(part / sum(spent.values()), 3) for kind, part in spent.items()}


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


def main() -> None:
    """Measures and writes the JSON that the README shows; a quick run only prints it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a small model and batch")
    asked = parser.parse_args()
    torch.set_num_threads(2)
    transformers.logging.set_verbosity_error()
    shape = "quick" if asked.quick else "135M"
    folder = checkpoint(shape)
    works = {"GRPO batch: 4 prompts of 512 tokens x 8 answers": Texts().groups(4, 8, 512)}
    if not asked.quick:
        works["48 unrelated conversations of 20 to 600 tokens"] = Texts().singles(48, 20, 600)
    report = {
        "machine": f"{processor()}, {torch.get_num_threads()} threads",
        "works": {name: efficiency(folder, shape, batch) for name, batch in works.items()},
    }
    text = json.dumps(report, indent=1) + "\n"
    sys.stdout.write(text)
    if not asked.quick:
        RESULTS.write_text(text)


if __name__ == "__main__":
    main()
