"""Reward models and judges that run elsewhere."""
