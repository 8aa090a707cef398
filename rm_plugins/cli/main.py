"""Entry of the command line: collects the subcommands and turns our errors into one line."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from rm_plugins import __version__
from rm_plugins.cli.demo import demo
from rm_plugins.cli.fit import fit_step
from rm_plugins.cli.inspect import inspect_model
from rm_plugins.cli.listing import list_families
from rm_plugins.cli.score import score_file
from rm_plugins.errors import RmPluginsError

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
app.command("list")(list_families)
app.command("inspect")(inspect_model)
app.command("score")(score_file)
app.command("fit")(fit_step)
app.command("demo")(demo)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"rm-plugins {__version__}")
        raise typer.Exit


@app.callback()
def _about(
    version: Annotated[bool, typer.Option("--version", callback=_print_version, is_eager=True)] = False,
) -> None:
    """Any published reward model, as a TRL reward."""


def main() -> None:
    """Runs the command; an error of ours is one sentence on stderr and exit code 2."""
    try:
        app()
    except RmPluginsError as error:
        sys.stderr.write(f"rm-plugins: {error}\n")
        sys.exit(2)
