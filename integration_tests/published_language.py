"""Published reward models that are language models and nothing more, and process models; see `published`."""

from published import STACK, H, linear

LM = {"lm_head.weight": (None, H)}
UNTIED = {"tie_word_embeddings": False}
PAIR = "RLHFlow/pair-preference-model-LLaMA3-8B"
MODELS = {
    PAIR: ("LlamaForCausalLM", "llama", UNTIED, LM),
    "peiyi9979/math-shepherd-mistral-7b-prm": ("MistralForCausalLM", "sentencepiece", UNTIED, LM),
    "RLHFlow/Llama3.1-8B-PRM-Deepseek-Data": ("LlamaForCausalLM", "llama", UNTIED, LM),
    "RLHFlow/Llama3.1-8B-ORM-Deepseek-Data": ("LlamaForCausalLM", "llama", UNTIED, LM),
    "Qwen/Qwen2.5-Math-PRM-7B": (
        "Qwen2ForProcessRewardModel",
        "steps",
        {"num_labels": 2, "alpha": 1},
        STACK | linear("score.2", 2, H) | LM,
    ),
    "Skywork/Skywork-o1-Open-PRM-Qwen-2.5-1.5B": (
        "Qwen2ForPrmModel",
        "lines",
        UNTIED,
        linear("v_head.summary", 1, H) | LM,
    ),
    "trl-lib/Qwen2-0.5B-Reward-Math-Sheperd": (
        "Qwen2ForTokenClassification",
        "lines",
        {"num_labels": 2},
        linear("score", 2, H),
    ),
}
STEPS = [model for model in MODELS if model != PAIR]
EURUS, DPO = "PRIME-RL/EurusPRM-Stage1", "RLHFlow/LLaMA3-iterative-DPO-final"
MODELS |= {DPO: ("LlamaForCausalLM", "llama", UNTIED, LM), EURUS: ("Qwen2ForCausalLM", "chatml", UNTIED, LM)}
