"""Trains a policy with GRPO for two steps; its tokenizer need not be the reward model's."""

import tempfile

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from rm_plugins import load_reward
from rm_plugins.checkpoint import Checkpoint

reward = load_reward("smollm2-135m-on-topic")
prompts = ["Name three animals that live in the sea.", "Why is the sky blue?"]
with tempfile.TemporaryDirectory() as folder:
    trainer = GRPOTrainer(
        model=str(Checkpoint.open("HuggingFaceTB/SmolLM2-135M-Instruct").with_weights()),  # any hub id or folder
        reward_funcs=[reward],
        args=GRPOConfig(
            output_dir=folder,
            max_steps=2,
            per_device_train_batch_size=4,
            num_generations=2,
            max_completion_length=12,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            bf16=False,
        ),
        train_dataset=Dataset.from_dict({"prompt": [[{"role": "user", "content": p}] for p in prompts]}),
    )
    trainer.train()
    rewards = [round(row["reward"], 2) for row in trainer.state.log_history if "reward" in row]
print("mean reward per step:", rewards)
