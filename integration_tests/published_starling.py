"""A tiny Starling-RM-7B: a pickle of weights, and beside it the model whose config and tokenizer it uses."""

import torch
from integration_tests_builder import tiny_config, tokenizer
from published import H, drawn
from transformers import AutoModel

STARLING = "berkeley-nest/Starling-RM-7B-alpha"


def starling_checkpoint(folder, prefixes=("model.model.", "transformer."), file="starling.pt"):
    """Writes pickle and base and returns their two folders."""
    tok, base = tokenizer("unk first"), folder / "base"
    config = tiny_config("llama", len(tok), bos_token_id=1, eos_token_id=2, max_position_embeddings=4096)
    base.mkdir(parents=True)
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(base)
    tok.save_pretrained(base)
    found = {name: drawn(name, tensor.shape) for name, tensor in AutoModel.from_config(config).state_dict().items()}
    weights = {prefix + name: tensor for prefix in prefixes for name, tensor in found.items()}
    weights["model.lm_head.weight"] = drawn("lm_head.weight", (len(tok), H))
    (folder / "rm").mkdir()
    torch.save(weights | {"v_head.weight": drawn("v_head.weight", (1, H))}, folder / "rm" / file)
    return folder / "rm", base
