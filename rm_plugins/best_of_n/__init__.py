"""Best of n: draw several answers to a prompt, score them, and choose; and what that is worth at every n."""
