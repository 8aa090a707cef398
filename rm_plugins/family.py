"""What a family is: a name, how it recognises a checkpoint, and how it loads one into a reward model."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, get_args, runtime_checkable

from rm_plugins.conversation import Conversation
from rm_plugins.errors import HeadError, OptionError, WrongFamilyError

if TYPE_CHECKING:
    from rm_plugins.checkpoint import Checkpoint
    from rm_plugins.records import Record

Kind: TypeAlias = Literal[
    "pointwise", "attributes", "implicit", "process", "pairwise", "listwise", "generative", "rule", "remote"
]
Progress: TypeAlias = Callable[[int], None]
"""Called with the number of conversations finished since the last call."""


@dataclass(frozen=True)
class Score:
    """A reward before shaping.

    Attributes:
        value: raw reward in the family's own unit, higher is better; None if it could not be computed.
        parts: named outputs of models that have several.
        steps: one score per reasoning step, for process models.
        flags: what the reader should know: `truncated`, `empty`, `control_tokens`, `system_merged`, `failed`, ...
        error: why `value` is None.
    """

    value: float | None
    parts: Mapping[str, float] = field(default_factory=dict)
    steps: tuple[float | None, ...] | None = None
    flags: frozenset[str] = frozenset()
    error: str | None = None


@dataclass(frozen=True)
class Explanation:
    """What the reward model will see of one conversation.

    Attributes:
        text: rendered text, as the model's tokenizer reads it.
        ids: token ids fed to the model.
        tokens: one printable string per id.
        read_at: positions in `ids` whose hidden state goes to the head.
        flags: as in `Score`.
        notes: one sentence per choice that was made on the way.
    """

    text: str
    ids: tuple[int, ...]
    tokens: tuple[str, ...]
    read_at: tuple[int, ...]
    flags: frozenset[str]
    notes: tuple[str, ...] = ()


@runtime_checkable
class RewardModel(Protocol):
    """A loaded reward model.

    Optional: `explain(conversation) -> Explanation`; `parts`, the names of the parts that its scores always have; and
    `relative`, True where a score depends on the other answers to the same prompt, which are then scored together.
    """

    def score(self, conversations: Sequence[Conversation], progress: Progress | None = None) -> list[Score]:
        """Scores every conversation, in order, exactly one `Score` each."""


@dataclass(frozen=True)
class Fit:
    """Whether a family can read a checkpoint, and why."""

    ok: bool
    why: str


@dataclass(frozen=True)
class LoadSpec:
    """All that a family needs to load a model.

    Attributes:
        target: what the user named, without the family prefix; the address of a server begins with http.
        checkpoint: the opened checkpoint; None for a bare target and for a server.
        record: what is known or was derived of the model; without a checkpoint only if the user named the model.
        device: torch device string, "auto" for a device map, None to choose.
        options: the family options the user gave, all of them declared by the family.
    """

    target: str
    checkpoint: Checkpoint | None = None
    record: Record | None = None
    device: str | None = None
    max_length: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def knowing(self, **facts: Any) -> LoadSpec:
        """The same with more facts in its record, for what a family reads from the checkpoint itself."""
        return replace(self, record=self.record and self.record.model_copy(update=facts))

    def fitting(self, family: str, fits: Callable[[Checkpoint], Fit]) -> Checkpoint:
        """The checkpoint, if the family reads it.

        Raises:
            HeadError: there is no checkpoint, or it has no head at all.
            WrongFamilyError: its tensors are another family's.
        """
        if self.checkpoint is None:
            raise HeadError(f"Family {family!r} runs a model's weights here, and {self.target!r} has none.")
        if not isinstance(fit := fits(self.checkpoint), Fit):
            raise TypeError(f"fits of family {family!r} must return a Fit, not a {type(fit).__name__}.")
        if not fit.ok:
            made_for = f" (made for {self.checkpoint.architecture})" if self.checkpoint.architecture else ""
            error = WrongFamilyError if self.checkpoint.heads() else HeadError
            raise error(f"Family {family!r} does not read {self.checkpoint.name}{made_for}: {fit.why}.")
        return self.checkpoint


def _never(checkpoint: Checkpoint) -> Fit:
    return Fit(False, "this family does not read checkpoints")


def named_only(checkpoint: Checkpoint) -> Fit:
    """The `fits` of families of plain language models: nothing in the files says that one was trained to judge."""
    return Fit(False, "any language model could be one; family= or record= says that it is")


def is_language_model(checkpoint: Checkpoint) -> Fit:
    """Fits a causal language model, or an adapter of one, with no head beside its vocabulary's."""
    if heads := sorted(checkpoint.heads()):
        return Fit(False, f"it reads a language model, and {', '.join(heads)} would not be read")
    if checkpoint.architecture and not checkpoint.architecture.endswith(("ForCausalLM", "LMHeadModel")):
        return Fit(False, "it reads a causal language model")
    return Fit(True, "it is a causal language model")


LOCAL_OPTIONS = {
    "text": "card (the model card's text) or rewardbench (what RewardBench writes, where it differs)",
    "bos": "BOS policy: keep, strip_prefix, strip_all, none, template",
    "eos": "end of the text: template, or append for exactly one end-of-sequence token",
    "pooling": "token to read: last, last_non_pad (the stock rule), before_first_pad",
    "system": "system turns: template, merge, drop, error",
    "reasoning": "<think> blocks in the answer: keep, strip",
    "max_tokens_in_flight": "most tokens in one forward pass; by default what suits the device",
}
"""Options of every family that writes conversations as text for a model that runs here."""

_NAME = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True)
class Family:
    """A kind of reward model.

    Attributes:
        name: lower-case identifier; the entry point and the module carry the same name.
        summary: one line, shown by `rm-plugins list`.
        kind: what its scores mean; see `Kind`.
        load: builds the reward model; heavy imports belong inside it.
        fits: looks at a checkpoint's config and tensor names and says whether this family reads it, and why.
        options: options of `load_reward` that the family understands, with one line of help each.
        requires: extras of rm-plugins that it needs.
    """

    name: str
    summary: str
    kind: Kind
    load: Callable[[LoadSpec], RewardModel]
    fits: Callable[[Checkpoint], Fit] = _never
    options: Mapping[str, str] = field(default_factory=dict)
    requires: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"Family name {self.name!r} must be lower-case letters, digits and underscores.")
        if self.kind not in get_args(Kind):
            raise ValueError(f"Family {self.name!r} has kind {self.kind!r}; choose one of {', '.join(get_args(Kind))}.")
        if not callable(self.load):
            raise TypeError(f"Family {self.name!r} has load={self.load!r:.60}; it must be a function of a LoadSpec.")

    @property
    def reads_checkpoints(self) -> bool:
        """Whether it loads model folders, rather than bare targets."""
        return self.fits is not _never

    def check_options(self, given: Mapping[str, Any]) -> None:
        """Refuses options the family did not declare, and lists those it did."""
        if unknown := sorted(set(given) - set(self.options)):
            known = ", ".join(sorted(self.options)) or "none"
            raise OptionError(f"Family {self.name!r} has no option {', '.join(unknown)}. Its options: {known}.")
