"""Runs a backbone over token sequences; families say what to read, only the engine decides how to batch."""
