"""What commands print: tables for people, JSON for programs, and model text made safe for a terminal."""

from __future__ import annotations

import json
import unicodedata
from typing import Any

import typer


def safe(text: object) -> str:
    """Text with control and format characters escaped, so that model output cannot drive a terminal."""
    return "".join(_escaped(char) for char in str(text))


def _escaped(char: str) -> str:
    if char != "\n" and unicodedata.category(char) in ("Cc", "Cf", "Co", "Cs"):
        return char.encode("unicode_escape", "surrogatepass").decode("ascii")
    return char


def print_json(data: Any) -> None:
    """Writes one JSON document to stdout."""
    typer.echo(json.dumps(data, ensure_ascii=False, indent=2, default=str))


def print_rows(headings: list[str], rows: list[list[object]]) -> None:
    """Writes a table to stdout, as wide as the terminal."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE, pad_edge=False)
    for index, heading in enumerate(headings):
        table.add_column(heading, overflow="fold", no_wrap=index == 0)
    for row in rows:
        table.add_row(*(Text(safe(cell)) for cell in row))
    Console().print(table)
