"""`rm-plugins fit SCORES SOURCE`: fits a step of shaping on scored answers and writes a reward.yaml."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from rm_plugins.cli.show import options, print_json, print_rows


class Kind(StrEnum):
    """What can be fitted."""

    fixed = "fixed"
    reference = "reference"
    length_curve = "length_curve"


def fit_step(
    scores: Annotated[Path, typer.Argument(help="Result of rm-plugins score.")],
    source: Annotated[Path, typer.Argument(help="The file that was scored.")],
    step: Annotated[Kind, typer.Option(help="What to fit: statistics, references, or rewards over lengths.")],
    gold: Annotated[str | None, typer.Option(help="Column of the source with true quality, a number.")] = None,
    tokenizer: Annotated[
        str | None, typer.Option(help="The policy's, to count its tokens; characters are counted without it.")
    ] = None,
    option: Annotated[list[str] | None, typer.Option("--option", "-o", help="Setting of the step, name=value.")] = None,
    out: Annotated[Path, typer.Option(help="Where to write the reward.")] = Path("reward.yaml"),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Fits a step, prints what it changes, draws it beside the reward file, and writes that file.

    load_reward("reward.yaml") is the scored model with the step behind it.
    """
    from rm_plugins.reward.rewardfile import write_reward_file
    from rm_plugins.shaping.fit import draw, fit, read_pool, report

    pool = read_pool(scores, source, gold, _counter(tokenizer))
    fitted = fit(step.value, pool, **options(option or []))
    found = report(pool, fitted)
    picture = out.with_suffix(".png")
    draw(pool, fitted, picture)
    settings = fitted.model_dump(mode="json", exclude_defaults=True)
    about = "\n".join(["Written by rm-plugins fit.", *(f"{name}: {_shown(value)}" for name, value in found.items())])
    write_reward_file(out, _reward(pool.run) | {"shaping": [{fitted.name: settings}]}, about)
    shown = found | {"reward": str(out), "picture": str(picture)}
    if as_json:
        print_json(shown)
    else:
        print_rows(["", ""], [[name, _shown(value)] for name, value in shown.items()])


def _shown(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)


def _reward(run: dict[str, Any]) -> dict[str, Any]:
    """The keys of a reward file for the model that gave the scores."""
    record = run.get("record") or {}
    known = bool(record) and not record.get("assumed")
    facts = {"model": run["model"], "record": record["id"] if known and record["id"] != run["model"] else None}
    chosen = {"dtype": record.get("dtype"), "max_length": record.get("max_length")} if known else {}
    return {key: value for key, value in (facts | chosen).items() if value is not None} | {"options": run["options"]}


def _counter(name: str | None) -> Any:
    if name is None:
        return None
    from rm_plugins.checkpoint import Checkpoint
    from rm_plugins.engine.local import load_tokenizer

    tokenizer = load_tokenizer(Checkpoint.open(name, bare=True))
    return lambda text: len(tokenizer(text, add_special_tokens=False)["input_ids"])
