"""What was asked of `load_reward`, and what it turns out to be."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rm_plugins.catalog import catalog
from rm_plugins.errors import OptionError
from rm_plugins.records import Record
from rm_plugins.reward.resolve import Resolved, resolve

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RewardSpec:
    """What was asked of `load_reward`; it pickles, weights do not."""

    model: str
    family: str | None = None
    record: str | None = None
    revision: str | None = None
    dtype: str | None = None
    device: str | None = None
    attn_implementation: str | None = None
    max_length: int | None = None
    cache: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def resolve(self) -> Resolved:
        """Finds family, checkpoint and record, and lets the caller's choices override the record."""
        found = resolve(self.model, catalog(), family=self.family, record=self.record, revision=self.revision)
        found.family.check_options(self.options)
        idle = [name for name in ("revision", "dtype", "attn_implementation") if getattr(self, name) is not None]
        if idle and found.checkpoint is None:
            raise OptionError(f"{self.model!r} has no weights that run here, so {', '.join(idle)} would do nothing.")
        return found._replace(record=self._override(found.record)) if found.record else found

    def _override(self, record: Record) -> Record:
        asked, known = self.attn_implementation, record.attn_implementation
        if asked and known and asked != known:
            logger.warning("%s was published with attn_implementation=%r, not %r", record.id, known, asked)
        chosen = {"dtype": self.dtype, "attn_implementation": asked, "max_length": self.max_length}
        return record.model_copy(update={name: value for name, value in chosen.items() if value is not None})
