"""The demonstration: a real policy, a real reward model, one command."""
