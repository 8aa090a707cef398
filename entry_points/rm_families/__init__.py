"""The reward-model families that come with rm_plugins, one module each; they enter through entry points."""
