"""Many calls at once: a bounded number of them, and failures that are neither lost nor values."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from rm_plugins.errors import OptionError, ScoringError
from rm_plugins.family import Progress

T = TypeVar("T")


@dataclass(frozen=True)
class Failure:
    """What has no answer, and why."""

    error: str


@dataclass(frozen=True)
class Limits:
    """How hard a server is asked, and how much of it may fail.

    Attributes:
        parallel: most calls at once.
        max_failed: highest share of the calls of one batch that may fail, in [0, 1].
        timeout: seconds until a call counts as failed.

    Raises:
        OptionError: a limit outside its range.
    """

    parallel: int = 8
    max_failed: float = 1.0
    timeout: float = 120.0

    def __post_init__(self) -> None:
        if type(self.parallel) is not int or self.parallel < 1:
            raise OptionError(f"parallel={self.parallel!r} must be a whole number of at least 1.")
        if not 0 <= self.max_failed <= 1:
            raise OptionError(f"max_failed={self.max_failed!r} must be a share between 0 and 1.")
        if not self.timeout > 0:
            raise OptionError(f"timeout={self.timeout!r} must be a number of seconds above 0.")


LIMITS = {
    "parallel": "most calls at once, 8 by default",
    "max_failed": "highest share of calls that may fail before scoring stops, in [0, 1]; 1 by default",
    "timeout": "seconds until a call counts as failed, 120 by default",
}
"""The options of families that ask servers."""


def in_parallel(
    ask: Callable[[int], T | Failure], count: int, limits: Limits, progress: Progress | None = None
) -> list[T | Failure]:
    """What `ask` returns for 0 to `count` - 1, in order.

    Args:
        ask: one call; it returns a `Failure` where there is no answer.
        count: how many calls.
        limits: how many at once, and how many may fail.
        progress: called with the number of calls finished since the last time.

    Raises:
        ScoringError: more calls failed than may.
    """

    def one(row: int) -> T | Failure:
        found = ask(row)
        if progress:
            progress(1)
        return found

    with ThreadPoolExecutor(limits.parallel) as pool:
        replies = list(pool.map(one, range(count)))
    failed = [reply for reply in replies if isinstance(reply, Failure)]
    if failed and len(failed) / count > limits.max_failed:
        raise ScoringError(
            f"{len(failed)} of {count} calls to the server failed, more than max_failed={limits.max_failed:g} allows. "
            f"The first: {failed[0].error}"
        )
    return replies
