"""JSON over HTTP to one server: retries what may pass, and never takes a failure for a value."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from rm_plugins.errors import MissingExtraError, ScoringError
from rm_plugins.family import Progress
from rm_plugins.remote.parallel import Failure, Limits, in_parallel

_PASSING = (408, 429, 500, 502, 503, 504)
"""Answers that a second try may change."""
_TRIES, _PAUSE = 5, 0.2


class Client:
    """Posts to one server over kept connections.

    Connection errors, timeouts and answers 408, 429 and 5xx are tried again, up to five times with growing pauses or as
    long as the server says; other answers are final.

    Args:
        url: address of the server.
        limits: how hard it is asked.

    Raises:
        MissingExtraError: the urllib3 package is missing.
    """

    def __init__(self, url: str, limits: Limits) -> None:
        try:
            from urllib3 import PoolManager, Retry
        except ImportError as error:
            raise MissingExtraError(
                "A served reward model needs the urllib3 package: pip install 'rm-plugins[remote]'"
            ) from error
        again = Retry(
            _TRIES, status_forcelist=_PASSING, allowed_methods=None, backoff_factor=_PAUSE, backoff_jitter=0.1
        )
        self._pool: Any = PoolManager(maxsize=limits.parallel, block=True, retries=again, timeout=limits.timeout)
        self._url, self._limits = url.rstrip("/"), limits

    def get(self, path: str) -> Any:
        """The JSON at a path.

        Raises:
            ScoringError: the server is not there, or does not answer with JSON.
        """
        found = self._ask("GET", path)
        if isinstance(found, Failure):
            raise ScoringError(f"{self._url}{path}: {found.error}")
        return found

    def post(self, path: str, bodies: Sequence[Any], progress: Progress | None = None) -> list[Any | Failure]:
        """The JSON that each body is answered with, in order.

        Raises:
            ScoringError: more calls failed than the limits allow.
        """
        return in_parallel(lambda row: self._ask("POST", path, bodies[row]), len(bodies), self._limits, progress)

    def _ask(self, method: str, path: str, body: Any = None) -> Any | Failure:
        from urllib3.exceptions import HTTPError

        try:
            reply = self._pool.request(method, self._url + path, **({} if body is None else {"json": body}))
            if reply.status != 200:
                return Failure(f"the server answered {reply.status}: {reply.data[:200].decode(errors='replace')}")
            return json.loads(reply.data)
        except HTTPError as error:
            return Failure(f"{type(error).__name__}: {error}"[:300])
        except ValueError:
            return Failure("the server's answer is no JSON")
