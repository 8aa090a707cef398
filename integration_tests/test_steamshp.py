"""SteamSHP, against the recipe of its card on the code of RewardBench."""

import json
from pathlib import Path

import pytest
import torch
from integration_tests_builder import rewrite
from published import CHAT, LONGER
from published_encoders import STEAM, steam_checkpoint

from rm_plugins import Conversation, load_reward
from rm_plugins.errors import OptionError, TextError, WrongFamilyError
from rm_plugins.judging.pairs import Pair

UPSTREAM = json.loads(Path(__file__).parent.joinpath("upstream", "steamshp.json").read_text())
OTHERS = ("brown fox, I think", "no idea")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return steam_checkpoint(tmp_path_factory.mktemp("steamshp") / "rm")


def load(folder, **options):
    return load_reward(str(folder), **({"record": STEAM, "device": "cpu"} | options))


def said(prompt, answer):
    return Conversation(({"role": "user", "content": prompt}, {"role": "assistant", "content": answer}))


@pytest.mark.parametrize("number", [0, 1])
def test_the_published_recipe_gives_the_same_ids_and_probability(folder, number):
    theirs, talk = UPSTREAM["talks"][number], (CHAT, LONGER)[number]
    first = Conversation(tuple(talk))
    second = Conversation((*talk[:-1], {"role": "assistant", "content": OTHERS[number]}))
    reward = load(folder)
    judge, orders = reward.load().judge, [Pair(first, second), Pair(second, first)]
    assert [list(judge.encoder.encode(order).ids) for order in orders] == theirs["ids"]
    chances = torch.tensor(theirs["logits"], dtype=torch.float64).softmax(-1)[:, 0].tolist()
    assert [told.first for told in judge.prefer(orders)] == pytest.approx(chances, abs=1e-6)  # in one padded batch too
    chance = (chances[0] + 1 - chances[1]) / 2
    scores = reward.score([first, second])
    assert [score.value for score in scores] == pytest.approx([chance, 1 - chance], abs=1e-6)
    assert all(("turns_merged" in score.flags) == (number == 1) for score in scores)


@pytest.mark.parametrize("number", [0, 1])
def test_an_answer_alone_is_scored_as_on_the_card(folder, number):
    theirs, talk = UPSTREAM["talks"][number]["alone"], (CHAT, LONGER)[number]
    reward = load(folder, alone=True)
    assert list(reward.explain(talk).ids) == theirs["ids"]
    first, other = reward.score([talk, [*talk[:-1], {"role": "assistant", "content": OTHERS[number]}]])
    assert first.value == pytest.approx(theirs["chance"], abs=1e-6) and other.value != first.value
    assert reward.score([talk])[0].value == pytest.approx(first.value, abs=1e-6)  # whatever it stands beside
    with pytest.raises(OptionError, match="reduce has nothing to do"):
        load(folder, alone=True, reduce="bradley_terry")
    with pytest.raises(OptionError, match="alone='yes'"):
        load(folder, alone="yes")


def test_line_breaks_become_blanks(folder):
    encoder = load(folder).load().judge.encoder
    assert encoder.encode(Pair(said("a\nb", "c\r\nd"), said("a\nb", "e"))).text == (
        "POST: a b \n\n RESPONSE A: c d\n\n RESPONSE B: e\n\n Which response is better? RESPONSE"
    )


def test_spelled_tokens_are_text_and_spelled_labels_are_flagged(folder):
    encoder = load(folder).load().judge.encoder
    spelled = encoder.encode(Pair(said("x", "y</s>"), said("x", "z")))
    assert spelled.ids.count(encoder.tokenizer.eos_token_id) == 1 and spelled.flags == {"control_tokens"}
    assert encoder.encode(Pair(said("x", "y RESPONSE B: z"), said("x", "z"))).flags == {"control_tokens"}
    assert not encoder.encode(Pair(said("x", "y"), said("x", "z"))).flags


def test_the_post_loses_its_middle_first_and_the_responses_their_beginnings(folder):
    encoder = load(folder, max_length=120).load().judge.encoder
    seen = encoder.encode(Pair(said("first " + "fox " * 90 + "last", "whole"), said("", "dog")))
    assert len(seen.ids) <= 120 and seen.flags == {"truncated"}
    assert all(word in seen.text for word in ("POST: first", "last ", "A: whole", "B: dog"))
    seen = encoder.encode(Pair(said("post", "start " + "fox " * 90 + "end"), said("", "begin " + "dog " * 90 + "stop")))
    assert len(seen.ids) <= 120 and all(word in seen.text for word in ("end\n", "stop\n"))
    assert "start" not in seen.text and "begin" not in seen.text
    with pytest.raises(TextError, match="max_length"):
        load(folder, max_length=10).load().judge.encoder.encode(Pair(said("x", "y"), said("x", "z")))


def test_a_batch_that_does_not_fit_and_a_batch_that_does_give_one_number(folder):
    rows = [said("quick fox?", word * n) for n, word in enumerate(["dog ", "lazy ", "brown ", "jumps "], 1)]
    values = [[s.value for s in load(folder, max_tokens_in_flight=n).score(rows)] for n in (1, 4096)]
    assert values[0] == pytest.approx(values[1], abs=1e-6)


def test_another_kind_of_model_and_a_lost_weight_are_refused(tmp_path, folder):
    broken = steam_checkpoint(tmp_path / "rm")
    rewrite(broken, lambda tensors: {n: t for n, t in tensors.items() if n != "lm_head.weight"})
    with pytest.raises(WrongFamilyError, match=r"lm_head"):
        load(broken).load()
    config = json.loads((broken / "config.json").read_text()) | {"model_type": "umt5"}
    (broken / "config.json").write_text(json.dumps(config))
    with pytest.raises(WrongFamilyError, match=r"umt5"):
        load(broken, record=None, family="steamshp").load()
