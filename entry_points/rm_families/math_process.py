"""math-verify in a process of its own: its time limits are alarms, which only a main thread has.

As a module it is asked by `MathProcess`; run with `-m` it answers one JSON line, [gold, answer], with another.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

_SECONDS = 30.0
"""Longest wait for a verdict; math-verify's own limits are shorter and should hold first."""
_PARSE, _VERIFY = 10, 5


class MathProcess:
    """Compares answers, one at a time, from any thread; starts its process at the first and again if it hangs."""

    def __init__(self, seconds: float = _SECONDS) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._reader = ThreadPoolExecutor(1)

    def compare(self, gold: str, answer: str) -> bool | str:
        """Whether the answer is the gold one; a sentence if that cannot be said."""
        with self._lock:
            process = self._process = self._process or self._start()
            assert process.stdin and process.stdout
            try:
                process.stdin.write(json.dumps([gold, answer]) + "\n")
                process.stdin.flush()
                line = self._reader.submit(process.stdout.readline).result(self._seconds)
            except (TimeoutError, OSError):
                line = ""
            if not line:
                process.kill()
                self._process = None
                return f"no verdict within {self._seconds:.0f} s"
            verdict: bool | str = json.loads(line)
            return verdict

    def _start(self) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "rm_families.math_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
        )
        weakref.finalize(self, process.kill)
        return process


def _verdict(gold: str, answer: str) -> bool | str:
    from math_verify import LatexExtractionConfig, parse, verify
    from math_verify.parser import NormalizationConfig

    expected = parse(gold, parsing_timeout=_PARSE)
    if not expected:
        return f"the solution {gold[:60]!r} is no mathematics that can be read"
    latex: Any = LatexExtractionConfig(
        normalization_config=NormalizationConfig(units=True),
        boxed_match_priority=0,
        try_extract_without_anchor=False,
    )
    found = parse(answer, extraction_config=[latex], extraction_mode="first_match", parsing_timeout=_PARSE)
    return bool(verify(expected, found, timeout_seconds=_VERIFY))


def main() -> None:
    """Answers until its input ends."""
    for line in sys.stdin:
        try:
            verdict = _verdict(*json.loads(line))
        except Exception as error:  # whatever hostile text does to the parser, the next row is to be judged
            verdict = f"math-verify failed with {type(error).__name__}: {error}"
        sys.stdout.write(json.dumps(verdict) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
