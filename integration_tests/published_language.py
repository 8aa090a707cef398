"""Published reward models whose weights are a language model's and nothing else; see `published`."""

from published import H

LM = {"lm_head.weight": (None, H)}
MODELS = {
    "RLHFlow/pair-preference-model-LLaMA3-8B": ("LlamaForCausalLM", "llama", {"tie_word_embeddings": False}, LM),
}
