"""The callable that TRL's trainers take as a reward."""

from __future__ import annotations

import hashlib
import json
import math
import os
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

from rm_plugins import __version__
from rm_plugins.checkpoint import Checkpoint
from rm_plugins.conversation import Conversation, Message, Turns, from_trl
from rm_plugins.errors import OptionError, ScoringError
from rm_plugins.family import Explanation, LoadSpec, Progress, RewardModel, Score
from rm_plugins.records import Record
from rm_plugins.reward.metrics import summarize
from rm_plugins.reward.spec import RewardSpec
from rm_plugins.reward.together import score_together

if TYPE_CHECKING:
    import torch

    from rm_plugins.shaping.callback import ShapingCallback
    from rm_plugins.shaping.shaper import Shaper
    from rm_plugins.shaping.step import Step

OnFailure: TypeAlias = Literal["none", "raise"] | float


class RewardFunction:
    """A reward model as a TRL reward: pass it in `reward_funcs`.

    It pickles by its spec; the copy loads its weights at first use. `__name__` names family and model, so two rewards
    of one family log apart.
    """

    def __init__(self, spec: RewardSpec, *, on_failure: OnFailure = "none", shaping: Sequence[Step] = ()) -> None:
        if not (on_failure in ("none", "raise") or (isinstance(on_failure, int | float) and math.isfinite(on_failure))):
            raise OptionError(f"on_failure={on_failure!r} must be 'none', 'raise' or a finite number.")
        self.spec = spec
        self.on_failure = on_failure
        self._resolved = spec.resolve()
        name = self._resolved.record.id if self._resolved.record else self._resolved.target
        short = "/".join(name.strip("/").split("/")[-2:])  # two parts: checkpoint-500 alone names no model
        self.__name__ = f"{self.family}/{short}" if short else self.family
        self._model: RewardModel | None = None
        self._lock = threading.Lock()
        self._shaper: Shaper | None = None
        if shaping:
            from rm_plugins.shaping.shaper import Shaper

            self._shaper = Shaper(shaping, self.__name__)

    @property
    def family(self) -> str:
        """Name of the family."""
        return self._resolved.family.name

    @property
    def record(self) -> Record | None:
        """Facts in force: the record's or the derived ones, with the caller's choices."""
        return self._resolved.record

    @property
    def checkpoint(self) -> Checkpoint | None:
        """What was opened; None for a family that takes a bare target."""
        return self._resolved.checkpoint

    def fingerprint(self) -> str:
        """Changes with the files of the checkpoint or, for a family that has none, with the code of its module."""
        if self.checkpoint:
            return self.checkpoint.fingerprint()
        load = self._resolved.family.load
        module = sys.modules[getattr(load, "__module__", type(load).__module__)]
        return hashlib.sha256(Path(module.__file__ or "").read_bytes()).hexdigest()

    def load(self) -> RewardModel:
        """The loaded model; loads it at first use."""
        with self._lock:
            if self._model is None:
                found = self._resolved
                spec = LoadSpec(
                    target=found.target,
                    checkpoint=found.checkpoint,
                    record=found.record,
                    device=self.spec.device,
                    max_length=self.spec.max_length,
                    options=self.spec.options,
                )
                self._model = found.family.load(spec)
                if self.spec.cache:
                    self._model = self._with_store(self._model, Path(self.spec.cache))
            return self._model

    def _with_store(self, model: RewardModel, path: Path) -> RewardModel:
        from rm_plugins.engine.local import EncodingModel
        from rm_plugins.engine.store import ScoreStore

        if not isinstance(model, EncodingModel):
            raise OptionError(f"Family {self.family!r} runs no model here, so cache= has nothing to keep.")
        record = self.record.model_dump_json() if self.record else ""
        options = json.dumps(self.spec.options, sort_keys=True, default=repr)
        files = self.fingerprint() + model.depends_on
        model.store = ScoreStore(path, "\n".join([__version__, self.family, files, record, options]))
        return model

    def __call__(
        self,
        prompts: Sequence[Turns],
        completions: Sequence[Turns],
        completion_ids: Sequence[Sequence[int]] | None = None,
        **columns: Any,
    ) -> list[float | None]:
        """Scores completions for a trainer.

        Args:
            prompts: strings or message lists, one per completion.
            completions: strings or message lists.
            completion_ids: policy token ids, used for lengths only; the reward model reads text.
            columns: data-set columns and TRL's own arguments (`trainer_state`, `log_metric`, ...).

        Returns:
            One reward per completion, shaped if it has steps, in order, higher is better; None where it could not be
            computed.

        Raises:
            ConversationError: unequal counts or rows of a wrong form.
            ScoringError: a reward is missing and `on_failure` or the trainer does not allow None.
        """
        log_metric: Callable[[str, float], None] | None = columns.get("log_metric")
        conversations = from_trl(prompts, completions, columns)
        # A trainer calls on every process at once; only then may they wait for each other.
        relative = "trainer_state" in columns and getattr(self.load(), "relative", False)
        scores = score_together(self.score, conversations) if relative else self.score(conversations)
        if log_metric is not None:
            if completion_ids is None:  # characters; a row that is not text was not scored, and does not count
                lengths = [0 if s.value is None else len(c.answer) for s, c in zip(scores, conversations, strict=True)]
            else:
                lengths = [len(ids) for ids in completion_ids]
            for name, value in summarize(scores, lengths, getattr(self.load(), "parts", ())).items():
                log_metric(f"{self.__name__}/{name}", value)
        scores = self.shaped(scores, conversations, completion_ids, "trainer_state" in columns, log_metric)
        # Online DPO passes trainer_state and no log_metric; it adds up None as 0, which would be a made-up reward.
        knows_none = log_metric is not None or "trainer_state" not in columns
        return [self._value(score, row, knows_none) for row, score in enumerate(scores)]

    def score(
        self, conversations: Sequence[Conversation | Sequence[Message]], progress: Progress | None = None
    ) -> list[Score]:
        """Raw scores, before `on_failure`, one per conversation and in order.

        Raises:
            ConversationError: no conversations, or one that does not end with an assistant turn.
            ScoringError: the family returned another number of scores.
        """
        rows = [Conversation.of(conversation) for conversation in conversations]
        if not rows:
            from_trl([], [])
        scores = self.load().score(rows, progress)
        if len(scores) != len(rows):
            raise ScoringError(
                f"Reward family {self.family!r} returned {len(scores)} scores for {len(rows)} conversations; "
                "it must return exactly one each."
            )
        for score in scores:
            if not isinstance(score, Score):
                raise ScoringError(f"Reward family {self.family!r} returned a {type(score).__name__}, not a Score.")
        return [_finite(score) for score in scores]

    def shaped(
        self,
        scores: Sequence[Score],
        conversations: Sequence[Conversation],
        completion_ids: Sequence[Sequence[int]] | None = None,
        in_trainer: bool = False,
        log: Callable[[str, float], None] | None = None,
    ) -> list[Score]:
        """The scores with their values behind the steps of shaping; see `Shaper.run`."""
        if self._shaper is None:
            return list(scores)
        from rm_plugins.shaping.batch import Rows

        rows = Rows(
            conversations,
            completion_ids,
            self.count_tokens,
            lambda others: [score.value for score in self.score(others)],
        )
        values = self._shaper.run([score.value for score in scores], rows, in_trainer=in_trainer, log=log)
        lost = "shaping gave no reward"
        return [
            replace(score, value=value, error=score.error or (lost if value is None else None))
            for score, value in zip(scores, values, strict=True)
        ]

    def count_tokens(self, text: str) -> int:
        """Tokens of a text in the reward model's own tokenizer.

        Raises:
            OptionError: the family has none.
        """
        tokenizer = getattr(getattr(self.load(), "encoder", None), "tokenizer", None)
        if tokenizer is None:
            raise OptionError(f"Family {self.family!r} has no tokenizer to count tokens with; use characters.")
        return len(tokenizer(text, add_special_tokens=False)["input_ids"])

    def callback(self, resume_from: str | os.PathLike[str] | None = None) -> ShapingCallback:
        """For the trainer's `callbacks`: keeps the state of shaping beside its checkpoints; see `ShapingCallback`.

        Raises:
            OptionError: the reward has no shaping.
        """
        from rm_plugins.shaping.callback import ShapingCallback

        if self._shaper is None:
            raise OptionError(f"{self.__name__} has no shaping (load_reward(shaping=)), so no state to keep.")
        return ShapingCallback(self.shapers(), resume_from)

    def shapers(self) -> dict[str, Shaper]:
        """The steps of its shaping by its name; empty without any."""
        return {self.__name__: self._shaper} if self._shaper else {}

    def explain(self, conversation: Conversation | Sequence[Message]) -> Explanation:
        """What the reward model will see of a conversation."""
        model = self.load()
        if not hasattr(model, "explain"):
            raise OptionError(f"Family {self.family!r} writes no text of one conversation alone that could be shown.")
        explanation: Explanation = model.explain(Conversation.of(conversation))
        return explanation

    def ppo_module(self, processing_class: Any, dataset: Any = None) -> torch.nn.Module:
        """The reward as the module that TRL's PPOTrainer (trl 1.12 and earlier) takes as `reward_model`.

        Args:
            processing_class: the policy's tokenizer.
            dataset: the training data set with `input_ids` and `prompt` or `messages`: prompts are then recovered
                exactly. Without it the policy's chat template is inverted.

        Shaping applies too. PPO does not say which of its calls are for the samples that it shows, so running
        statistics count those as well; `num_sample_generations=0` makes none.
        """
        from rm_plugins.reward.ppo import PPORewardModule

        return PPORewardModule(self, processing_class, dataset)

    def value(self, score: Score, row: int = 0) -> float:
        """The reward of a score for a caller that knows no None: the value, or the number in `on_failure`."""
        return cast("float", self._value(score, row, knows_none=False))

    def _value(self, score: Score, row: int, knows_none: bool) -> float | None:
        if score.value is not None:
            return score.value
        if isinstance(self.on_failure, int | float):
            return float(self.on_failure)
        if self.on_failure == "raise" or not knows_none:
            hint = "" if self.on_failure == "raise" else " This trainer knows no None: pass on_failure=<a number>."
            raise ScoringError(f"{self.__name__} has no reward for row {row}: {score.error or 'unknown cause'}.{hint}")
        return None

    def __getstate__(self) -> dict[str, Any]:
        steps = self._shaper.steps if self._shaper else []
        return {"spec": self.spec, "on_failure": self.on_failure, "shaping": steps}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def __repr__(self) -> str:
        return f"RewardFunction({self.spec.model!r}, family={self.family!r})"


def _finite(score: Score) -> Score:
    if score.value is None or math.isfinite(score.value):
        return score
    return replace(score, value=None, flags=score.flags | {"non_finite"}, error=f"the model returned {score.value}")
