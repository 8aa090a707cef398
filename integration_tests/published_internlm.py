"""Tiny checkpoints of InternLM2-reward and POLAR, with a SentencePiece tokenizer of their kind."""

import io
import json

from integration_tests_builder import CORPUS
from published import drawn
from safetensors.torch import save_file
from sentencepiece import SentencePieceProcessor, SentencePieceTrainer

REWARD = "internlm/internlm2-7b-reward"
POLAR = "internlm/POLAR-7B"
PIECES = [f"[UNUSED_TOKEN_{n}]" for n in (129, 130, 145, 146)]
NAMES = {"[UNUSED_TOKEN_145]": "<|im_end|>", "[UNUSED_TOKEN_146]": "<|im_start|>"}
RENAMED = {
    REWARD: NAMES | {"[UNUSED_TOKEN_130]": "<|reward|>"},
    POLAR: NAMES | {"[UNUSED_TOKEN_129]": "<|reward|>"},
}
"""Pieces that the tokenizer's config gives another name."""
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] "
    "+ '<|im_end|>' + '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
CONFIG = {
    "model_type": "internlm2",
    "architectures": ["InternLM2ForRewardModel"],
    "auto_map": {
        "AutoConfig": "configuration_internlm2.InternLM2Config",
        "AutoModel": "modeling_internlm2.InternLM2ForRewardModel",
    },
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "hidden_act": "silu",
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-05,
    "rope_theta": 1000000.0,
    "rope_scaling": None,
    "bias": False,
    "attn_implementation": "eager",
    "pretraining_tp": 1,
    "tie_word_embeddings": False,
    "pad_token_id": 2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "dtype": "float32",
}


def spm_model():
    """Byte-fallback BPE without a dummy prefix and without normalization, as InternLM2's is."""
    model = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS * 5),
        model_writer=model,
        model_type="bpe",
        vocab_size=400,
        byte_fallback=True,
        normalization_rule_name="identity",
        add_dummy_prefix=False,
        remove_extra_whitespaces=False,
        user_defined_symbols=PIECES,
        pad_id=-1,
        unk_id=0,
        bos_id=1,
        eos_id=2,
        split_digits=True,
        character_coverage=1.0,
        minloglevel=2,
    )
    return model.getvalue()


def internlm_checkpoint(model, folder, **changes):
    """Writes the tiny checkpoint of a published model and returns its folder."""
    folder.mkdir(parents=True)
    proto = spm_model()
    (folder / "tokenizer.model").write_bytes(proto)
    pieces = SentencePieceProcessor(model_proto=proto)
    names = {"<unk>": "<unk>", "<s>": "<s>", "</s>": "</s>"} | RENAMED[model]
    added = {
        str(pieces.piece_to_id(piece)): {"content": name, "special": True}
        | dict.fromkeys(("lstrip", "rstrip", "normalized", "single_word"), False)
        for piece, name in names.items()
    }
    tokenizer = {
        "auto_map": {"AutoTokenizer": ["tokenization_internlm2.InternLM2Tokenizer", None]},
        "tokenizer_class": "InternLM2Tokenizer",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "pad_token": "</s>",
        "unk_token": "<unk>",
        "added_tokens_decoder": added,
        "chat_template": TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer, indent=1))
    config = CONFIG | {"vocab_size": 400, "reward_token_id": pieces.piece_to_id("[UNUSED_TOKEN_130]")} | changes
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    save_file(
        {name: drawn(name, shape) for name, shape in shapes(config).items()},
        folder / "model.safetensors",
        {"format": "pt"},
    )
    return folder


def shapes(config):
    """Name -> shape of every tensor."""
    width, inner = config["hidden_size"], config["intermediate_size"]
    heads, groups = config["num_attention_heads"], config["num_key_value_heads"]
    packed = (heads + 2 * groups) * width // heads
    found = {"model.tok_embeddings.weight": (config["vocab_size"], width), "model.norm.weight": (width,)}
    for layer in (f"model.layers.{n}." for n in range(config["num_hidden_layers"])):
        found |= {f"{layer}attention.wqkv.weight": (packed, width), f"{layer}attention.wo.weight": (width, width)}
        if config["bias"]:
            found |= {f"{layer}attention.wqkv.bias": (packed,), f"{layer}attention.wo.bias": (width,)}
        found |= {f"{layer}feed_forward.{w}.weight": (inner, width) for w in ("w1", "w3")}
        found |= {f"{layer}feed_forward.w2.weight": (width, inner)}
        found |= {f"{layer}{norm}.weight": (width,) for norm in ("attention_norm", "ffn_norm")}
    return found | {"v_head.weight": (1, width)}
