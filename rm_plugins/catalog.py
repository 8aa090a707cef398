"""Finds families through entry points, one at a time, so that a broken plugin is listed and never hides the others."""

from __future__ import annotations

import difflib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import cast

import pluggy

from rm_plugins import hookspecs
from rm_plugins.errors import AmbiguousFamilyError, UnknownFamilyError
from rm_plugins.family import Family

OWN = "rm-plugins"
"""Distribution of the built-in families: a stranger cannot take their names."""


@dataclass(frozen=True)
class Found:
    """A family and the distribution that provides it."""

    family: Family
    provider: str


@dataclass(frozen=True)
class Failure:
    """A plugin, or one family of it, that cannot be used, and why."""

    name: str
    provider: str
    error: str


@dataclass(frozen=True)
class Catalog:
    """Every family that can be used, by plain name and by `provider/name`, and every failure."""

    found: Mapping[str, Found] = field(default_factory=dict)
    qualified: Mapping[str, Found] = field(default_factory=dict)
    failures: Sequence[Failure] = ()

    def get(self, name: str) -> Family:
        """Returns the family of that name, or of that `provider/name`.

        Raises:
            UnknownFamilyError: nothing by that name, with the nearest name; or its plugin failed, with the cause.
            AmbiguousFamilyError: several plugins have the name.
        """
        if hit := self.found.get(name) or self.qualified.get(name):
            return hit.family
        rivals = sorted(key for key in self.qualified if key.split("/", 1)[1] == name)
        if rivals:
            raise AmbiguousFamilyError(f"Several plugins provide {name!r}; ask for one of {', '.join(rivals)}.")
        for failure in self.failures:
            if failure.name == name:
                raise UnknownFamilyError(f"Reward family {name!r} of {failure.provider} cannot load: {failure.error}")
        close = difflib.get_close_matches(name, self.found, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        names = ", ".join(sorted(self.found)) or "none"
        raise UnknownFamilyError(f"Unknown reward family {name!r}.{hint} Installed: {names} (rm-plugins list).")

    def families(self) -> list[Family]:
        """Families that have a plain name, sorted."""
        return [self.found[name].family for name in sorted(self.found)]


@cache
def catalog() -> Catalog:
    """Families of the installed plugins, found once per process."""
    return discover(entry_points(group=hookspecs.GROUP))


def discover(points: Iterable[EntryPoint]) -> Catalog:
    """Loads entry points one by one, in the order of (distribution, name)."""
    found: list[Found] = []
    failures: list[Failure] = []
    for point in sorted(points, key=lambda p: (_provider(p), p.name)):
        try:
            found += [Found(family, _provider(point)) for family in _families(point)]
        except (Exception, SystemExit) as error:  # a stranger's plugin may raise anything; it is shown with its cause
            failures.append(Failure(point.name, _provider(point), _cause(error)))
    return _settle_names(found, failures)


def _provider(point: EntryPoint) -> str:
    return point.dist.name if point.dist else "unknown"


def _cause(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


def _families(point: EntryPoint) -> list[Family]:
    manager = pluggy.PluginManager(hookspecs.GROUP)
    manager.add_hookspecs(hookspecs)
    plugin = point.load()
    manager.register(plugin, point.name)
    manager.check_pending()
    implementations = manager.hook.rm_families.get_hookimpls()
    if not implementations:
        raise TypeError("it implements no hook; write a function 'rm_families' marked with @hookimpl")
    return [_checked(item) for item in cast("Iterable[object]", implementations[0].function())]


def _checked(item: object) -> Family:
    if not isinstance(item, Family):
        raise TypeError(f"rm_families yielded {type(item).__name__}, not Family")
    return item


def _settle_names(found: Sequence[Found], failures: list[Failure]) -> Catalog:
    claims: dict[str, list[Found]] = defaultdict(list)
    for item in found:
        claims[item.family.name].append(item)
    plain: dict[str, Found] = {}
    for name, rivals in claims.items():
        owners = [item for item in rivals if item.provider == OWN] or rivals
        if len(owners) == 1:
            plain[name] = owners[0]
        for loser in rivals:
            if loser is not plain.get(name):
                others = ", ".join(sorted({item.provider for item in rivals if item is not loser})) or loser.provider
                cause = f"the name {name!r} is also provided by {others}; ask for '{loser.provider}/{name}'"
                failures.append(Failure(name, loser.provider, cause))
    qualified = {f"{item.provider}/{item.family.name}": item for item in found}
    return Catalog(plain, qualified, tuple(failures))
