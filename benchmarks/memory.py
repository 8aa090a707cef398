"""Memory and time of answers' log-probabilities under a large vocabulary; writes results/memory.json.

python -m benchmarks.memory
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

RESULTS = Path(__file__).parent / "results" / "memory.json"
VOCABULARY, ANSWERS, ANSWER_TOKENS, PROMPT_TOKENS = 128_000, 8, 1_000, 64


def model() -> Any:
    """A Llama of 6 layers with a vocabulary of 128,000."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 6, "num_attention_heads": 9}
    return LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, num_key_value_heads=3, **sizes)).eval()


def sequences() -> list[tuple[int, ...]]:
    """Unrelated prompts with one answer each, so that nothing is shared."""
    torch.manual_seed(1)
    rows = torch.randint(0, VOCABULARY, (ANSWERS, PROMPT_TOKENS + ANSWER_TOKENS))
    return [tuple(row) for row in rows.tolist()]


@torch.inference_mode()
def usual(lm: Any, rows: list[tuple[int, ...]]) -> torch.Tensor:
    """All logits of the batch, their log-softmax, the tokens' entries, the answer's mask."""
    ids = torch.tensor(rows)
    logits = lm(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).logits[:, :-1]
    tokens = logits.float().log_softmax(-1).gather(2, ids[:, 1:, None])[..., 0]
    return tokens[:, PROMPT_TOKENS - 1 :]


def ours(lm: Any, rows: list[tuple[int, ...]]) -> torch.Tensor:
    """`Engine.log_probs` at the answers' positions."""
    from rm_plugins.engine.runner import Engine
    from rm_plugins.engine.vocabulary import VocabularyHead
    from rm_plugins.text.encoder import Encoded

    asked = [Encoded(row, tuple(range(PROMPT_TOKENS - 1, len(row) - 1)), "") for row in rows]
    return torch.stack(Engine(lm.base_model).log_probs(asked, VocabularyHead(lm)))


def measure(way: str) -> dict[str, Any]:
    """Seconds, and peak memory above that of the loaded and warmed-up model, in this process."""
    torch.set_num_threads(2)
    lm, rows = model(), sequences()
    {"usual": usual, "ours": ours}[way](lm, [row[: PROMPT_TOKENS + 4] for row in rows[:1]])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.perf_counter()
    values = {"usual": usual, "ours": ours}[way](lm, rows)
    seconds = time.perf_counter() - started
    extra = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before  # kilobytes
    return {"seconds": seconds, "megabytes": extra / 1024, "values": values.flatten().tolist()}


def main() -> None:
    """Measures each way in a fresh process, and writes the JSON that the README shows."""
    found = {}
    for way in ("usual", "ours", "usual", "ours"):
        run = subprocess.run([sys.executable, "-m", "benchmarks.memory", way], capture_output=True, check=True)
        fresh = json.loads(run.stdout)
        found[way] = min(found.get(way, fresh), fresh, key=lambda one: float(one["seconds"]))
    usually, here = found["usual"], found["ours"]
    report = {
        "work": f"log-probabilities of {ANSWERS} answers of {ANSWER_TOKENS} tokens, vocabulary {VOCABULARY}, float32",
        "usual megabytes": round(usually["megabytes"]),
        "our megabytes": round(here["megabytes"]),
        "memory ratio": round(here["megabytes"] / usually["megabytes"], 3),
        "memory target": 0.125,
        "usual seconds": round(usually["seconds"], 2),
        "our seconds": round(here["seconds"], 2),
        "time ratio": round(here["seconds"] / usually["seconds"], 2),
        "time target": 1.1,
        "largest difference of a token": max(
            abs(a - b) for a, b in zip(usually["values"], here["values"], strict=True)
        ),
    }
    RESULTS.write_text(json.dumps(report, indent=1) + "\n")
    sys.stdout.write(RESULTS.read_text())


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.stdout.write(json.dumps(measure(sys.argv[1])))
    else:
        main()
