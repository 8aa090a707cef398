"""`rm-plugins list`: installed families, broken plugins, known models, and one family's options."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from rm_plugins.catalog import Catalog, Found, catalog
from rm_plugins.cli.show import print_json, print_rows
from rm_plugins.family import Kind

if TYPE_CHECKING:
    from rm_plugins.records import Record


def list_families(
    family: Annotated[str | None, typer.Argument(help="Show this family's options and models.")] = None,
    models: Annotated[bool, typer.Option("--models", help="List the known models too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Lists reward-model families by kind, and plugins that cannot be used."""
    from rm_plugins.records import records

    found, known = catalog(), records()
    if family:
        chosen = found.get(family)
        if as_json:
            print_json({"name": chosen.name, "options": dict(chosen.options)})
        else:
            print_rows(["", ""], [["family", chosen.name], ["kind", chosen.kind], ["reads", chosen.summary]])
            print_rows(["option", "what it does"], [list(item) for item in chosen.options.items()])
            _print_models([record for record in known.values() if record.family == chosen.name])
        return
    counts = Counter(record.family for record in known.values())
    if as_json:
        print_json(_as_json(found, counts) | ({"models": [r.model_dump() for r in known.values()]} if models else {}))
        return
    _print_families(found, counts)
    if found.failures:
        typer.echo("Cannot be used:")
        print_rows(["name", "provider", "why"], [[f.name, f.provider, f.error] for f in found.failures])
    if models:
        _print_models(list(known.values()))


def _print_families(found: Catalog, counts: Counter[str | None]) -> None:
    """The provider has a column only where there is more than one."""
    several = len({item.provider for item in found.found.values()}) > 1
    rows: list[list[object]] = []
    for name, item in by_kind(found):
        provider = [item.provider] if several else []
        extras = ", ".join(item.family.requires)
        rows.append([item.family.kind, name, *provider, counts[name], extras, item.family.summary])
    headings = ["kind", "family", *(["provider"] if several else []), "models", "extras", "what it reads"]
    print_rows(headings, rows, names=2)


def _print_models(known: list[Record]) -> None:
    if known:
        print_rows(["model", "family", "licence"], [[r.id, r.family, r.licence] for r in known], names=2)


def by_kind(found: Catalog) -> list[tuple[str, Found]]:
    """Installed families by name, those of one kind together, kinds in the order of `Kind`."""
    order = get_args(Kind)
    return sorted(found.found.items(), key=lambda item: (order.index(item[1].family.kind), item[0]))


def _as_json(found: Catalog, counts: Counter[str | None]) -> dict[str, object]:
    families = [
        {
            "name": name,
            "kind": item.family.kind,
            "provider": item.provider,
            "summary": item.family.summary,
            "options": dict(item.family.options),
            "requires": list(item.family.requires),
            "known_models": counts[name],
        }
        for name, item in by_kind(found)
    ]
    return {"families": families, "failures": [vars(failure) for failure in found.failures]}
