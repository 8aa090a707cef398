"""Starling-RM: `v_head.weight` on a Llama.

Weights: `v_head.weight` is (1, hidden), without a bias. The 34B is safetensors, its Llama named `transformer.*` or
`model.*`. The 7B is one pickle without a config, which its card puts over Llama-2-7b-chat; it holds all the weights, so
that of that model only config and tokenizer are read. The score is the raw output in float32: unbounded, higher is
better. The 34B reads the last token, or the one before the first pad if the text itself holds one; the 7B reads a pad,
see `starling_pad`, and with RewardBench's text the last token. Both cards write the text by hand. Source: the cards of
Nexusflow/Starling-RM-34B and berkeley-nest/Starling-RM-7B-alpha, and RewardBench's `models/starling.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from rm_plugins import Family, hookimpl
from rm_plugins.errors import CheckpointError, HeadError, OptionError
from rm_plugins.family import LOCAL_OPTIONS, Fit, LoadSpec, RewardModel, Score

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from rm_plugins.checkpoint import Checkpoint

HEAD = "v_head.weight"
_PICKLE = re.compile(r".*(\.pt|model\.bin)")
_BACKBONE = re.compile(r"(?:transformer|model\.model|model)\.(?!lm_head\.|model\.)(.+)")
"""Names of the pickle's weights of the Llama, which it may hold under more than one of them."""


@hookimpl
def rm_families() -> Iterable[Family]:
    """Yields the Starling family."""
    yield Family(
        name="starling",
        kind="pointwise",
        summary="Starling-RM-7B and 34B: v_head, text written by hand",
        load=load,
        fits=fits,
        options=LOCAL_OPTIONS
        | {"base": "7B: folder or hub id of the Llama-2-7b-chat that config and tokenizer are of"},
    )


def fits(checkpoint: Checkpoint) -> Fit:
    """Fits a Llama sequence classifier whose only head is `v_head.weight`, or a pickle without a config."""
    if not checkpoint.config and not checkpoint.tensors:
        return Fit(True, "it is a pickle without a config, as Starling-RM-7B is")
    heads, made_for = checkpoint.heads(), checkpoint.architecture
    ok = set(heads) == {HEAD} and made_for in ("", "LlamaForSequenceClassification", "LlamaForCausalLM")
    return Fit(ok, f"it reads {HEAD} on a Llama; this is {made_for} with {', '.join(sorted(heads)) or 'no head'}")


def load(spec: LoadSpec) -> RewardModel:
    """Loads backbone and head.

    Raises:
        OptionError: `base=` for a checkpoint that has its own config.
        HeadError: the pickle has no `v_head.weight`.
        CheckpointError: there is no pickle, or the base cannot be had.
    """
    from rm_plugins.engine.local import stack_model

    checkpoint = spec.fitting("starling", fits)
    if not checkpoint.config:
        return _load_pickle(spec, checkpoint)
    if "base" in spec.options:
        raise OptionError(f"base={spec.options['base']!r}: {checkpoint.name} has a config of its own.")
    return stack_model(spec, checkpoint.heads(), "v_head", {r"^transformer\.": "model."})


def _load_pickle(spec: LoadSpec, checkpoint: Checkpoint) -> RewardModel:
    from transformers import AutoConfig

    from rm_families.starling_pad import padded_model
    from rm_plugins.checkpoint import Checkpoint
    from rm_plugins.engine.heads import stack
    from rm_plugins.engine.local import load_tokenizer, local_model
    from rm_plugins.engine.pickles import read_pickle
    from rm_plugins.engine.rewritten import load_rewritten

    base = Checkpoint.open(str(spec.options.get("base") or (spec.record and spec.record.base)), bare=True)
    if not base.config:
        raise CheckpointError(f"{base.name} has no config.json; base= names the Llama-2-7b-chat that has.")
    config, tokenizer = AutoConfig.from_pretrained(base.folder, trust_remote_code=False), load_tokenizer(base)
    weights = read_pickle(_pickle(checkpoint))
    if HEAD not in weights:
        raise HeadError(f"{checkpoint.name} has no {HEAD} among {len(weights)} tensors; a score would be random.")
    head = stack({HEAD: weights[HEAD].float()}, "v_head", config.hidden_size)
    own = {hit[1]: tensor for name, tensor in weights.items() if (hit := _BACKBONE.fullmatch(name))}
    backbone = load_rewritten(spec, config, own.items())

    def score(hidden: Tensor) -> Score:
        return Score(head(hidden).item())

    unpadded = spec.options.get("text") == "rewardbench" or "pooling" in spec.options
    model = (local_model if unpadded else padded_model)(spec, backbone, tokenizer, score)
    model.depends_on = base.fingerprint()
    return model


def _pickle(checkpoint: Checkpoint) -> Path:
    here = [path.name for path in checkpoint.folder.iterdir() if _PICKLE.fullmatch(path.name)]
    if found := sorted(here or filter(_PICKLE.fullmatch, checkpoint.files())):  # one that is here needs no hub
        return checkpoint.file(found[0])
    raise CheckpointError(f"{checkpoint.name} holds no .pt or model.bin, in which its weights would be.")
