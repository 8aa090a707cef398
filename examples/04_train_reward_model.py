"""Fits the reward model that ships with rm_plugins: does an answer address its prompt?

SmolLM2-135M-Instruct with LoRA on its upper layers and a scalar head, fitted by TRL's RewardTrainer on public pairs.
Half of the pairs are human preferences; the other half sets a preferred answer against an answer to another prompt of
nearly the same length, so that length says nothing. Prompts are split, not pairs. Evaluation loads the adapter the way
any user would, with `load_reward`, and writes `metrics.json` and the model card.

    python examples/04_train_reward_model.py --data ../shared/data --out out/rm
"""

from __future__ import annotations

import argparse
import json
import random
from collections import Counter
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from rm_plugins import RewardFunction

BASE = "HuggingFaceTB/SmolLM2-135M-Instruct"
MOST_CHARACTERS = 900


class Pair(NamedTuple):
    """A prompt with a better and a worse answer."""

    prompt: str
    chosen: str
    rejected: str


def llmbar(path: Path) -> list[Pair]:
    """LLMBar's format: the label says which of two outputs is better."""
    rows = json.loads(path.read_text())
    return [Pair(r["input"], r[f"output_{r['label']}"], r[f"output_{3 - r['label']}"]) for r in rows]


def pandalm(path: Path) -> list[Pair]:
    """PandaLM's human comparisons where at least two of three annotators prefer one answer."""
    pairs = []
    for row in json.loads(path.read_text()):
        label, votes = Counter(str(row[f"annotator{i}"]) for i in (1, 2, 3)).most_common(1)[0]
        if votes >= 2 and label in ("1", "2"):
            prompt = "\n\n".join(filter(None, [row["instruction"], row["input"]]))
            pairs.append(Pair(prompt, row[f"response{label}"], row[f"response{3 - int(label)}"]))
    return pairs


def llamafactory(path: Path) -> list[Pair]:
    """LLaMA-Factory's DPO demo, single-turn rows."""
    rows = [r for r in json.loads(path.read_text()) if len(r["conversations"]) == 1]
    return [Pair(r["conversations"][0]["value"], r["chosen"]["value"], r["rejected"]["value"]) for r in rows]


def training_pairs(data: Path) -> list[Pair]:
    """All pairs that may be trained on, short enough for a two-core machine."""
    pairs = [
        *llmbar(data / "llmbar/Dataset__Processed__MT-Bench__dataset.json"),
        *llmbar(data / "llmbar/Dataset__Processed__LLMEval^2__dataset.json"),
        *pandalm(data / "pandalm/data__testset-v1.json"),
        *llamafactory(data / "llamafactory/data__dpo_en_demo.json"),
    ]
    texts = [p for p in pairs if all(isinstance(text, str) and text for text in p)]  # one answer is a bare true
    return [p for p in texts if max(map(len, p)) <= MOST_CHARACTERS and p.chosen != p.rejected]


def split(pairs: list[Pair], seed: int, share: float = 0.3) -> tuple[list[Pair], list[Pair]]:
    """Training and held-out pairs with no prompt in common."""
    prompts = sorted({pair.prompt.strip() for pair in pairs})
    random.Random(seed).shuffle(prompts)
    held = set(prompts[: int(len(prompts) * share)])
    return [p for p in pairs if p.prompt.strip() not in held], [p for p in pairs if p.prompt.strip() in held]


def one_per_prompt(pairs: list[Pair]) -> list[Pair]:
    """The first pair of every prompt, so that rows are independent."""
    return list({pair.prompt.strip(): pair for pair in reversed(pairs)}.values())


def off_topic(pairs: list[Pair]) -> list[Pair]:
    """Each preferred answer against another prompt's answer that is next longer or next shorter, by turns."""
    ordered = sorted({(len(p.chosen), p.chosen, p.prompt) for p in pairs})
    made = []
    for index, (_, answer, prompt) in enumerate(ordered):
        others = ordered[index + 1 :] if index % 2 else reversed(ordered[:index])
        other = next((text for _, text, asked in others if asked.strip() != prompt.strip() and text != answer), None)
        if other is not None:
            made.append(Pair(prompt, answer, other))
    return made


def chat(prompt: str, answer: str) -> list[dict[str, str]]:
    """A one-turn conversation."""
    return [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]


def train(pairs: list[Pair], out: Path, seed: int, epochs: float) -> None:
    """Fits LoRA and head with TRL's RewardTrainer and saves them as an adapter folder."""
    import torch
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import AutoModelForSequenceClassification, AutoTokenizer
    from trl import RewardConfig, RewardTrainer

    from rm_plugins.checkpoint import Checkpoint

    torch.manual_seed(seed)
    base = Checkpoint.open(BASE).with_weights()
    model = AutoModelForSequenceClassification.from_pretrained(base, num_labels=1, dtype=torch.float32)
    layers = list(range(model.config.num_hidden_layers - 12, model.config.num_hidden_layers))
    lora = LoraConfig(
        task_type="SEQ_CLS",
        r=4,
        lora_alpha=8,
        target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj"],
        layers_to_transform=layers,
        modules_to_save=["score"],
    )
    rows = [{"chosen": chat(p.prompt, p.chosen), "rejected": chat(p.prompt, p.rejected)} for p in pairs]
    config = RewardConfig(
        output_dir=str(out / "runs"),
        num_train_epochs=epochs,
        per_device_train_batch_size=8,
        learning_rate=1e-3,
        lr_scheduler_type="cosine",
        warmup_steps=10,
        max_length=512,
        logging_steps=10,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        seed=seed,
    )
    trainer = RewardTrainer(
        model=model,
        args=config,
        train_dataset=Dataset.from_list(rows),
        processing_class=AutoTokenizer.from_pretrained(base),
        peft_config=lora,
    )
    trainer.train()
    trainer.model.peft_config["default"].base_model_name_or_path = BASE
    trainer.model.save_pretrained(out)


def accuracy(reward: RewardFunction, pairs: list[Pair]) -> dict[str, float]:
    """How often the better answer scores higher, with a Wilson interval and the length baselines on the same pairs."""
    from scipy.stats import binomtest

    scores = reward.score([chat(p.prompt, a) for p in pairs for a in (p.chosen, p.rejected)])
    right = [scores[2 * i].value > scores[2 * i + 1].value for i in range(len(pairs))]
    longer = [len(p.chosen) > len(p.rejected) for p in pairs]
    shorter = [len(p.chosen) < len(p.rejected) for p in pairs]
    interval = binomtest(sum(right), len(right)).proportion_ci(method="wilson")
    result = {"n": len(pairs), "accuracy": fmean(right), "low": interval.low, "high": interval.high}
    for name, rule in (("longer", longer), ("shorter", shorter)):
        better = sum(r and not b for r, b in zip(right, rule, strict=True))
        worse = sum(b and not r for r, b in zip(right, rule, strict=True))
        result[name] = fmean(rule)
        result[f"p_{name}"] = binomtest(better, better + worse).pvalue if better + worse else 1.0
    return result


def rm_bench(reward: RewardFunction, path: Path) -> dict[str, float]:
    """RM-Bench chat: share of the 3 x 3 style pairs won, below, on and above the diagonal."""
    rows = json.loads(path.read_text())
    scores = [s.value for s in reward.score([chat(r["prompt"], a) for r in rows for a in r["chosen"] + r["rejected"]])]
    wins: dict[str, list[bool]] = {"hard": [], "normal": [], "easy": []}
    for index in range(len(rows)):
        row = scores[6 * index : 6 * index + 6]
        for i in range(3):
            for j in range(3):
                kind = "hard" if i < j else "normal" if i == j else "easy"
                wins[kind].append(row[i] > row[3 + j])
    return {"n": len(rows), **{kind: fmean(won) for kind, won in wins.items()}}


def evaluate(adapter: Path, data: Path, held: list[Pair]) -> dict[str, dict[str, float]]:
    """Every number of the model card."""
    from rm_plugins import load_reward

    reward = load_reward(str(adapter), dtype="float32", max_length=512)
    results = {"held-out: on or off topic": accuracy(reward, off_topic(one_per_prompt(held)))}
    results["held-out: human preference"] = accuracy(reward, held)
    biases = json.loads((data / "evalbiasbench/data__evalbiasbench__biasbench.json").read_text())
    for name, rows in biases.items():
        pairs = [Pair(r["instruction"], r["response1"], r["response2"]) for r in rows]
        results[f"EvalBiasBench: {name}"] = accuracy(reward, pairs)
    for path in sorted((data / "llmbar").glob("Dataset__LLMBar__*.json")):
        name = path.stem.removeprefix("Dataset__LLMBar__").removesuffix("__dataset").replace("__", " ")
        results[f"LLMBar: {name}"] = accuracy(reward, llmbar(path))
    results["RM-Bench: chat"] = rm_bench(reward, data / "rm_bench/data__chat_filtered.json")
    return results


CARD = """---
base_model: {base}
library_name: peft
license: apache-2.0
tags: [reward-model, rm_plugins]
---

# SmolLM2-135M on-topic reward model

Judges one thing: **does the answer address its prompt?** Higher is better, the scale is free. It is small, made to be
run on a laptop, in tests and demonstrations. It is no judge of quality, truth or safety, and the table says so.

- Base: {base}; LoRA (rank 4) on the upper 12 layers, and a linear head on the last token.
- Data: MT-Bench and LLMEval^2 pairs as processed by LLMBar (MIT), PandaLM's human test set (Apache-2.0),
  LLaMA-Factory's DPO demo (Apache-2.0); texts over {most} characters left out.
  {train} training pairs: {preference} human preferences and {topic} of a preferred answer
  against a length-matched answer to another prompt. Split by prompt, seed {seed}.
- Recipe: Bradley-Terry loss, TRL RewardTrainer, {epochs:g} epochs: `python examples/04_train_reward_model.py`.

| pairs | n | accuracy | 95 % interval | longer wins | shorter wins | p against longer | p against shorter |
|---|---|---|---|---|---|---|---|
{rows}

RM-Bench chat ({bench[n]} prompts): hard {bench[hard]:.3f}, normal {bench[normal]:.3f}, easy {bench[easy]:.3f}.
p is the exact two-sided test on the pairs where the model and the rule disagree.
"""


def card(metrics: dict) -> str:
    """The model card, every number of it from the metrics."""
    line = (
        "| {name} | {n} | {accuracy:.3f} | {low:.3f} to {high:.3f} "
        "| {longer:.3f} | {shorter:.3f} | {p_longer:.2g} | {p_shorter:.2g} |"
    )
    results = metrics["results"]
    rows = "\n".join(line.format(name=name, **r) for name, r in results.items() if "accuracy" in r)
    return CARD.format(base=BASE, most=MOST_CHARACTERS, rows=rows, bench=results["RM-Bench: chat"], **metrics["setup"])


def main() -> None:
    """Trains, evaluates, and writes the card."""
    parser = argparse.ArgumentParser(description="Fits the reward model that ships with rm_plugins.")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--out", type=Path, default=Path("out/rm"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=float, default=1.0)
    args = parser.parse_args()
    fit, held = split(training_pairs(args.data), args.seed)
    topic = off_topic(fit)
    print(f"{len(fit)} preference pairs and {len(topic)} topic pairs to train on; {len(held)} held out", flush=True)
    train(fit + topic, args.out, args.seed, args.epochs)
    setup = {"train": len(fit + topic), "preference": len(fit), "topic": len(topic)}
    metrics = {"setup": setup | {"seed": args.seed, "epochs": args.epochs}, "results": {}}
    metrics["results"] = evaluate(args.out, args.data, held)
    (args.out / "metrics.json").write_text(json.dumps(metrics, indent=1) + "\n")
    (args.out / "README.md").write_text(card(metrics))
    print((args.out / "README.md").read_text())


if __name__ == "__main__":
    main()
