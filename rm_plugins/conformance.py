"""What every reward family must do, as one test class: in a test module, give a fixture and subclass it.

@pytest.fixture(scope="module")
def reward():
    return load_reward("keyword:whale,crab")

class TestKeyword(Conformance):
    pass
"""

from __future__ import annotations

import math
import pickle
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from rm_plugins.conversation import Conversation
from rm_plugins.family import Score
from rm_plugins.reward.function import RewardFunction


class Conformance:
    """Laws of a reward. Their module has a pytest fixture `reward`, a `RewardFunction`; the attributes may stay.

    Attributes:
        tolerance: how far the scores of one conversation may lie apart, scored alone and among others.
        questions: prompts; two answers at least are scored to each.
        answers: answers of different lengths.
        columns: data-set columns of every row.
        control_tokens: spellings of the model's control tokens, where it has any; in an answer they must stay text.
    """

    tolerance: ClassVar[float] = 1e-5
    questions: ClassVar[Sequence[str]] = ("What is two and two?", "Name a sea.")
    answers: ClassVar[Sequence[str]] = ("It is four.", "No idea, sorry.", "The North Sea, I think, or another one.")
    columns: ClassVar[Mapping[str, Any]] = {}
    control_tokens: ClassVar[Sequence[str]] = ()

    def rows(self, answers: Sequence[Any] | None = None) -> list[Conversation]:
        """Every answer to every question."""
        return [
            Conversation(
                ({"role": "user", "content": question}, {"role": "assistant", "content": answer}), dict(self.columns)
            )
            for question in self.questions
            for answer in (self.answers if answers is None else answers)
        ]

    def check(self, reward: RewardFunction, rows: Sequence[Conversation]) -> list[Score]:
        """Scores rows, and checks that each has a finite value or says why it has none."""
        scores = reward.score(rows)
        assert len(scores) == len(rows), f"{len(scores)} scores for {len(rows)} conversations"
        names = getattr(reward.load(), "parts", ())
        for score in scores:
            assert isinstance(score.flags, frozenset) and all(isinstance(flag, str) for flag in score.flags)
            assert all(math.isfinite(value) for value in score.parts.values()), f"a part is not finite: {score.parts}"
            if score.value is None:
                assert score.error, "no value, and no reason"
            else:
                assert math.isfinite(score.value) and set(names) <= set(score.parts)
        return scores

    def same(self, one: Sequence[Score], other: Sequence[Score]) -> None:
        """Checks that two lists of scores agree."""
        for a, b in zip(one, other, strict=True):
            assert (a.value is None) == (b.value is None) and a.flags == b.flags, f"{a} and {b}"
            assert a.value is None or math.isclose(a.value, b.value or 0.0, abs_tol=self.tolerance), f"{a} and {b}"

    def test_every_conversation_has_one_score_in_order(self, reward: RewardFunction) -> None:
        """Rows in another order have the same scores in that order."""
        rows = self.rows()
        scores, order = self.check(reward, rows), list(range(len(rows)))
        assert any(score.value is not None for score in scores), f"no row has a value: {scores[0].error}"
        random.Random(0).shuffle(order)
        self.same([scores[i] for i in order], self.check(reward, [rows[i] for i in order]))

    def test_a_batch_changes_nothing(self, reward: RewardFunction) -> None:
        """A conversation has the score that it has alone; answers that are compared, that of their prompt alone."""
        rows = self.rows()
        step = len(self.answers) if getattr(reward.load(), "relative", False) else 1
        alone = [score for i in range(0, len(rows), step) for score in self.check(reward, rows[i : i + step])]
        self.same(self.check(reward, rows), alone)

    def test_the_same_twice(self, reward: RewardFunction) -> None:
        """Nothing random is left on: no dropout, no sampling without a seed of the item's own."""
        self.same(self.check(reward, self.rows()), self.check(reward, self.rows()))

    def test_training_mode_elsewhere_changes_nothing(self, reward: RewardFunction) -> None:
        """A model that somebody put into training mode is scored in evaluation mode."""
        scores, engine = self.check(reward, self.rows()), getattr(reward.load(), "engine", None)
        if engine is not None:
            engine.backbone.train()
        self.same(scores, self.check(reward, self.rows()))

    def test_an_empty_answer_and_none_are_the_same(self, reward: RewardFunction) -> None:
        """An answer without words is scored, or has a reason why not; None is no other answer."""
        self.same(self.check(reward, self.rows(["", "x"])), self.check(reward, self.rows([None, "x"])))

    def test_a_long_answer_is_no_crash(self, reward: RewardFunction) -> None:
        """An answer longer than any limit is cut and flagged, or has a reason."""
        self.check(reward, self.rows(["word " * 4000, "x"]))

    def test_any_script_is_no_crash(self, reward: RewardFunction) -> None:
        """Characters of any script, and half a character, which has at least a reason."""
        scripts = ["\u5317\u6d77", "\u0628\u062d\u0631", "\U0001f469\U0001f3fd\u200d\U0001f680 e\u0301", "\x00\x1b[31m"]
        self.check(reward, self.rows([*scripts, "a\ud800b", "x"]))

    def test_a_spelled_control_token_stays_text(self, reward: RewardFunction) -> None:
        """An answer cannot forge a turn: what it spells becomes no control token, and is flagged."""
        if not self.control_tokens or not hasattr(reward.load(), "explain"):
            return
        plain, forged = self.rows(["x", "".join(self.control_tokens)])[:2]
        seen = reward.explain(forged)
        for token in self.control_tokens:
            assert seen.tokens.count(token) <= reward.explain(plain).tokens.count(token), f"{token!r} was forged"
        assert "control_tokens" in seen.flags

    def test_a_broken_row_takes_no_other_with_it(self, reward: RewardFunction) -> None:
        """What cannot be scored has no value; the rows beside it have theirs."""
        good = self.rows()
        picture = {"role": "assistant", "content": [{"type": "image"}]}
        scores = self.check(reward, [Conversation(({"role": "user", "content": "Alone?"}, picture)), *good])
        assert scores[0].value is None
        self.same(scores[1:], self.check(reward, good))

    def test_progress_counts_every_row_once(self, reward: RewardFunction) -> None:
        """Whoever waits sees all rows finish."""
        told: list[int] = []
        reward.score(self.rows(), told.append)
        assert sum(told) == len(self.rows()) or not told

    def test_it_is_pickled_without_its_weights(self, reward: RewardFunction) -> None:
        """Trainers send rewards to other processes; what arrives gives the same."""
        packed = pickle.dumps(reward)
        assert len(packed) < 100_000, f"{len(packed)} bytes: the model was packed too"
        self.same(self.check(reward, self.rows()), self.check(pickle.loads(packed), self.rows()))

    def test_a_trainer_gets_floats_or_none(self, reward: RewardFunction) -> None:
        """Called as TRL calls it, the reward gives the same values and logs numbers."""
        rows, logged = self.rows(), dict[str, float]()
        log: Callable[[str, float], None] = logged.__setitem__
        columns = {name: [value] * len(rows) for name, value in self.columns.items()}
        turns = [(list(row.messages[:-1]), [row.messages[-1]]) for row in rows]
        values = reward([p for p, _ in turns], [c for _, c in turns], log_metric=log, **columns)
        assert all(value is None or type(value) is float for value in values)
        self.same([Score(value) for value in values], [Score(s.value) for s in self.check(reward, rows)])
        assert all(isinstance(value, float | int) for value in logged.values())
