"""A judge behind a chat-completions API: the real client against a server on this machine."""

from contextlib import contextmanager
from time import sleep

import pytest
from integration_tests_builder import json_server

from rm_plugins import Conversation, load_reward
from rm_plugins.errors import OptionError, ScoringError

pytest.importorskip("openai", reason="the openai client is not installed")
KEY = "sk-very-secret-key"


@contextmanager
def judging(say):
    """A chat-completions server that says (status, words or log-probabilities) to a body and its number."""

    def answer(_, asked, number):
        status, said = say(asked, number)
        if status != 200:
            return status, {"error": {"message": f"no: {KEY}"}}
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": said}}
        if isinstance(said, dict):
            told = [{"token": token, "logprob": value, "bytes": None} for token, value in said.items()]
            first = {"token": "x", "logprob": 0.0, "bytes": None, "top_logprobs": told}
            choice |= {"message": {"role": "assistant", "content": "x"}, "logprobs": {"content": [first]}}
        return 200, {"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]}

    with json_server(answer) as (url, server):
        yield url + "/v1", server


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


def load(url, **options):
    return load_reward(f"generative:{url}", **({"api_model": "m", "format": "rating"} | options))


def talk(answer, question="q"):
    return Conversation(({"role": "user", "content": question}, {"role": "assistant", "content": answer}))


def test_gpt_4o_is_asked_by_its_record_and_in_both_orders():
    def say(asked, _):
        words = asked["messages"][-1]["content"]
        return 200, f"Because.\n[[{'A' if words.index('good') < words.index('bad') else 'B'}]]"

    with judging(say) as (url, server):
        reward = load_reward(f"generative:{url}", record="gpt-4o")
        assert [score.value for score in reward.score([talk("good"), talk("bad")])] == [1.0, 0.0]
    assert {asked["model"] for _, asked in server.asked} == {"gpt-4o"} and len(server.asked) == 2
    assert [turn["role"] for turn in server.asked[0][1]["messages"]] == ["system", "user"]
    assert "seed" not in server.asked[0][1] and server.asked[0][1]["temperature"] == 0


def test_a_busy_server_is_asked_again_and_a_refusal_is_not():
    with judging(lambda asked, n: (503, "") if n < 3 else (200, "[[4]]")) as (url, server):
        [score] = load(url).score([talk("a")])
        assert score.value == 4.0 and len(server.asked) == 3
    with judging(lambda asked, n: (400, "")) as (url, server):
        [score] = load(url).score([talk("a")])
        assert score.value is None and "failed" in score.flags and len(server.asked) == 1
        assert "BadRequest" in score.error and KEY not in score.error


def test_an_empty_reply_is_unreadable_and_none_is_zero():
    said = {"a": "", "b": None, "c": "n/a", "d": "[[1]]"}
    with judging(lambda asked, _: (200, said[asked["messages"][-1]["content"].split("Answer:\n")[1][0]])) as (url, _):
        scores = load(url).score([talk(answer) for answer in said])
    assert [score.value for score in scores] == [None, None, None, 1.0]
    assert all("unreadable" in score.flags for score in scores[:3])


def test_never_more_calls_at_once_than_allowed():
    def say(asked, _):
        sleep(0.01)
        return 200, "[[5]]"

    with judging(say) as (url, server):
        load(url, parallel=8).score([talk(str(n)) for n in range(100)])
        assert 2 <= server.most <= 8 and len(server.asked) == 100


def test_too_many_failures_stop_the_run():
    def say(asked, _):
        return (200, "[[5]]") if "fine" in asked["messages"][-1]["content"] else (400, "")

    rows = [talk(answer) for answer in ("a", "b", "c", "fine")]
    with judging(say) as (url, _):
        assert [score.value for score in load(url).score(rows)] == [None, None, None, 5.0]
        with pytest.raises(ScoringError, match=r"3 of 4 calls to the server failed, more than max_failed=0\.5"):
            load(url, max_failed=0.5).score(rows)


def test_samples_have_seeds_that_the_item_gives():
    with judging(lambda asked, _: (200, "[[5]]")) as (url, server):
        reward = load(url, samples=3)
        reward.score([talk("a"), talk("b")])
        first = sorted(asked["seed"] for _, asked in server.asked)
        server.asked.clear()
        reward.score([talk("b"), talk("a")])
        assert sorted(asked["seed"] for _, asked in server.asked) == first and len(set(first)) == 6
        assert server.asked[0][1]["temperature"] == 1.0


def test_a_verifier_reads_the_alternatives_to_its_first_token():
    with judging(lambda asked, _: (200, {"Yes": -0.5, " No": -1.5, "Maybe": -3.0})) as (url, _):
        [score] = load(url, format="verify").score([talk("a")])
        assert score.value == pytest.approx(0.7310586, abs=1e-6)  # 1 / (1 + exp(-1))
    with judging(lambda asked, _: (200, {"Yes": -0.5})) as (url, _):
        [score] = load(url, format="verify").score([talk("a")])
        assert score.value is None and "'No' is not among" in score.error


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"api_model": None}, "api_model="),
        ({"format": "reason_genrm"}, "no API can"),
        ({"format": "rm_r1", "read": "probability"}, "no API can"),
    ],
)
def test_what_an_api_cannot_do_is_refused(options, message):
    with pytest.raises(OptionError, match=message):
        load("http://127.0.0.1:9/v1", **options)
