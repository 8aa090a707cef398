"""Run by a launcher: a few GRPO steps, each process writing what its reward was asked and what it answered."""

import json
import os
import sys
from pathlib import Path

from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from rm_plugins import load_reward


def main(policy, model, folder, rows="4", record=None):
    reward = load_reward(model, record=record)
    reward.load()  # before the trainer: it must not settle for this process that it is alone
    log = Path(folder) / f"rank-{os.environ['RANK']}.jsonl"

    def watched(prompts, completions, **more):
        values = reward(prompts=prompts, completions=completions, **more)
        with log.open("a") as file:
            file.write(json.dumps([prompts, completions, values]) + "\n")
        return values

    asked = [[{"role": "user", "content": text}] for text in ("quick fox?", "lazy dog!", "what jumps?", "the model")]
    args = GRPOConfig(
        output_dir=folder,
        per_device_train_batch_size=int(rows),
        num_generations=4,
        max_completion_length=8,
        max_steps=2,
        report_to=[],
        use_cpu=True,
        bf16=False,
        save_strategy="no",
        disable_tqdm=True,
    )
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(policy),
        reward_funcs=watched,
        args=args,
        train_dataset=Dataset.from_dict({"prompt": asked}),
        processing_class=AutoTokenizer.from_pretrained(policy),
    )
    trainer.train()


if __name__ == "__main__":
    main(*sys.argv[1:])
