"""Real trainers, a few real steps, a policy whose tokenizer differs from the reward model's."""

import importlib.metadata
import math

import pytest
import torch
from datasets import Dataset
from integration_tests_builder import tiny_config, tokenizer
from transformers import AutoModelForCausalLM

from rm_plugins import Score, load_reward
from rm_plugins.conversation import from_trl
from rm_plugins.errors import ScoringError
from rm_plugins.reward.metrics import summarize

PROMPTS = ["quick fox?", "lazy dog!", "what jumps over?", "the system model"]
HAS_PPO = importlib.metadata.version("trl").startswith("1.12.")


@pytest.fixture
def policy(builder):
    return AutoModelForCausalLM.from_pretrained(builder.policy()), tokenizer("chatml")  # RLOO reloads it by folder


@pytest.fixture
def rewards(builder):
    folders = [builder.classifier("llama", "llama", seed=seed) for seed in (1, 2)]
    return [load_reward(str(folder), device="cpu") for folder in folders]


class Spy:
    """Records what TRL passed and what it got."""

    def __init__(self, reward):
        self.reward, self.__name__, self.calls = reward, reward.__name__, []

    def __call__(self, **kwargs):
        values = self.reward(**kwargs)
        self.calls.append((kwargs["prompts"], kwargs["completions"], values))
        return values


def conversational():
    return Dataset.from_dict({"prompt": [[{"role": "user", "content": p}] for p in PROMPTS], "solution": PROMPTS})


def settings(tmp_path, **more):
    common = {
        "output_dir": str(tmp_path),
        "per_device_train_batch_size": 4,
        "max_steps": 2,
        "logging_steps": 1,
        "report_to": [],
        "use_cpu": True,
        "save_strategy": "no",
        "bf16": False,
        "disable_tqdm": True,
    }
    return common | more


def check_logged(history, spies):
    """TRL's logged means are those of reward.score on the same texts."""
    logs = [row for row in history if f"rewards/{spies[0].__name__}/mean" in row]
    assert len(logs) == 2
    for spy in spies:
        for row, (prompts, completions, values) in zip(logs, spy.calls, strict=True):
            expected = [score.value for score in spy.reward.score(from_trl(prompts, completions))]
            assert values == pytest.approx(expected, abs=1e-5)
            assert row[f"rewards/{spy.__name__}/mean"] == pytest.approx(sum(expected) / len(expected), abs=1e-4)
    return logs


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["GRPO", "RLOO"])
def test_online_trainers_log_what_score_gives_under_two_names(tmp_path, policy, rewards, kind):
    import trl

    model, tok = policy
    spies = [Spy(reward) for reward in rewards]
    config = getattr(trl, f"{kind}Config")(**settings(tmp_path, num_generations=2, max_completion_length=8))
    trainer = getattr(trl, f"{kind}Trainer")(
        model=model, reward_funcs=spies, args=config, train_dataset=conversational(), processing_class=tok
    )
    trainer.train()
    logs = check_logged(trainer.state.log_history, spies)
    for share in ("truncated", "empty", "failed", "control_tokens"):
        assert all(0 <= row[f"{spies[0].__name__}/{share}"] <= 1 for row in logs)


@pytest.mark.slow
def test_a_reward_itself_is_a_reward_func_of_plain_text_prompts(tmp_path, policy, rewards):
    import trl

    model, tok = policy
    config = trl.GRPOConfig(**settings(tmp_path, num_generations=2, max_completion_length=8))
    trainer = trl.GRPOTrainer(
        model=model,
        reward_funcs=rewards,
        args=config,
        train_dataset=Dataset.from_dict({"prompt": PROMPTS}),
        processing_class=tok,
    )
    trainer.train()
    names = {
        key.split("/", 1)[1].rsplit("/", 1)[0]
        for row in trainer.state.log_history
        for key in row
        if key.startswith("rewards/")
    }
    assert {reward.__name__ for reward in rewards} <= names


@pytest.mark.slow
def test_online_dpo_trains_on_the_same_numbers(tmp_path, policy, rewards):
    from trl.experimental.online_dpo import OnlineDPOConfig, OnlineDPOTrainer

    model, tok = policy
    spy = Spy(rewards[0])
    config = OnlineDPOConfig(**settings(tmp_path, max_new_tokens=8, max_length=64))
    trainer = OnlineDPOTrainer(
        model=model, reward_funcs=spy, args=config, train_dataset=conversational(), processing_class=tok
    )
    trainer.train()
    logged = [row["objective/scores"] for row in trainer.state.log_history if "objective/scores" in row]
    means = [sum(values) / len(values) for _, _, values in spy.calls]
    assert logged == pytest.approx(means, abs=1e-4)
    for prompts, completions, values in spy.calls:
        expected = [score.value for score in spy.reward.score(from_trl(prompts, completions))]
        assert values == pytest.approx(expected, abs=1e-5)


@pytest.fixture
def refusing(rewards):
    """A reward that cannot score: its context is shorter than its template."""
    return load_reward(rewards[0].spec.model, device="cpu", max_length=2)


def test_online_dpo_never_turns_none_into_zero(refusing):
    trainer_like = {"prompts": ["a"], "completions": ["b"], "completion_ids": [[1]], "trainer_state": object()}
    with pytest.raises(ScoringError, match="This trainer knows no None: pass on_failure=<a number>"):
        refusing(**trainer_like)
    assert refusing(**trainer_like, log_metric=lambda *_: None) == [None]
    refusing.on_failure = -7.5
    assert refusing(**trainer_like) == [-7.5]


def test_raise_makes_a_failed_row_an_error_with_its_cause(refusing):
    refusing.on_failure = "raise"
    with pytest.raises(ScoringError, match="no reward for row 0: The chat template alone is longer than max_length=2"):
        refusing(["a"], ["b"])


def test_metrics_count_flags_and_the_length_correlation(rewards):
    logged = {}
    completions = ["dog", "", "fox <|eot|> fox", "dog fox dog"]
    values = rewards[0](
        PROMPTS,
        completions,
        completion_ids=[[1], [], [1, 2], [1, 2, 3]],
        log_metric=logged.__setitem__,
        solution=PROMPTS,
    )
    name = rewards[0].__name__
    assert logged[f"{name}/empty"] == 0.25 and logged[f"{name}/control_tokens"] == 0.25
    assert logged[f"{name}/failed"] == logged[f"{name}/truncated"] == 0
    expected = torch.corrcoef(torch.tensor([values, [1.0, 0.0, 2.0, 3.0]]))[0, 1].item()
    assert logged[f"{name}/length_correlation"] == pytest.approx(expected, abs=1e-5)


def test_metrics_leave_out_what_was_not_scored():
    scores = [Score(1.0), Score(None, flags=frozenset({"failed"})), Score(3.0)]
    assert summarize(scores, [1, 50, 2]) == {
        "truncated": 0.0,
        "empty": 0.0,
        "control_tokens": 0.0,
        "failed": pytest.approx(1 / 3),
        "length_correlation": pytest.approx(1.0),
    }
    flat = summarize([Score(1.0), Score(1.0)], [1, 2])  # no correlation, but the same names
    assert math.isnan(flat["length_correlation"]) and list(flat) == list(summarize(scores, [1, 50, 2]))


def test_one_score_too_few_is_an_error_with_both_counts(rewards, monkeypatch):
    model = rewards[0].load()
    monkeypatch.setattr(model, "score", lambda rows, progress=None: [])
    with pytest.raises(ScoringError, match="returned 0 scores for 2 conversations"):
        rewards[0](["a", "b"], ["c", "d"])
    monkeypatch.setattr(model, "score", lambda rows, progress=None: [0.5] * len(rows))
    with pytest.raises(ScoringError, match="returned a float, not a Score"):
        rewards[0](["a", "b"], ["c", "d"])


def policy_rows(tok, prompts, answers):
    """PPO's rows: left-padded prompts, right-padded answers, pads masked to 0."""
    width = max(map(len, prompts))
    ends = max(map(len, answers))
    pad = tok.pad_token_id
    rows = [[pad] * (width - len(p)) + p + a + [pad] * (ends - len(a)) for p, a in zip(prompts, answers, strict=True)]
    ids = torch.tensor(rows)
    mask = ids != pad
    return ids.masked_fill(~mask, 0), mask


@pytest.mark.parametrize("pad", ["own", "eos"])
@pytest.mark.parametrize("style", ["chatml", "llama"])
@pytest.mark.parametrize("known", [True, False])
def test_ppo_gets_the_score_of_the_same_conversation(rewards, style, pad, known):
    tok = tokenizer(style, pad=pad)
    chats = [
        [{"role": "user", "content": "quick fox?"}],
        [
            {"role": "user", "content": "lazy"},
            {"role": "assistant", "content": "dog"},
            {"role": "user", "content": "jumps over?"},
        ],
        [{"role": "system", "content": "brown model"}, {"role": "user", "content": "dog"}],
    ]
    answers = ["brown dog", "", "x y z"]
    prompts = [list(tok.apply_chat_template(c, add_generation_prompt=True, return_dict=False)) for c in chats]
    written = [[*tok(a, add_special_tokens=False)["input_ids"], tok.eos_token_id] for a in answers]
    dataset = [{"input_ids": p, "prompt": c} for p, c in zip(prompts, chats, strict=True)] if known else None
    ids, mask = policy_rows(tok, prompts, written)

    module = rewards[0].ppo_module(tok, dataset)
    backbone = getattr(module, module.base_model_prefix)
    output = backbone(input_ids=ids, attention_mask=mask, position_ids=None, output_hidden_states=True)
    assert output.hidden_states[-1] is output.last_hidden_state
    assert output.last_hidden_state.shape == (3, ids.shape[1], 1)
    talks = [[*c, {"role": "assistant", "content": a}] for c, a in zip(chats, answers, strict=True)]
    expected = torch.tensor([score.value for score in rewards[0].score(talks)])
    assert torch.allclose(module.score(output.hidden_states[-1])[:, 3, 0], expected, atol=1e-5)
    assert torch.allclose(module.score(output.hidden_states[-1])[:, -1, 0], expected, atol=1e-5)


@pytest.mark.slow
@pytest.mark.skipif(not HAS_PPO, reason="TRL removed its PPO trainer in 1.13; this runs in the TRL 1.12.0 environment")
def test_ppo_trains_on_the_same_numbers(tmp_path, policy, rewards):
    from transformers import AutoModelForSequenceClassification
    from trl.experimental.ppo import PPOConfig, PPOTrainer

    model, tok = policy
    value = AutoModelForSequenceClassification.from_config(
        tiny_config("qwen3", len(tok), num_labels=1, pad_token_id=tok.pad_token_id)
    )
    chats = [[{"role": "user", "content": p}] for p in PROMPTS]
    ids = [list(tok.apply_chat_template(c, add_generation_prompt=True, return_dict=False)) for c in chats]
    seen = []
    original = rewards[0].score

    def score(talks, progress=None):
        result = original(talks, progress)
        seen.append(([talk.messages for talk in talks], [s.value for s in result]))
        return result

    rewards[0].score = score
    module = rewards[0].ppo_module(tok, [{"input_ids": i, "prompt": c} for i, c in zip(ids, chats, strict=True)])
    config = PPOConfig(
        **settings(tmp_path, per_device_train_batch_size=2, response_length=8, total_episodes=8, num_ppo_epochs=1)
        | {"max_steps": -1, "num_sample_generations": 0, "gradient_accumulation_steps": 2}
    )
    rows = Dataset.from_dict({"input_ids": ids})
    trainer = PPOTrainer(
        args=config,
        processing_class=tok,
        model=model,
        ref_model=None,
        reward_model=module,
        value_model=value,
        train_dataset=rows,
        eval_dataset=rows,
    )
    trainer.train()
    logged = [row["objective/scores"] for row in trainer.state.log_history if "objective/scores" in row]
    values = [value for _, batch in seen for value in batch]
    assert logged and len(values) == 8
    assert sum(logged) / len(logged) == pytest.approx(sum(values) / len(values), abs=1e-3)
    questions = {messages[0]["content"] for talks, _ in seen for messages in talks}
    assert questions <= set(PROMPTS)
