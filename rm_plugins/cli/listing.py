"""`rm-plugins list`: installed families, broken plugins, known models."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, get_args

import typer

from rm_plugins.catalog import Catalog, Found, catalog
from rm_plugins.cli.show import print_json, print_rows
from rm_plugins.family import Kind


def list_families(
    models: Annotated[bool, typer.Option("--models", help="List the known models too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Lists reward-model families by kind, and plugins that cannot be used."""
    from rm_plugins.records import records

    found, known = catalog(), records()
    counts = Counter(record.family for record in known.values())
    if as_json:
        print_json(_as_json(found, counts) | ({"models": [r.model_dump() for r in known.values()]} if models else {}))
        return
    print_rows(
        ["kind", "family", "provider", "models", "extras", "what it reads"],
        [
            [i.family.kind, name, i.provider, counts[name], ", ".join(i.family.requires), i.family.summary]
            for name, i in by_kind(found)
        ],
        names=2,
    )
    if found.failures:
        typer.echo("Cannot be used:")
        print_rows(["name", "provider", "why"], [[f.name, f.provider, f.error] for f in found.failures])
    if models:
        print_rows(
            ["model", "dtype", "BOS", "licence"],
            [[r.id, r.dtype, r.bos, r.licence] for r in known.values()],
        )


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
