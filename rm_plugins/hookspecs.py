"""The one hook of the plugin system."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from rm_plugins.family import Family

GROUP = "rm_plugins"
"""Entry-point group, and the project name of the hook markers."""

hookspec = pluggy.HookspecMarker(GROUP)
hookimpl = pluggy.HookimplMarker(GROUP)


@hookspec
def rm_families() -> Iterable[Family]:  # type: ignore[empty-body]  # pluggy: a hook specification has no body
    r"""Yields the reward-model families of this plugin.

    A complete plugin is one module and one line in its `pyproject.toml`:

        # polite.py
        from rm_plugins import Family, Score, hookimpl

        class Polite:
            def score(self, conversations, progress=None):
                return [Score(float("please" in c.answer)) for c in conversations]

        @hookimpl
        def rm_families():
            yield Family(name="polite", kind="rule", summary="1 if the answer says please", load=lambda spec: Polite())

        # pyproject.toml
        [project.entry-points."rm_plugins"]
        polite = "polite"

    After `pip install`, `load_reward("polite:")` is a reward. Import torch inside `load`, not at the top of the module:
    listing families must stay fast.
    """
