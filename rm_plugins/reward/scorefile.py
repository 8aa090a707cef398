"""Scores a JSONL file in fixed chunks, so that a run that was stopped and one that was not give the same file.

A chunk is scored together and appended in one write; the answers to one prompt are in one chunk if the model compares
them. On resuming, whole chunks that are in the result stay and anything
behind them is cut, so the chunks, and with them the batches, are the same as in one run.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect
from collections.abc import Iterator
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from rm_plugins.conversation import Conversation, from_trl
from rm_plugins.errors import ConversationError, OptionError, ScoringError
from rm_plugins.family import Score
from rm_plugins.process import this_process
from rm_plugins.reward.chunks import chunk_ends, group_ends
from rm_plugins.reward.function import RewardFunction

Row = Conversation | str
"""A conversation, or why its line cannot be scored."""


class ScoreFile:
    """Iterate over it to do the work; each step yields the number of rows finished.

    Args:
        source: JSONL with `messages`, or `prompt` and `completion`, per line.
        target: result, one line per line of the source, with `line`, `id` if the row has one, `score`, `parts`,
            `steps`, `flags` and, where a row has no score, `error`. Beside it `<target>.run.json` names the source,
            the model and the options.
        reward: loads its weights only if something is left to score.
        chunk: rows per write; more where a model compares the answers to a prompt.

    Raises:
        OptionError: the source is missing or empty, the target holds the result of another run, or answers that are to
            be compared do not stand together.
    """

    def __init__(self, source: Path, target: Path, reward: RewardFunction, *, chunk: int) -> None:
        if not source.is_file():
            raise OptionError(f"There is no file {source}.")
        if target.resolve() == source.resolve():
            raise OptionError(f"{target} is the file to score; choose another --out.")
        if not target.parent.is_dir():
            raise OptionError(f"There is no folder {target.parent} to write {target.name} in.")
        self._lines = [x for x in enumerate(source.read_bytes().split(b"\n"), 1) if x[1].strip()]
        if not self._lines:
            raise OptionError(f"{source} is empty; it needs one JSON object per line.")
        self._target, self._reward, self._chunk = target, reward, chunk
        state = this_process()
        self._process: int = state.process_index
        self._processes: int = state.num_processes
        self.total = len(self._lines)
        self._identity = self._describe(source)
        self._note = target.with_name(target.name + ".run.json")
        self.done = self._resume()

    def __iter__(self) -> Iterator[int]:
        while self.done < self.total:
            first = bisect(self._ends, self.done)
            ends = [self.done, *self._ends[first : first + self._processes]]
            chunks = [self._lines[start:end] for start, end in pairwise(ends)]
            results = self._score(chunks[0]) if self._processes == 1 else self._score_together(chunks)
            if self.is_main:
                self._write(results)
            self.done = ends[-1]
            yield ends[-1] - ends[0]

    @cached_property
    def _ends(self) -> list[int]:
        """Where chunks end. Whether the model compares answers is known once it is loaded."""
        if not getattr(self._reward.load(), "relative", False):
            return chunk_ends(self.total, self._chunk)
        rows = [parse_row(text) for _, text in self._lines]
        return group_ends([row if isinstance(row, Conversation) else None for row in rows], self._chunk)

    def _write(self, results: list[dict[str, Any]]) -> None:
        if not self._target.exists():  # only now: a run that never got this far leaves nothing behind
            self._note.write_text(json.dumps(self._identity, indent=2), encoding="utf-8")
        with self._target.open("a", encoding="utf-8") as file:
            file.write("".join(json.dumps(result) + "\n" for result in results))

    def _score_together(self, chunks: list[list[tuple[int, bytes]]]) -> list[dict[str, Any]]:
        """Under a launcher each process scores one chunk of the round; all get all results, in order."""
        from accelerate.utils import gather_object

        mine = chunks[self._process] if self._process < len(chunks) else []
        gathered: list[dict[str, Any]] = gather_object(self._score(mine) if mine else [])
        if len(gathered) != (count := sum(map(len, chunks))):
            raise ScoringError(f"{self._processes} processes gave {len(gathered)} results for {count} rows.")
        return gathered

    @property
    def is_main(self) -> bool:
        """Whether this process writes the file; under a launcher one does."""
        return self._process == 0

    def summary(self) -> dict[str, Any]:
        """Counts of the finished file, its mean score, and the errors of rows without one."""
        rows = [json.loads(line) for line in self._target.read_bytes().splitlines()]
        values = [row["score"] for row in rows if row["score"] is not None]
        return {
            "file": str(self._target),
            "rows": len(rows),
            "scored": len(values),
            "mean": sum(values) / len(values) if values else None,
            "truncated": sum("truncated" in row["flags"] for row in rows),
            "control_tokens": sum("control_tokens" in row["flags"] for row in rows),
            "errors": [f"line {row['line']}: {row['error']}" for row in rows if row["error"]],
        }

    def _describe(self, source: Path) -> dict[str, Any]:
        spec, record = self._reward.spec, self._reward.record
        return {
            "source_sha256": hashlib.sha256(source.read_bytes()).hexdigest(),
            "model": spec.model,
            "family": self._reward.family,
            "fingerprint": self._reward.fingerprint(),
            "record": record.model_dump(mode="json") if record else None,
            "options": dict(spec.options),
            "chunk": self._chunk,
        }

    def _resume(self) -> int:
        if not self._target.exists():
            return 0
        if not self._note.is_file():
            raise OptionError(
                f"{self._target} has no {self._note.name} beside it, so it cannot be continued; "
                "remove it or choose --out."
            )
        before = json.loads(self._note.read_text(encoding="utf-8"))
        if changed := [key for key in self._identity if before.get(key) != self._identity[key]]:
            raise OptionError(
                f"{self._target} was made by another run ({', '.join(changed)} differ); remove it or choose --out."
            )
        lines = self._target.read_bytes().splitlines(keepends=True)
        whole = [line for line in lines if line.endswith(b"\n")]
        for (number, _), line in zip(self._lines, whole, strict=False):
            if (found := json.loads(line)["line"]) != number:
                raise OptionError(f"{self._target} has line {found} where {number} belongs; remove it or choose --out.")
        kept = len(whole)
        if kept < self.total:
            kept = max((end for end in self._ends if end <= len(whole)), default=0)
        if kept < len(lines):
            with self._target.open("r+b") as file:
                file.truncate(sum(map(len, lines[:kept])))
        return kept

    def _score(self, lines: list[tuple[int, bytes]]) -> list[dict[str, Any]]:
        rows = [parse_row(text) for _, text in lines]
        good = [row for row in rows if isinstance(row, Conversation)]
        scores = iter(self._reward.score(good) if good else [])
        return [
            _result(number, row, Score(None, error=row) if isinstance(row, str) else next(scores))
            for (number, _), row in zip(lines, rows, strict=True)
        ]


def parse_row(line: bytes) -> Row:
    """The conversation of a line of the source, or why there is none."""
    try:
        row = json.loads(line.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:  # JSON, UTF-8, or brackets without end
        return f"not JSON: {error}"
    if not isinstance(row, dict):
        return f"expected an object, found {type(row).__name__}"
    try:
        if "messages" in row:
            return Conversation(tuple(row["messages"]), row)
        if "prompt" in row and "completion" in row:
            return Conversation(from_trl([row["prompt"]], [row["completion"]])[0].messages, row)
    except (ConversationError, TypeError) as error:
        return str(error)
    return f"needs 'messages', or 'prompt' and 'completion'; it has {', '.join(sorted(row)) or 'nothing'}"


def _result(number: int, row: Row, score: Score) -> dict[str, Any]:
    named = {"id": row.columns["id"]} if isinstance(row, Conversation) and "id" in row.columns else {}
    return {
        "line": number,
        **named,
        "score": score.value,
        "parts": dict(score.parts),
        "steps": score.steps,
        "flags": sorted(score.flags),
        "error": score.error,
    }
