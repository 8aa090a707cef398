"""Tiny checkpoints with the tensor names, config fields and code map of published reward models.

Every weight is drawn as a whole number and scaled by a power of two, so that the same checkpoint comes out on every
machine. The numbers in `upstream/` were made from these checkpoints by the code that is named there, outside this
project.
"""

import hashlib
import json

import torch
from integration_tests_builder import tiny_config, tokenizer
from safetensors.torch import save_file
from transformers import AutoModel

CHAT = [
    {"role": "user", "content": "Sural relates to which part of the body?"},
    {"role": "assistant", "content": "The sural region is the back of the lazy dog."},
]
LONGER = [
    {"role": "user", "content": "quick fox?"},
    {"role": "assistant", "content": "brown fox"},
    {"role": "user", "content": "over what does it jump?"},
    {"role": "assistant", "content": "over the lazy dog, twice."},
]
H, OBJECTIVES = 32, 19


def linear(name, outputs, inputs, bias=True):
    """The tensors of a linear layer."""
    return {f"{name}.weight": (outputs, inputs)} | ({f"{name}.bias": (outputs,)} if bias else {})


def norm(name, width):
    """The tensors of a batch norm."""
    kinds = ("weight", "bias", "running_mean", "running_var")
    return {f"{name}.{kind}": (width,) for kind in kinds} | {f"{name}.num_batches_tracked": ()}


NORMALIZER = {"normalizer.mean": (1,), "normalizer.var": (1,), "normalizer.count": (1,)}
BEAVER = {"do_normalize": True, "normalizer_type": "RunningMeanStd", "score_dim": 1}
STACK = linear("score.0", H, H) | linear("score.2", 1, H)
GATE = {"gating.logit_scale": (1,), "reward_transform_matrix": (OBJECTIVES, OBJECTIVES)}
MODELS = {
    "infly/INF-ORM-Llama3.1-70B": ("INFORMForSequenceClassification", "llama", {"num_labels": 1}, STACK),
    "Qwen/Qwen2.5-Math-RM-72B": ("Qwen2ForRewardModel", "chatml", {"num_labels": 1}, STACK),
    "Nexusflow/Athene-RM-8B": ("CustomAutoModelForSequenceClassification", "athene", {}, linear("v_head", 1, H, False)),
    "Ray2333/GRM-Gemma2-2B-sftreg": (
        "GRewardModel",
        "gemma",
        {"vhead_layer_type": "mlp", "vhead_num_neurons": 16, "vhead_num_layers": 1},
        linear("v_head.summary.0", 16, H) | linear("v_head.summary.2", 1, 16) | {"lm_head.weight": (None, H)},
    ),
    "Ray2333/GRM-llama3.2-3B-sftreg": (
        "GRewardModel",
        "llama",
        {"vhead_layer_type": "linear"},
        linear("v_head.summary", 1, H) | {"lm_head.weight": (None, H)},
    ),
    "TIGER-Lab/AceCodeRM-7B": (
        "Qwen2ForCausalRM",
        "chatml",
        {},
        linear("v_head.summary", 1, H) | {"lm_head.weight": (None, H)},
    ),
    "openbmb/Eurus-RM-7b": ("EurusRewardModel", "plain", {}, linear("regression_head", 1, H, False)),
    "openbmb/UltraRM-13b": ("LlamaRewardModel", "plain", {}, linear("regression_head", 1, H, False)),
    "Nexusflow/Starling-RM-34B": ("LlamaForSequenceClassification", "chatml", {}, linear("v_head", 1, H, False)),
    "PKU-Alignment/beaver-7b-v1.0-reward": (
        "LlamaForScore",
        "plain",
        BEAVER | {"score_type": "reward", "bias": False},
        linear("score_head", 1, H, False) | NORMALIZER,
    ),
    "PKU-Alignment/beaver-7b-v1.0-cost": (
        "LlamaForScore",
        "plain",
        BEAVER | {"score_type": "cost", "bias": True},
        linear("score_head", 1, H) | NORMALIZER,
    ),
    "RLHFlow/ArmoRM-Llama3-8B-v0.1": (
        "LlamaForRewardModelWithGating",
        "llama",
        {"num_objectives": OBJECTIVES, "gating_temperature": 5, "gating_hidden_dim": 16, "gating_n_hidden": 3},
        linear("regression_layer", OBJECTIVES, H, False)
        | linear("gating.layers.0", 16, H)
        | linear("gating.layers.1", 16, 16)
        | linear("gating.layers.2", 16, 16)
        | linear("gating.layers.3", OBJECTIVES, 16)
        | GATE,
    ),
    "nicolinho/QRM-Llama3.1-8B": (
        "LlamaForRewardModelWithGating31",
        "llama",
        {"num_objectives": OBJECTIVES, "num_quantiles": OBJECTIVES, "gating_hidden_dim": 16, "gating_n_hidden": 3},
        linear("regression_layer", OBJECTIVES * OBJECTIVES, H, False)
        | linear("gating.layers.0", 16, H, False)
        | norm("gating.layers.2", 16)
        | linear("gating.layers.3", 16, 16, False)
        | norm("gating.layers.5", 16)
        | linear("gating.layers.6", 16, 16, False)
        | norm("gating.layers.8", 16)
        | linear("gating.layers.9", OBJECTIVES, 16)
        | GATE,
    ),
    "LxzGordon/URM-LLaMa-3.1-8B": (
        "LlamaForSequenceClassificationWithNormal_Weights",
        "llama",
        {"num_labels": 10},
        linear("score", 10, H, False)
        | linear("weights.fc.0", H, H)
        | linear("weights.fc.2", H, H)
        | linear("weights.fc.4", 5, H),
    ),
    "ShikaiChen/LDL-Reward-Gemma-2-27B-v0.1": ("Gemma2Model", "gemma", {}, {}),
}
"""Hub id -> architecture, style of tokenizer, config fields, and the tensors beside the backbone's."""
PREFIX = {"Nexusflow/Starling-RM-34B": "transformer.", "ShikaiChen/LDL-Reward-Gemma-2-27B-v0.1": ""}
PICKLES = {
    "ShikaiChen/LDL-Reward-Gemma-2-27B-v0.1": {
        "regression_layer.pt": linear("network.0", 16, H) | linear("network.2", 16, 16) | linear("network.4", 220, 16),
        "gating_layer.pt": linear("network.0", 16, H) | linear("network.3", 16, 16) | linear("network.6", 22, 16),
    }
}
"""Hub id -> the tensors that lie in pickles."""
CODE = {"Gemma2Model", "LlamaRewardModel", "LlamaForSequenceClassification", "CustomAutoModelForSequenceClassification"}
"""Architectures whose repositories name no remote code."""


def checkpoint(model, backbone, folder, known=MODELS):
    """Writes the tiny checkpoint of a published model and returns its folder."""
    architecture, style, fields, heads = known[model]
    tok = tokenizer(style)
    config = tiny_config(backbone, len(tok), pad_token_id=tok.pad_token_id, eos_token_id=tok.eos_token_id)
    prefix = PREFIX.get(model, "model.")
    shapes = {f"{prefix}{name}": tensor.shape for name, tensor in AutoModel.from_config(config).state_dict().items()}
    shapes |= {name: tuple(len(tok) if n is None else n for n in shape) for name, shape in heads.items()}
    folder.mkdir(parents=True)
    save_file(
        {name: drawn(name, shape) for name, shape in shapes.items()}, folder / "model.safetensors", {"format": "pt"}
    )
    for file, tensors in PICKLES.get(model, {}).items():
        torch.save({name: drawn(file + name, shape) for name, shape in tensors.items()}, folder / file)
    tok.save_pretrained(folder)
    code = {} if architecture in CODE else {"auto_map": {"AutoModel": f"modeling_custom.{architecture}"}}
    facts = config.to_dict() | fields | {"architectures": [architecture], "dtype": "float32"} | code
    (folder / "config.json").write_text(json.dumps(facts, indent=1, default=str))
    return folder


def drawn(name, shape):
    """A tensor that depends on its name and shape alone; statistics and scales are positive, weights around 0."""
    if name.endswith(("count", "num_batches_tracked")):
        return torch.ones(shape, dtype=torch.long)
    seed = torch.Generator().manual_seed(int(hashlib.sha256(name.encode()).hexdigest()[:8], 16))
    numbers = torch.randint(-128, 128, shape, generator=seed).float() / 512
    around_one = len(shape) == 1 and name.endswith(("norm.weight", "var", "scale"))
    return numbers + 1 if around_one else numbers
