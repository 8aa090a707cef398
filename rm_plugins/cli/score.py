"""`rm-plugins score MODEL FILE`: scores a JSONL file, resumably."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rm_plugins.cli.show import options, safe


def score_file(
    model: Annotated[str, typer.Argument(help="Hub id, folder, or family:target.")],
    file: Annotated[Path, typer.Argument(help="JSONL with 'messages', or 'prompt' and 'completion', a row.")],
    out: Annotated[Path | None, typer.Option(help="Result; FILE with '.scores.jsonl' by default.")] = None,
    record: Annotated[str | None, typer.Option(help="Treat a local copy as this published model.")] = None,
    dtype: Annotated[str | None, typer.Option(help="float32, bfloat16 or float16.")] = None,
    device: Annotated[str | None, typer.Option(help="torch device, or auto.")] = None,
    max_length: Annotated[int | None, typer.Option(help="Most tokens of a conversation.")] = None,
    option: Annotated[list[str] | None, typer.Option("--option", "-o", help="Family option, name=value.")] = None,
    chunk: Annotated[int, typer.Option(min=1, help="Rows scored and written together.")] = 64,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Scores conversations; a stopped run continues where it was, and the file comes out the same.

    Under `accelerate launch` or `torchrun` the processes share the work.

    Exit code 1 means that some rows have no score; each is named on stderr and has its cause in the result.
    """
    from rich.progress import Progress

    from rm_plugins.reward.function import RewardFunction
    from rm_plugins.reward.scorefile import ScoreFile
    from rm_plugins.reward.spec import RewardSpec

    spec = RewardSpec(
        model=model, record=record, dtype=dtype, device=device, max_length=max_length, options=options(option or [])
    )
    run = ScoreFile(file, out or file.parent / f"{file.stem}.scores.jsonl", RewardFunction(spec), chunk=chunk)
    if run.done:
        typer.echo(f"continuing: {run.done} of {run.total} rows were done", err=True)
    with Progress(disable=as_json or not run.is_main) as bar:
        task = bar.add_task("scoring", total=run.total, completed=run.done)
        for count in run:
            bar.update(task, advance=count)
    if run.is_main:
        _report(run.summary(), as_json)


def _report(summary: dict[str, object], as_json: bool) -> None:
    from rm_plugins.cli.show import print_json, print_rows

    if as_json:
        print_json(summary)
    else:
        shown = {key: f"{value:.4f}" if isinstance(value, float) else value for key, value in summary.items()}
        print_rows(["", ""], [[key, value] for key, value in shown.items() if key != "errors"])
    for message in list(summary["errors"])[:20]:  # type: ignore[call-overload]
        typer.echo(safe(message), err=True)
    if summary["errors"]:
        raise typer.Exit(1)
