"""Tiny checkpoints of published encoders, with a tokenizer of their kind whose pieces are listed here."""

import json

from integration_tests_builder import CORPUS
from published import drawn, linear
from safetensors.torch import save_file
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import AutoModel, AutoModelForSeq2SeqLM, PreTrainedTokenizerFast
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

OASST = "OpenAssistant/reward-model-deberta-v3-large-v2"
PAIRRM = "llm-blender/PairRM-hf"
MARKS = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"]
CANDIDATES = ["<|source|>", "<|candidate1|>", "<|candidate2|>"]
BETTER = "mightbe/Better-PairRM"
STEAM = "stanfordnlp/SteamSHP-flan-t5-large"
LETTERS = [("\u2581", -4.0), *((chr(code), -6.0) for code in range(33, 127))]
H = 32
CLASSIFIER = linear("pooler.dense", H, H) | linear("classifier", 1, H)
MODELS = {
    OASST: ("DebertaV2ForSequenceClassification", "deberta.", {"num_labels": 1}, CLASSIFIER),
    PAIRRM: (
        "DebertaV2PairRM",
        "pretrained_model.",
        {
            "n_tasks": 3,
            "drop_out": 0.05,
            "source_prefix_id": 5,
            "cand_prefix_id": 6,
            "cand1_prefix_id": 6,
            "cand2_prefix_id": 7,
        },
        linear("head_layer.1", H, 2 * H) | linear("head_layer.4", 3, H),
    ),
}
MODELS[BETTER] = MODELS[PAIRRM]
"""Hub id -> architecture, what its backbone's names begin with, config fields, and the tensors of its head."""


def encoder_tokenizer(*, one_space=False):
    """Unigram pieces behind the marks: the letters, and the words of the corpus; one space, or all as they are."""
    words = sorted({word for line in CORPUS for word in line.split()})
    backend = Tokenizer(
        models.Unigram(
            [(mark, 0.0) for mark in MARKS + CANDIDATES]
            + LETTERS
            + [(f"\u2581{word}", -3.0) for word in words if len(word) > 1],
            unk_id=MARKS.index("[UNK]"),
        )
    )
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    if one_space:
        strip = normalizers.Strip(left=False, right=True)
        backend.normalizer = normalizers.Sequence([normalizers.Replace(Regex(r"\s+"), " "), strip])
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(mark, MARKS.index(mark)) for mark in ("[CLS]", "[SEP]")],
    )
    names = {f"{mark[1:-1].lower()}_token": mark for mark in MARKS}
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="[CLS]",
        eos_token="[SEP]",
        extra_special_tokens=CANDIDATES,
        model_input_names=["input_ids", "attention_mask"],
        **names,
    )


def encoder_checkpoint(model, folder, **changes):
    """Writes the tiny checkpoint of a published encoder and returns its folder."""
    architecture, prefix, fields, heads = MODELS[model]
    tok = encoder_tokenizer(one_space=model == BETTER)
    settings = {
        "vocab_size": len(tok),
        "hidden_size": H,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "relative_attention": True,
        "position_buckets": 16,
        "norm_rel_ebd": "layer_norm",
        "share_att_key": True,
        "pos_att_type": ["p2c", "c2p"],
        "position_biased_input": False,
        "type_vocab_size": 0,
        "max_position_embeddings": 512,
        "max_relative_positions": -1,
        "pooler_hidden_size": H,
        "pad_token_id": 0,
    }
    config = CONFIG_MAPPING["deberta-v2"](**settings)
    shapes = {prefix + name: tensor.shape for name, tensor in AutoModel.from_config(config).state_dict().items()}
    tensors = {name: drawn(name, shape) for name, shape in (shapes | heads | changes).items()}
    folder.mkdir(parents=True)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    tok.save_pretrained(folder)
    facts = config.to_dict() | fields | {"architectures": [architecture], "dtype": "float32"}
    (folder / "config.json").write_text(json.dumps(facts, indent=1, default=str))
    return folder


def steam_checkpoint(folder):
    """Writes a tiny checkpoint of SteamSHP and returns its folder."""
    words = sorted({word for line in CORPUS for word in line.split()} | {"A", "B", "POST:", "RESPONSE"})
    known = [(mark, 0.0) for mark in ("<pad>", "</s>", "<unk>", "<extra_id_0>")] + LETTERS
    backend = Tokenizer(models.Unigram(known + [(f"\u2581{word}", -3.0) for word in words], unk_id=2))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    backend.normalizer = normalizers.Replace(Regex(r"\s+"), " ")  # line breaks too, as in every T5
    backend.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    tok = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
        extra_special_tokens=["<extra_id_0>"],
        model_input_names=["input_ids", "attention_mask"],
    )
    config = CONFIG_MAPPING["t5"](
        vocab_size=len(tok),
        d_model=H,
        d_kv=8,
        d_ff=48,
        num_layers=2,
        num_heads=4,
        feed_forward_proj="gated-gelu",
        tie_word_embeddings=False,
        decoder_start_token_id=0,
    )
    shapes = AutoModelForSeq2SeqLM.from_config(config).state_dict()
    tied = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
    tensors = {name: drawn(name, tensor.shape) for name, tensor in shapes.items() if name not in tied}
    folder.mkdir(parents=True)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    tok.save_pretrained(folder)
    facts = config.to_dict() | {"architectures": ["T5ForConditionalGeneration"], "dtype": "float32"}
    facts |= {"tie_word_embeddings": False}  # as the published file says; transformers 5 writes what it makes of it
    del facts["scale_decoder_outputs"]
    (folder / "config.json").write_text(json.dumps(facts, indent=1, default=str))
    return folder
