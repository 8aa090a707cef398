"""InternLM2-reward, and POLAR, which judges an answer by a reference.

Weights: `v_head.weight` (1, hidden) on an InternLM2, which is a Llama with other names: `wqkv` holds, for each group of
keys and values, its query heads, then the key, then the value. The token of `reward_token_id` ends the text and its
state is read. The score is the raw output in float32: unbounded, higher is better. InternLM2-reward reads its chat
template. POLAR reads prompt, reference, `<|reward|>`, prompt and answer, without roles; the reference is a column of
the data set. The tokenizer is built from `tokenizer.model`. Source: the cards of internlm/internlm2-20b-reward and
internlm/POLAR-7B, POLAR's `reward_func.py`, and xtuner's `modeling_internlm2_reward`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from rm_plugins import Family, hookimpl
from rm_plugins.errors import CheckpointError, OptionError
from rm_plugins.family import LOCAL_OPTIONS, Fit, LoadSpec, RewardModel, Score
from rm_plugins.records import find

if TYPE_CHECKING:
    from torch import Tensor

    from rm_plugins.checkpoint import Checkpoint

HEAD = "v_head.weight"
SEPARATOR = "<|reward|>"
_NAMES = {
    r"^model\.": "",
    r"tok_embeddings": "embed_tokens",
    r"attention\.wo\.": "self_attn.o_proj.",
    r"feed_forward\.w1": "mlp.gate_proj",
    r"feed_forward\.w3": "mlp.up_proj",
    r"feed_forward\.w2": "mlp.down_proj",
    r"attention_norm": "input_layernorm",
    r"ffn_norm": "post_attention_layernorm",
}
"""Patterns in the names of InternLM2 -> what Llama has there."""
_SETTINGS = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "hidden_act"),
    *("num_key_value_heads", "max_position_embeddings", "rms_norm_eps", "rope_theta", "rope_scaling"),
    *("pad_token_id", "bos_token_id", "eos_token_id"),
)
"""Fields of the config that Llama has under the same name."""


@hookimpl
def rm_families() -> Iterable[Family]:
    """Yields the InternLM family."""
    yield Family(
        name="internlm",
        kind="pointwise",
        summary="InternLM2-reward, and POLAR against a reference, as a stock Llama",
        load=load,
        fits=fits,
        options=LOCAL_OPTIONS | {"column": "POLAR: data-set column with the reference, 'reference' by default"},
        requires=("sentencepiece",),
    )


def fits(checkpoint: Checkpoint) -> Fit:
    """Fits an InternLM2 whose only head is `v_head.weight`."""
    heads, kind = checkpoint.heads(), checkpoint.config.get("model_type")
    ok = kind == "internlm2" and set(heads) == {HEAD}
    return Fit(ok, f"it reads {HEAD} on an internlm2; this is {kind} with {', '.join(sorted(heads)) or 'no head'}")


def load(spec: LoadSpec) -> RewardModel:
    """Loads backbone, head and tokenizer.

    Raises:
        OptionError: a column for a model that reads no reference.
        CheckpointError: the config does not name the token that is read, or no tokenizer can be built.
    """
    from transformers import LlamaConfig

    from rm_plugins.engine.heads import stack
    from rm_plugins.engine.local import LocalModel, local_model
    from rm_plugins.engine.rewritten import load_rewritten
    from rm_plugins.engine.runner import Engine
    from rm_plugins.engine.spm import load_spm_tokenizer
    from rm_plugins.engine.weights import read_tensors, stored_tensors
    from rm_plugins.text.reference import ReferenceEncoder
    from rm_plugins.text.rules import rules_for

    checkpoint = spec.fitting("internlm", fits)
    facts = checkpoint.config
    config = LlamaConfig(
        **{name: facts[name] for name in _SETTINGS if name in facts}, attention_bias=facts.get("bias", True)
    )
    head = stack(read_tensors(checkpoint, {HEAD}), "v_head", checkpoint.hidden_size)
    tokenizer = load_spm_tokenizer(checkpoint)
    known = spec.knowing(bos="template", pooling="last", suffix=_read_token(checkpoint, tokenizer))
    backbone = load_rewritten(spec, config, _as_llama(stored_tensors(checkpoint, HEAD.__ne__), config))

    def score(hidden: Tensor) -> Score:
        return Score(head(hidden).item())

    column = _column(spec)
    if column is None:
        return local_model(known, backbone, tokenizer, score)
    encoder = ReferenceEncoder(tokenizer, rules_for(known, config), column, SEPARATOR)
    model = LocalModel(encoder, Engine(backbone, max_tokens_in_flight=spec.options.get("max_tokens_in_flight")), score)
    model.columns = (column,)
    return model


def _column(spec: LoadSpec) -> str | None:
    record, asked = spec.record, spec.options.get("column")
    if asked and record and find(record.id) and not record.compares_with:
        raise OptionError(f"column={asked!r}: {record.id} judges an answer alone and reads no reference.")
    return asked or (record.compares_with if record else None)


def _read_token(checkpoint: Checkpoint, tokenizer: Any) -> str:
    """The token that is read, made a control token, which InternLM2's piece of that id is not."""
    number = checkpoint.config.get("reward_token_id")
    if number is None or number >= len(tokenizer):
        raise CheckpointError(f"{checkpoint.name} has reward_token_id={number} and {len(tokenizer)} tokens.")
    token = str(tokenizer.convert_ids_to_tokens(number))
    tokenizer.add_tokens([token], special_tokens=True)
    return token


def _as_llama(tensors: Iterable[tuple[str, Tensor]], config: Any) -> Iterator[tuple[str, Tensor]]:
    for name, tensor in tensors:
        for pattern, other in _NAMES.items():
            name = re.sub(pattern, other, name)
        if "attention.wqkv." in name:
            for kind, part in zip("qkv", _split(tensor, config), strict=True):
                yield name.replace("attention.wqkv", f"self_attn.{kind}_proj"), part
        else:
            yield name, tensor


def _split(packed: Tensor, config: Any) -> Iterator[Tensor]:
    """Queries, keys and values of a packed weight or bias, (groups x (queries + 2) x head_dim, ...)."""
    queries = config.num_attention_heads // config.num_key_value_heads
    groups = packed.reshape(config.num_key_value_heads, queries + 2, config.head_dim, *packed.shape[1:])
    for part in (groups[:, :queries], groups[:, -2], groups[:, -1]):
        yield part.reshape(-1, *packed.shape[1:])
