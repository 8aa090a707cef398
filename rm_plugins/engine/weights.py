"""Loads a stock transformers backbone and proves that every weight came from the checkpoint."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from torch import Tensor

from rm_plugins.checkpoint import Checkpoint, bare_name, weight_files
from rm_plugins.engine.placing import placement, torch_dtype, unsharded
from rm_plugins.engine.quiet import quiet_transformers
from rm_plugins.errors import CheckpointError, HeadError, MissingExtraError
from rm_plugins.family import LoadSpec
from rm_plugins.records import Record

_UNUSED = re.compile(r"^lm_head\.|(^|\.)inv_freq$|\.masked_bias$|\.attn\.bias$")
"""What a backbone may leave out: the vocabulary projection of a language model, and buffers it computes itself."""


def read_tensors(checkpoint: Checkpoint, names: set[str]) -> dict[str, Tensor]:
    """Reads tensors by their bare names straight from the safetensors files, in float32."""
    return {name: tensor.float() for name, tensor in stored_tensors(checkpoint, names.__contains__)}


def stored_tensors(checkpoint: Checkpoint, wanted: Callable[[str], bool]) -> Iterator[tuple[str, Tensor]]:
    """Bare name and tensor, in the dtype of the safetensors files, one by one; the rest of the files is not read."""
    from safetensors import safe_open

    folder = checkpoint.with_weights()
    for name in weight_files(folder):
        with safe_open(folder / name, framework="pt") as file:
            for key in file.keys():  # noqa: SIM118  (safe_open is not a mapping)
                if wanted(bare_name(key)):
                    yield bare_name(key), file.get_tensor(key)


def load_classifier(auto_class: Any, spec: LoadSpec, base: Checkpoint, width: int, head: str) -> Any:
    """Loads a stock model with a head of the given width and refuses any weight the checkpoint did not give.

    The live head of an adapter's base is random here; families read the head tensor from the file themselves.

    Args:
        auto_class: transformers class to load with.
        spec: what to load; an adapter's layers are put on its base.
        base: the checkpoint that holds the backbone.
        width: outputs of the head.
        head: bare name of the head's weight, which may come from elsewhere.
    """
    model = _load(auto_class, spec, base, {head}, num_labels=width)
    return put_adapter(model, spec.checkpoint) if spec.checkpoint and spec.checkpoint.adapter else model


def load_backbone(
    spec: LoadSpec, heads: Iterable[str], key_mapping: Mapping[str, str] | None = None, **config: Any
) -> Any:
    """Loads a stock backbone without a head and refuses any weight it lacks, or leaves out beside the heads.

    Args:
        spec: what to load.
        heads: names of the tensors that the family reads itself.
        key_mapping: patterns of tensor names -> what transformers calls them.
        config: settings that override the checkpoint's.
    """
    from transformers import AutoModel

    assert spec.checkpoint
    return _load(AutoModel, spec, spec.checkpoint, set(heads), key_mapping=dict(key_mapping or {}), **config)


def load_language_model(spec: LoadSpec, key_mapping: Mapping[str, str] | None = None) -> Any:
    """Loads a causal language model, an adapter's layers on its base included, and refuses any weight it lacks.

    Args:
        spec: what to load.
        key_mapping: patterns of tensor names -> what transformers calls them.
    """
    from transformers import AutoModelForCausalLM

    assert spec.checkpoint
    base = spec.checkpoint.base()
    model = _load(AutoModelForCausalLM, spec, base, set(), key_mapping=dict(key_mapping or {}))
    return put_adapter(model, spec.checkpoint) if spec.checkpoint.adapter else model


def load_seq2seq(spec: LoadSpec) -> Any:
    """Loads an encoder-decoder with its vocabulary's head and refuses any weight it lacks."""
    from transformers import AutoModelForSeq2SeqLM

    assert spec.checkpoint
    return _load(AutoModelForSeq2SeqLM, spec, spec.checkpoint, set())


def _load(auto_class: Any, spec: LoadSpec, base: Checkpoint, heads: set[str], **more: Any) -> Any:
    record = spec.record or Record(id=spec.target)
    dtype = torch_dtype(record.dtype)
    place = placement(spec.device, base, dtype)
    try:
        # what it would print of missing weights is checked below, and is an error or the head's own
        with unsharded(), quiet_transformers():
            model, info = auto_class.from_pretrained(
                base.with_weights(),
                dtype=dtype,
                attn_implementation=record.attn_implementation,
                output_loading_info=True,
                trust_remote_code=False,
                use_safetensors=True,
                **place,
                **more,
            )
    except (OSError, ValueError, RuntimeError, ImportError, KeyError) as error:
        raise CheckpointError(f"{base.name} cannot be loaded as {auto_class.__name__}: {error}") from error
    refuse_unloaded(base.name, info, heads)
    return model


def refuse_unloaded(name: str, info: Mapping[str, Any], allowed: set[str]) -> None:
    """Raises HeadError for weights that transformers had to make up, and CheckpointError for those it left out.

    Args:
        name: what the user called the checkpoint.
        info: transformers' loading info.
        allowed: tensors that the family reads itself.
    """
    unexpected = set(map(str, info.get("unexpected_keys", ()))) - allowed
    left_out = [key for key in unexpected if not _UNUSED.search(key)]
    if left_out:
        raise CheckpointError(
            f"{name} has weights that its architecture does not use: {_some(left_out)}. Without them the number would "
            "be another model's, so it is not loaded."
        )
    mismatched = {str(key[0]) if isinstance(key, tuple | list) else str(key) for key in info.get("mismatched_keys", ())}
    invented = sorted((set(info.get("missing_keys", ())) | mismatched) - allowed)
    if invented:
        raise HeadError(
            f"{name} lacks weights that the model needs: {_some(invented)}. They would be random, so it is not loaded."
        )


def _some(names: Iterable[str]) -> str:
    names = sorted(map(str, names))
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def put_adapter(model: Any, adapter: Checkpoint) -> Any:
    """Puts a peft adapter's layers on a model, without merging.

    Raises:
        HeadError: a tensor of the file has no place in the model, or a layer of the adapter is not in the file.
    """
    try:
        from peft import PeftModel, get_peft_model_state_dict
    except ImportError as error:
        raise MissingExtraError(
            f"{adapter.name} is a peft adapter. Install what reads it with: pip install 'rm-plugins[peft]'"
        ) from error
    try:
        wrapped = PeftModel.from_pretrained(model, adapter.with_weights())
    except (KeyError, RuntimeError, ValueError) as error:
        raise HeadError(
            f"peft cannot put adapter {adapter.name} on its base: {type(error).__name__}: {error}"
        ) from error
    saved, live = set(adapter.tensors), set(get_peft_model_state_dict(wrapped, save_embedding_layers=False))
    if lost := {name for name in saved - live if bare_name(name) not in _embeddings(model)}:
        raise HeadError(f"{len(lost)} tensors of adapter {adapter.name} have no place in its base: {_some(lost)}.")
    if absent := live - saved:
        raise HeadError(f"Adapter {adapter.name} lacks {len(absent)} of its own tensors: {_some(absent)}.")
    return wrapped.base_model.model


def _embeddings(model: Any) -> set[str]:
    """Names of the input embeddings, which peft saves with an adapter when the vocabulary grew."""
    table = model.get_input_embeddings()
    return {f"{bare_name(name)}.weight" for name, module in model.named_modules() if module is table}
