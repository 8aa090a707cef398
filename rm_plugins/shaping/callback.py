"""Ties shaping to a trainer: what it should know of it, and its state beside the trainer's checkpoints."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from rm_plugins.errors import CheckpointError
from rm_plugins.shaping.shaper import Trainer

if TYPE_CHECKING:
    from rm_plugins.shaping.shaper import Shaper

FILE = "rm_plugins_state.json"


class ShapingCallback(TrainerCallback):  # type: ignore[misc]
    """Pass it in the trainer's `callbacks`.

    It saves what the steps have learnt as `rm_plugins_state.json` in each checkpoint and reads it on resuming, so that
    a run that was killed goes on with the rewards that it would have had. It tells training from evaluation, in which
    nothing is learnt.

    Args:
        shapers: the steps of a reward and of those that it is made of, by names that tell them apart.
        resume_from: checkpoint folder to read, where that is not one of the trainer's own `output_dir`.
    """

    def __init__(self, shapers: Mapping[str, Shaper], resume_from: str | os.PathLike[str] | None = None) -> None:
        self.shapers = dict(shapers)
        self._resume_from = Path(resume_from) if resume_from is not None else None

    def on_train_begin(self, args: Any, state: Any, control: Any, **trainer: Any) -> None:
        """Learns of the trainer, and takes the state back if it resumes.

        Raises:
            CheckpointError: the checkpoint has no state of this reward.
        """
        self._attach(args, trainer)
        if self._resume_from is not None or state.global_step:
            folder = self._resume_from or _folder(args, state)
            for name, shaper in self.shapers.items():
                shaper.load_state_dict(_saved(folder, name))

    def on_init_end(self, args: Any, state: Any, control: Any, **trainer: Any) -> None:
        """Learns of the trainer, for one that only evaluates."""
        self._attach(args, trainer)

    def on_save(self, args: Any, state: Any, control: Any, **trainer: Any) -> None:
        """Writes the state; other rewards of the trainer keep theirs in the same file."""
        if not state.is_world_process_zero:
            return
        path = _folder(args, state) / FILE
        path.parent.mkdir(parents=True, exist_ok=True)
        known = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        new = path.with_suffix(".new")
        own = {name: shaper.state_dict() for name, shaper in self.shapers.items()}
        text = json.dumps(known | own, indent=1)
        new.write_text(text, encoding="utf-8")
        os.replace(new, path)  # a kill leaves the old file or the new one

    def _attach(self, args: Any, trainer: dict[str, Any]) -> None:
        tokenizer = trainer.get("processing_class")
        tokenizer = getattr(tokenizer, "tokenizer", tokenizer)  # of a processor
        eos = getattr(tokenizer, "eos_token_id", None)
        for name, shaper in self.shapers.items():
            shaper.trainer = Trainer(
                model=trainer.get("model"),
                scale="" if " > " in name else _scale(args),  # a part is combined before the trainer scales
                max_length=getattr(args, "max_completion_length", None),
                eos=frozenset() if eos is None else frozenset([eos]),
            )


def _saved(folder: Path, name: str) -> Any:
    path = folder / FILE
    try:
        return json.loads(path.read_text(encoding="utf-8"))[name]
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(
            f"{path} has no state of {name}; resume from a checkpoint that this reward's callback was in, or name one: "
            "callback(resume_from=...)."
        ) from error


def _folder(args: Any, state: Any) -> Path:
    return Path(args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"


def _scale(args: Any) -> str:
    """How a trainer scales rewards; "" for one that is not known to."""
    if not hasattr(args, "num_generations"):
        return ""
    asked = getattr(args, "scale_rewards", "none")  # RLOO subtracts a baseline and scales nothing
    return ("group" if asked else "none") if isinstance(asked, bool) else str(asked)
