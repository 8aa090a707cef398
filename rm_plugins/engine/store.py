"""Scores on disk, so that a second run costs nothing. One SQLite file; several processes may use it, and be killed."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

from rm_plugins.errors import OptionError
from rm_plugins.family import Score
from rm_plugins.text.encoder import Encoded

_SECONDS = 60.0
"""How long a process waits while another writes."""


@dataclass(frozen=True)
class ScoreStore:
    """Scores of one model under one set of choices.

    Attributes:
        path: SQLite file; created with its folder at first use. Many models may share it.
        model: all that the number depends on besides the token ids: files, record, dtype, options.

    Raises:
        OptionError: the file is no score store.
    """

    path: Path
    model: str

    def find(self, sequences: Sequence[Encoded]) -> dict[Encoded, Score]:
        """The scores that are known."""
        keys = {self._key(encoded): encoded for encoded in sequences}
        with self._open() as store:
            rows = (store.execute("SELECT key, score FROM scores WHERE key = ?", (key,)).fetchone() for key in keys)
            found = {keys[row[0]]: _read(row[1]) for row in rows if row}
        return {encoded: score for encoded, score in found.items() if score}

    def keep(self, scores: Mapping[Encoded, Score]) -> None:
        """Adds scores; those without a value are left out, so that they are tried again."""
        rows = [(self._key(e), _written(s)) for e, s in scores.items() if s.value is not None and isfinite(s.value)]
        with self._open() as store, store:  # one transaction: all of them or none
            store.executemany("INSERT OR REPLACE INTO scores VALUES (?, ?)", rows)

    def _key(self, encoded: Encoded) -> bytes:
        digest = hashlib.sha256(self.model.encode())
        for numbers in (encoded.ids, encoded.read_at):
            digest.update(len(numbers).to_bytes(8, "little") + array("q", numbers).tobytes())
        return digest.digest()

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with closing(sqlite3.connect(self.path, timeout=_SECONDS)) as store:
                store.execute("CREATE TABLE IF NOT EXISTS scores (key BLOB PRIMARY KEY, score TEXT) WITHOUT ROWID")
                yield store
        except (sqlite3.DatabaseError, OSError) as error:
            raise OptionError(f"cache={str(self.path)!r} cannot be used as a store of scores: {error}.") from error


def _written(score: Score) -> str:
    return json.dumps({"value": score.value, "parts": dict(score.parts), "steps": score.steps})


def _read(text: str) -> Score | None:
    """The score of a row; None if the row is damaged, so that it is computed again."""
    try:
        found = json.loads(text)
        return Score(float(found["value"]), found["parts"], found["steps"] and tuple(found["steps"]))
    except (ValueError, TypeError, KeyError):
        return None
