"""BestOfN on a real tiny policy: what is drawn depends on prompt and seed alone, and all of it is told."""

import math

import pytest
import torch
from integration_tests_builder import tokenizer
from transformers import AutoModelForCausalLM

from rm_plugins import load_reward
from rm_plugins.best_of_n.lots import Random
from rm_plugins.best_of_n.policy import LocalPolicy
from rm_plugins.best_of_n.rules import Best, Likelihood, Longest
from rm_plugins.best_of_n.sampler import BestOfN
from rm_plugins.errors import OptionError, ScoringError

PROMPTS = ["quick fox?", [{"role": "user", "content": "lazy dog!"}], "what jumps over?"]


@pytest.fixture(scope="module")
def folder(builder):
    return builder.policy()


@pytest.fixture(scope="module")
def reward(builder):
    return load_reward(str(builder.classifier()), device="cpu")


def sampler(folder, reward, **settings):
    return BestOfN(str(folder), reward, **({"n": 4, "seed": 1, "max_new_tokens": 8, "device": "cpu"} | settings))


def texts(results):
    return [[candidate.text for candidate in result.pool.candidates] for result in results]


def test_every_candidate_is_told_with_its_score_and_the_best_is_chosen(folder, reward):
    best = sampler(folder, reward, n_candidates=2)
    seen = []
    results = best(PROMPTS, progress=seen.append, finished=lambda row, result: seen.append((row, result.text)))
    assert [entry for entry in seen if entry == 1] == [1, 1, 1] and [e[0] for e in seen if e != 1] == [0, 1, 2]
    for result in results:
        values = [candidate.score.value for candidate in result.pool.candidates]
        assert values == pytest.approx([s.value for s in reward.score(result.pool.conversations)], abs=1e-5)
        assert result.chosen[0].score.value == max(values) and len(result.chosen) == 2
        assert result.tokens == sum(len(c.ids) for c in result.pool.candidates) and result.reward_calls == 4
        assert result.selection.kl_bound == pytest.approx(math.log(4) - 3 / 4)
        assert all(c.finish == ("length" if len(c.ids) == 8 else "stop") for c in result.pool.candidates)


def test_draws_depend_on_prompt_and_seed_alone(folder, reward):
    together = texts(sampler(folder, reward)(PROMPTS))
    assert len({text for own in together for text in own}) > 6
    assert texts(sampler(folder, reward)(PROMPTS[::-1])) == together[::-1]
    assert texts(sampler(folder, reward, prompts_at_once=1)(PROMPTS)) == together
    assert texts(sampler(folder, reward, max_tokens_in_flight=64)(PROMPTS)) == together
    assert texts(sampler(folder, None, rule=Longest())(PROMPTS[0])) == together[:1]
    assert texts(sampler(folder, reward, seed=2)(PROMPTS)) != together
    more = texts(sampler(folder, reward, n=6)(PROMPTS))
    assert [own[:4] for own in more] == together  # the first draws are the same, however many there are
    assert texts(sampler(folder, reward, seed=None)(PROMPTS)) != texts(sampler(folder, reward, seed=None)(PROMPTS))


def test_log_probabilities_are_those_of_the_sampled_distribution(folder):
    model, tok = AutoModelForCausalLM.from_pretrained(folder).eval(), tokenizer("chatml")
    prompt = [{"role": "user", "content": "quick fox?"}]
    ids = list(tok.apply_chat_template(prompt, add_generation_prompt=True, return_dict=False))
    for temperature, top_p in ((1.0, 1.0), (0.5, 1.0), (1.0, 0.6), (0.0, 1.0)):
        policy = LocalPolicy(model, tok, temperature=temperature, top_p=top_p, max_new_tokens=6)
        for found in policy.draw([prompt], [[1, 2, 3]])[0]:
            logits = model(torch.tensor([[*ids, *found.ids]])).logits[0, len(ids) - 1 : -1].float()
            plain = logits.log_softmax(-1)
            certainty = (-plain.mean(-1) - math.log(plain.shape[1])).mean().item()
            assert found.certainty == pytest.approx(certainty, abs=1e-4)
            tempered = logits / (temperature or 1)
            if top_p < 1:
                chances, order = tempered.softmax(-1).sort(-1, descending=True)
                dropped = chances.cumsum(-1) - chances >= top_p
                tempered = tempered.masked_fill(dropped.gather(-1, order.argsort(-1)), -math.inf)
            expected = tempered.log_softmax(-1).gather(-1, torch.tensor(found.ids)[:, None]).sum().item()
            assert found.log_prob == pytest.approx(expected, abs=1e-3)


def test_greedy_draws_are_all_the_same_and_a_control_needs_no_reward(folder):
    [result] = sampler(folder, None, rule=Likelihood(), temperature=0)("quick fox?")
    assert len({c.ids for c in result.pool.candidates}) == 1 and result.selection.ties == 4
    assert result.reward_calls == 0 and result.selection.index == 0


def test_any_trl_reward_is_one_and_columns_reach_it(folder):
    def count(prompts, completions, letter, **_):
        return [
            None if x is None else float(c[0]["content"].count(x)) for c, x in zip(completions, letter, strict=True)
        ]

    [result] = sampler(folder, count, rule=Best())("quick fox?", columns=[{"letter": "o"}])
    assert result.text.count("o") == max(c.text.count("o") for c in result.pool.candidates)
    with pytest.raises(ScoringError, match=r"None of 4 candidates has a reward: the reward gave no value \(4x\)"):
        sampler(folder, count)("quick fox?", columns=[{"letter": None}])
    with pytest.raises(OptionError, match="1 prompts and 2 rows of columns"):
        sampler(folder, count)("quick fox?", columns=[{}, {}])
    with pytest.raises(ScoringError, match="returned 1 values for 4 candidates"):
        sampler(folder, lambda **_: [1.0])("quick fox?")


def test_a_lot_is_drawn_from_the_seed(folder):
    picks = [sampler(folder, None, rule=Random())(PROMPTS)[row].selection.index for row in (0, 1, 2)]
    assert picks == [r.selection.index for r in sampler(folder, None, rule=Random(), prompts_at_once=1)(PROMPTS)]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"n": 1}, "n=1 must be a whole number of at least 2"),
        ({"n": 0}, "n=0 must be"),
        ({"n_candidates": 5}, "n_candidates=5 must be between 1 and n=4"),
        ({"top_p": 0}, r"top_p=0, max_new_tokens=8: .*the second in \(0, 1\]"),
    ],
)
def test_a_setting_that_cannot_be_is_an_error(folder, settings, says):
    with pytest.raises(OptionError, match=says):
        sampler(folder, None, **settings)


def test_a_policy_that_cannot_be_asked_says_why(folder):
    model = AutoModelForCausalLM.from_pretrained(folder)
    with pytest.raises(OptionError, match="has no chat template"):
        LocalPolicy(model, tokenizer("plain"))
    with pytest.raises(OptionError, match="temperature is the policy's own"):
        BestOfN(LocalPolicy(model, tokenizer("chatml")), None, temperature=1)

    class Lazy:
        name, settings = "lazy", {}

        def draw(self, prompts, seeds, progress=None):
            return [[] for _ in prompts]

    with pytest.raises(ScoringError, match="lazy drew 0 candidates where 4 were asked for"):
        BestOfN(Lazy(), None, n=4)("q")
