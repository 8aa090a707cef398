"""`rm-plugins demo`: what the reward model sees, best of n, and a few GRPO steps, on real models."""

from __future__ import annotations

from typing import Annotated

import typer


def demo(
    policy: Annotated[str | None, typer.Option(help="Policy: hub id or folder; SmolLM2-135M by default.")] = None,
    reward: Annotated[str | None, typer.Option(help="Reward model: hub id or folder; ours by default.")] = None,
    n: Annotated[int, typer.Option("-n", min=2, help="Answers per prompt.")] = 8,
    steps: Annotated[int, typer.Option(min=0, help="GRPO steps.")] = 6,
    seed: Annotated[int, typer.Option(help="Seed of sampling and training.")] = 0,
) -> None:
    """Samples and trains a policy against a reward model."""
    from rm_plugins.demo.run import Demo

    Demo(policy, reward, n=n, steps=steps, seed=seed).run()
