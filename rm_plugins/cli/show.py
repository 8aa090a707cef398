"""What commands print and read: tables for people, JSON for programs, text safe for a terminal, name=value options."""

from __future__ import annotations

import json
import os
import sys
import unicodedata
from typing import Any

import typer

from rm_plugins.errors import OptionError

_WIDE = 1000
"""Columns of a table that no person reads."""


def safe(text: object) -> str:
    """Text with control and format characters escaped, so that model output cannot drive a terminal."""
    return "".join(_escaped(char) for char in str(text))


def _escaped(char: str) -> str:
    if char != "\n" and unicodedata.category(char) in ("Cc", "Cf", "Co", "Cs"):
        return char.encode("unicode_escape", "surrogatepass").decode("ascii")
    return char


def print_json(data: Any) -> None:
    """Writes one JSON document to stdout, in ASCII: no text of a model reaches the terminal as it is."""
    typer.echo(json.dumps(data, indent=2, default=str))


def print_rows(headings: list[str], rows: list[list[object]], *, names: int = 1) -> None:
    """Writes a table to stdout, as wide as the terminal; its first columns are names, which are never broken.

    Args:
        headings: of the columns; all empty for none.
        rows: the cells.
        names: how many columns are names.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE, pad_edge=False, padding=(0, 1, 0, 0), show_header=any(headings), show_edge=False)
    for index, heading in enumerate(headings):
        table.add_column(heading, overflow="fold", no_wrap=index < names)
    for row in rows:
        table.add_row(*(Text(safe(cell)) for cell in row))
    piped = not sys.stdout.isatty() and "COLUMNS" not in os.environ  # a line a row, for grep
    Console(width=_WIDE if piped else None).print(table)


def options(pairs: list[str]) -> dict[str, object]:
    """Family options from `name=value` words; numbers, true and false are read as JSON writes them.

    Raises:
        OptionError: a word without "=".
    """
    found: dict[str, object] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise OptionError(f"--option {pair!r} must be name=value.")
        found[name] = _value(value)
    return found


def _value(text: str) -> object:
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, bool | int | float) else text
