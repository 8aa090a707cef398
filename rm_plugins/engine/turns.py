"""Who may use a backbone: one pass at a time, in eval mode, and it is left as it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock
from typing import Any
from weakref import WeakKeyDictionary

_locks: WeakKeyDictionary[Any, RLock] = WeakKeyDictionary()


@contextmanager
def evaluating(backbone: Any) -> Iterator[None]:
    """One pass at a time, because its attention is switched; in eval mode, whatever a trainer has left it in."""
    with _locks.setdefault(backbone, RLock()):
        training = backbone.training
        backbone.eval()
        try:
            yield
        finally:
            backbone.train(training)
