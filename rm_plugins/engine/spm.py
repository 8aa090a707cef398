"""A fast tokenizer from a SentencePiece model, for checkpoints whose own tokenizer class is remote code."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rm_plugins.engine.quiet import quiet_transformers
from rm_plugins.errors import CheckpointError, MissingExtraError, TextError

if TYPE_CHECKING:
    from rm_plugins.checkpoint import Checkpoint

_MODEL = "tokenizer.model"
_PROBE = "A  quick\n\n\tfox: 12.5% of é, 中文, 🦊 and <b>; if x == 1:\n    return  "
"""Text in which tokenizers that were built wrongly differ: runs of spaces, line breaks, digits, other scripts."""


def load_spm_tokenizer(checkpoint: Checkpoint) -> Any:
    """The checkpoint's `tokenizer.json`, or what transformers builds from its `tokenizer.model`, checked against it.

    Raises:
        MissingExtraError: sentencepiece is not installed, and there is only `tokenizer.model`.
        CheckpointError: there is no tokenizer that loads.
        TextError: the built tokenizer and SentencePiece disagree on a probe.
    """
    from transformers import PreTrainedTokenizerFast
    from transformers.utils import is_protobuf_available, is_sentencepiece_available

    model = checkpoint.folder / _MODEL
    built = model.exists() and not (checkpoint.folder / "tokenizer.json").exists()
    if built and not (is_sentencepiece_available() and is_protobuf_available()):
        raise MissingExtraError(
            f"{checkpoint.name} has only {_MODEL}. Install what reads it: pip install 'rm-plugins[sentencepiece]'"
        )
    try:
        with quiet_transformers():
            tokenizer = PreTrainedTokenizerFast.from_pretrained(checkpoint.folder)
    except (OSError, ValueError, TypeError) as error:
        raise CheckpointError(f"{checkpoint.name} has no tokenizer that loads: {error}") from error
    if built:
        _check(tokenizer, model)
    return tokenizer


def _check(tokenizer: Any, model: Path) -> None:
    from sentencepiece import SentencePieceProcessor

    ours = tokenizer(_PROBE, add_special_tokens=False)["input_ids"]
    theirs = SentencePieceProcessor(model_file=str(model)).encode(_PROBE)
    if ours != theirs:
        raise TextError(f"The tokenizer built from {model} gives {ours} for {_PROBE!r}; SentencePiece gives {theirs}.")
