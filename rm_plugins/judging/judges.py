"""Judges that write: their votes, and the three kinds of reward made of them."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from rm_plugins.conversation import Conversation
from rm_plugins.errors import ConversationError
from rm_plugins.family import Progress, Score
from rm_plugins.judging.asking import Asker, Question, Writer, transcript
from rm_plugins.judging.formats import Format, Read
from rm_plugins.judging.groups import Distinct, by_prompt, rescaled
from rm_plugins.judging.pairs import Pair, Preference
from rm_plugins.remote.parallel import Failure
from rm_plugins.text.reasoning import strip_reasoning


@dataclass(frozen=True)
class Unread:
    """What a judge said that ends in no verdict."""

    text: str

    @property
    def error(self) -> str:
        """Says so, with its last words."""
        return f"The judge's answer ends in no verdict but in {self.text[-60:]!r}; max_new_tokens may have cut it."


@dataclass(frozen=True)
class Vote:
    """What a judge's samples say together.

    Attributes:
        value: mean of those that could be read; None if none could.
        votes: how many that were.
        flags: `unreadable` if a sample had no verdict, `failed` if there is no value.
        error: why there is none.
    """

    value: float | None
    votes: int = 0
    flags: frozenset[str] = frozenset()
    error: str | None = None

    @classmethod
    def of(cls, values: Sequence[float | Failure | Unread]) -> Vote:
        """The mean of the samples that could be read."""
        read = [value for value in values if isinstance(value, float)]
        flags = {"unreadable"} if any(isinstance(value, Unread) for value in values) else set()
        if read:
            return cls(fmean(read), len(read), frozenset(flags))
        lost = [value for value in values if isinstance(value, Failure | Unread)]
        lost.sort(key=lambda value: isinstance(value, Unread))  # a failure says more
        return cls(None, 0, frozenset(flags | {"failed"}), lost[0].error)


class Panel:
    """Puts questions to a judge, each as often as it has samples, and reads what it says.

    Args:
        writer: the judge.
        form: how it is asked.
        read: how its verdict becomes a number; the format's way by default.
        samples: answers to each question.

    Attributes:
        calls: answers asked for so far.
    """

    def __init__(self, writer: Writer, form: Format, read: Read, samples: int) -> None:
        self.calls = 0
        self._writer, self._form, self._read, self._samples = writer, form, read, samples

    def texts(
        self, questions: Sequence[Question | Failure], progress: Progress | None = None
    ) -> list[list[str | Failure]]:
        """What the judge says to each question, one text a sample."""
        asked = [(q, k) for q in questions if isinstance(q, Question) for k in range(self._samples)]
        advance = rescaled(progress, max(1, len(questions) * self._samples), len(questions))
        self.calls += len(asked)
        if len(asked) < len(questions) * self._samples:
            advance(len(questions) * self._samples - len(asked))
        found = iter(self._writer.write([q for q, _ in asked], [q.seed(k) for q, k in asked], advance))
        return [[next(found) for _ in range(self._samples)] if isinstance(q, Question) else [q] for q in questions]

    def votes(self, questions: Sequence[Question | Failure], progress: Progress | None = None) -> list[Vote]:
        """The votes on each question."""
        if self._read == "verdict":
            return [Vote.of([self._verdict(text) for text in told]) for told in self.texts(questions, progress)]
        before = [[self._before(text) for text in told] for told in self._thoughts(questions, progress)]
        ready = [
            (question, text)
            for question, told in zip(questions, before, strict=True)
            for text in told
            if isinstance(question, Question) and isinstance(text, str)
        ]
        asked, said = [question for question, _ in ready], [text for _, text in ready]
        assert self._form.labels
        odds = iter(self._writer.log_odds(asked, said, self._form.labels) if ready else [])
        return [Vote.of([self._shaped(next(odds)) if isinstance(t, str) else t for t in told]) for told in before]

    def _thoughts(
        self, questions: Sequence[Question | Failure], progress: Progress | None
    ) -> Sequence[Sequence[str | Failure]]:
        """What the judge says before its verdict; nothing, where it writes none."""
        if self._form.max_new_tokens:
            return self.texts(questions, progress)
        self.calls += sum(isinstance(question, Question) for question in questions)
        if progress:
            progress(len(questions))
        return [[question if isinstance(question, Failure) else ""] for question in questions]

    def _verdict(self, text: str | Failure) -> float | Failure | Unread:
        if isinstance(text, Failure):
            return text
        found = self._form.verdict_in(text)
        return found[0] if found else Unread(text)

    def _before(self, text: str | Failure) -> str | Failure | Unread:
        if isinstance(text, Failure) or not self._form.max_new_tokens:
            return text
        found = self._form.verdict_in(text)
        return found[1] if found else Unread(text)

    def _shaped(self, odds: float | Failure) -> float | Failure:
        if isinstance(odds, Failure) or self._read == "log_odds":
            return odds
        return 1 / (1 + math.exp(-odds)) if odds > -700 else 0.0


def _asked(ask: Callable[..., Question], *conversations: Conversation) -> Question | Failure:
    try:
        return ask(*conversations)
    except ConversationError as error:
        return Failure(str(error))


class PairVotes:
    """Implements `PairJudge` by asking which of two answers is better."""

    def __init__(self, asker: Asker, panel: Panel) -> None:
        self._asker, self._panel = asker, panel

    def prefer(self, pairs: Sequence[Pair], progress: Progress | None = None) -> list[Preference]:
        """One preference a pair, in the order given."""
        questions = [_asked(self._asker.about, pair.first, pair.second) for pair in pairs]
        return [Preference(vote.value, vote.flags, vote.error) for vote in self._panel.votes(questions, progress)]


class Ratings:
    """Implements `RewardModel` by asking about one answer at a time.

    Ratings are in the format's own range, answers to yes-or-no questions in [0, 1], log-odds unbounded.
    """

    parts = ("votes",)

    def __init__(self, asker: Asker, panel: Panel) -> None:
        self._asker, self.panel = asker, panel

    def score(self, conversations: Sequence[Conversation], progress: Progress | None = None) -> list[Score]:
        """Scores in order; a verdict that could not be read is no value, flagged `unreadable`."""
        questions = [_asked(self._asker.about, conversation) for conversation in conversations]
        return [_score(vote) for vote in self.panel.votes(questions, progress)]


class Listwise:
    """Implements `RewardModel` by showing a judge all the different answers to a prompt, named and in JSON.

    The order in which they are shown is drawn from the prompt and the answers, so that it is the same in every run.
    """

    parts = ("votes",)
    relative = True

    def __init__(self, asker: Asker, panel: Panel, principle: str) -> None:
        self._asker, self.panel, self._principle = asker, panel, principle

    def score(self, conversations: Sequence[Conversation], progress: Progress | None = None) -> list[Score]:
        """Scores in order; equal answers to a prompt have equal ones."""
        groups = [self._shuffled(conversations, group) for group in by_prompt(conversations)]
        advance = rescaled(progress, len(groups), len(conversations))
        questions = [_asked(self._about, *(conversations[rows[0]] for rows in group)) for group in groups]
        scores: dict[int, Score] = {}
        for group, told in zip(groups, self.panel.texts(questions, advance), strict=True):
            named = [_ratings(text, len(group), self._asker.form) for text in told]
            for k, rows in enumerate(group):
                vote = Vote.of([each[k] if isinstance(each, list) else each for each in named])
                scores |= dict.fromkeys(rows, _score(vote))
        return [scores[row] for row in range(len(conversations))]

    def _shuffled(self, conversations: Sequence[Conversation], group: Sequence[Distinct]) -> list[Distinct]:
        ordered = sorted(group, key=lambda rows: repr(conversations[rows[0]].messages[-1]))
        seed = self._asker.question([turn for rows in ordered for turn in conversations[rows[0]].messages]).seed()
        random.Random(seed).shuffle(ordered)
        return ordered

    def _about(self, *answers: Conversation) -> Question:
        named = {f"model-{k}": conversation.answer for k, conversation in enumerate(answers, 1)}
        asked = {"principle": self._principle, "prompt": transcript(answers[0].messages[:-1]), "responses": named}
        return self._asker.question([{"role": "user", "content": json.dumps(asked, ensure_ascii=False)}])


def _ratings(text: str | Failure, count: int, form: Format) -> list[float] | Failure | Unread:
    """The rating of every answer, if the judge's turn ends in one JSON object that names them all."""
    if isinstance(text, Failure):
        return text
    said = strip_reasoning(text)
    start = said.answer.find("{")
    try:
        found = json.loads(said.answer[start:].strip().removesuffix("```")) if start >= 0 else None
        scores = found["scores"] if isinstance(found, Mapping) and not said.truncated else {}
        values = [float(scores[f"model-{k}"]) for k in range(1, count + 1)]
    except (ValueError, KeyError, TypeError):
        return Unread(text)
    low, high = form.range or (-math.inf, math.inf)
    whole = len(scores) == count and all(low <= value <= high for value in values)
    return values if whole else Unread(text)


def _score(vote: Vote) -> Score:
    return Score(vote.value, {"votes": float(vote.votes)}, flags=vote.flags, error=vote.error)
