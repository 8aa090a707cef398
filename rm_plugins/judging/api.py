"""A judge behind a chat-completions API: OpenAI's, Gemini's, or that of any server that speaks it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from rm_plugins.errors import MissingExtraError, ScoringError
from rm_plugins.family import Progress
from rm_plugins.judging.asking import Question
from rm_plugins.remote.parallel import Failure, Limits, in_parallel

T = TypeVar("T")
_RETRIES = 5
_TOP = 20
"""Most alternatives that the API tells of a token."""


class ApiWriter:
    """Implements `Writer` with the openai client, which retries timeouts, 408, 409, 429 and 5xx with growing pauses.

    A call that fails all the same is a `Failure`, never a verdict. Calls are bounded by `limits`.

    Args:
        url: address of the API, up to and with its version.
        model: which model it shall run.
        key_variable: environment variable that holds the key; servers without keys need none.
        max_new_tokens: most tokens of an answer.
        temperature: of sampling.
        limits: how hard the server is asked.

    Raises:
        MissingExtraError: the openai package is missing.
    """

    def __init__(
        self,
        url: str,
        model: str,
        *,
        key_variable: str = "OPENAI_API_KEY",
        max_new_tokens: int,
        temperature: float,
        limits: Limits,
    ) -> None:
        try:
            from openai import OpenAI
        except ImportError as error:
            raise MissingExtraError(
                "A judge behind an API needs the openai package: pip install 'rm-plugins[judge]'"
            ) from error
        self._key = os.environ.get(key_variable) or "none"
        self._client: Any = OpenAI(base_url=url, api_key=self._key, max_retries=_RETRIES, timeout=limits.timeout)
        self._model, self._new, self._temperature = model, max_new_tokens, temperature
        self._limits = limits

    def write(
        self, questions: Sequence[Question], seeds: Sequence[int], progress: Progress | None = None
    ) -> list[str | Failure]:
        """Answers in order; one that the server withholds is empty."""

        def ask(row: int) -> str:
            sampling = {"seed": seeds[row] % 2**31} if self._temperature else {}
            reply = self._complete(questions[row], max_tokens=self._new, **sampling)
            return str(reply.choices[0].message.content or "")

        return self._all(ask, len(questions), progress)

    def log_odds(
        self, questions: Sequence[Question], before: Sequence[str], labels: tuple[str, str]
    ) -> list[float | Failure]:
        """From the alternatives to the first token; only for judges that write nothing before their verdict."""

        def ask(row: int) -> float:
            reply = self._complete(questions[row], max_tokens=1, logprobs=True, top_logprobs=_TOP)
            told = reply.choices[0].logprobs.content[0].top_logprobs
            known = {entry.token.strip(): entry.logprob for entry in reversed(told)}
            if lost := [label for label in labels if label not in known]:
                raise ScoringError(f"{lost[0]!r} is not among the {_TOP} likeliest first tokens of the judge's answer.")
            return float(known[labels[0]] - known[labels[1]])

        return self._all(ask, len(questions), None)

    def _complete(self, question: Question, **options: Any) -> Any:
        messages = [{"role": m["role"], "content": m.get("content") or ""} for m in question.messages]
        return self._client.chat.completions.create(
            model=self._model, messages=messages, temperature=self._temperature, **options
        )

    def _all(self, ask: Callable[[int], T], count: int, progress: Progress | None) -> list[T | Failure]:
        from openai import OpenAIError

        def attempt(row: int) -> T | Failure:
            try:
                return ask(row)
            except (OpenAIError, ScoringError, AttributeError, IndexError, TypeError) as error:
                return Failure(f"{type(error).__name__}: {error}".replace(self._key, "***")[:300])

        return in_parallel(attempt, count, self._limits, progress)
