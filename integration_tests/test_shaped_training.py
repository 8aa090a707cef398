"""Real trainers with three steps: they train, evaluation teaches nothing, a resumed run goes on as it was."""

import json

import numpy as np
import pytest
from datasets import Dataset
from integration_tests_builder import tokenizer
from test_trl import PROMPTS, conversational, policy_rows, settings
from transformers import AutoModelForCausalLM, TrainerCallback

from rm_plugins import load_reward
from rm_plugins.shaping import Clip, Running, SoftOverlong


class Killed(TrainerCallback):
    """Ends a run as a kill does, behind the save of a step."""

    def __init__(self, step):
        self._step = step

    def on_step_begin(self, args, state, control, **_):
        if state.global_step == self._step:
            raise KeyboardInterrupt


@pytest.fixture(scope="module")
def folders(builder):
    return str(builder.classifier("llama", "llama", seed=1)), builder.policy()


class Run:
    """GRPO with a shaped reward that writes down what it answered in training."""

    def __init__(self, folders, folder, *callbacks, steps=4, **more):
        import trl

        model, policy = folders
        stack = [Running(min_count=8), Clip(low=-3, high=3), SoftOverlong(max_length=8, cache=4, weight=0.5)]
        self.reward, self.answers = load_reward(model, device="cpu", shaping=stack), []
        self.trainer = trl.GRPOTrainer(
            model=AutoModelForCausalLM.from_pretrained(policy),
            reward_funcs=self,
            args=trl.GRPOConfig(
                **settings(
                    folder,
                    num_generations=2,
                    max_completion_length=8,
                    max_steps=steps,
                    save_strategy="steps",
                    save_steps=2,
                    shuffle_dataset=False,  # TRL shuffles otherwise when it resumes in a later epoch
                )
                | more
            ),
            train_dataset=conversational(),
            eval_dataset=Dataset.from_dict({"prompt": [[{"role": "user", "content": p}] for p in PROMPTS]}),
            processing_class=tokenizer("chatml"),
            callbacks=[self.reward.callback(), *callbacks],
        )

    __name__ = "shaped"

    def __call__(self, **call):
        values = self.reward(**call)
        if self.trainer.model.training:
            self.answers.append(values)
        return values

    @property
    def seen(self):
        return self.reward._shaper.state_dict()[0]["state"]["count"]


@pytest.mark.slow
def test_a_run_that_was_killed_and_resumed_gives_the_rewards_of_one_that_was_not(tmp_path, folders):
    whole = Run(folders, tmp_path / "whole")
    whole.trainer.train()
    killed = Run(folders, tmp_path / "killed", Killed(2))
    with pytest.raises(KeyboardInterrupt):
        killed.trainer.train()
    resumed = Run(folders, tmp_path / "killed")
    resumed.trainer.train(resume_from_checkpoint=True)
    assert len(whole.answers) == 4 and killed.answers == whole.answers[:2]
    assert [v for row in resumed.answers for v in row] == pytest.approx([v for row in whole.answers[2:] for v in row])
    assert resumed.seen == whole.seen == 16
    saved = json.loads((tmp_path / "killed" / "checkpoint-4" / "rm_plugins_state.json").read_text())
    assert saved == {resumed.reward.__name__: resumed.reward._shaper.state_dict()}


@pytest.mark.slow
def test_evaluation_teaches_nothing(tmp_path, folders):
    run = Run(folders, tmp_path, steps=2, eval_strategy="steps", eval_steps=1, per_device_eval_batch_size=4)
    run.trainer.train()
    assert run.seen == sum(len(values) for values in run.answers) == 8
    before = run.reward._shaper.state_dict()
    metrics = run.trainer.evaluate()
    assert run.reward._shaper.state_dict() == before and "eval_reward" in metrics
    logged = run.trainer.state.log_history
    assert any(f"{run.reward.__name__}/3-soft_overlong/mean" in row for row in logged)


@pytest.mark.slow
def test_rloo_and_online_dpo_take_a_shaped_reward(tmp_path, builder):
    import trl
    from trl.experimental.online_dpo import OnlineDPOConfig, OnlineDPOTrainer

    for kind in ("rloo", "dpo"):
        reward = load_reward(str(builder.classifier()), device="cpu", shaping=[Running(min_count=2), Clip(high=1)])
        common = {
            "model": AutoModelForCausalLM.from_pretrained(builder.policy()),
            "reward_funcs": reward,
            "train_dataset": conversational(),
            "processing_class": tokenizer("chatml"),
            "callbacks": [reward.callback()],
        }
        if kind == "rloo":
            args = trl.RLOOConfig(**settings(tmp_path, num_generations=2, max_completion_length=8))
            trl.RLOOTrainer(args=args, **common).train()
        else:
            OnlineDPOTrainer(
                args=OnlineDPOConfig(**settings(tmp_path, max_new_tokens=8, max_length=64)), **common
            ).train()
        assert reward._shaper.state_dict()[0]["state"]["count"] >= 8


def test_ppo_s_module_gives_shaped_scores(builder):
    folder = str(builder.classifier())
    raw, reward = (load_reward(folder, device="cpu", shaping=s) for s in ((), [Running(min_count=2), Clip(high=0.5)]))
    tok, chat = tokenizer("chatml"), [{"role": "user", "content": "quick fox?"}]
    prompt = list(tok.apply_chat_template(chat, add_generation_prompt=True, return_dict=False))
    answers = ["brown dog", "lazy", "x y z"]
    written = [[*tok(a, add_special_tokens=False)["input_ids"], tok.eos_token_id] for a in answers]
    ids, mask = policy_rows(tok, [prompt] * 3, written)
    module = reward.ppo_module(tok, [{"input_ids": prompt, "prompt": chat}])
    found = module.model(input_ids=ids, attention_mask=mask).last_hidden_state[:, -1, 0]
    values = np.array([s.value for s in raw.score([[*chat, {"role": "assistant", "content": a}] for a in answers])])
    expected = np.minimum((values - values.mean()) / values.std(ddof=1), 0.5)
    assert found.numpy() == pytest.approx(expected, abs=1e-5)
