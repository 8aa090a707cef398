"""`rm-plugins inspect MODEL`: what a model is, which family reads it and why, and what had to be assumed."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from rm_plugins.catalog import catalog
from rm_plugins.cli.show import options, print_json, print_rows, safe
from rm_plugins.errors import CheckpointError
from rm_plugins.records import Record, find


def inspect_model(
    model: Annotated[str, typer.Argument(help="Hub id, folder, or family:target.")],
    record: Annotated[str | None, typer.Option(help="Treat a local copy as this published model.")] = None,
    explain: Annotated[str | None, typer.Option(help="Load the model and show what it sees of this answer.")] = None,
    prompt: Annotated[str, typer.Option(help="The prompt that --explain's answer belongs to.")] = "Hello!",
    option: Annotated[list[str] | None, typer.Option("--option", "-o", help="Family option, name=value.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Shows a model's head, family, record and assumptions without loading its weights."""
    facts = _facts(model, record)
    if explain is not None:
        facts["sees"] = _sees(model, record, options(option or []), prompt, explain)
    if as_json:
        print_json(facts)
        return
    facts.pop("families", None)  # two dozen sentences, of which one was acted on
    print_rows(["", ""], [[key, _cell(value)] for key, value in facts.items() if value not in (None, "", [], {})])


def _facts(model: str, record: str | None) -> dict[str, Any]:
    from rm_plugins.reward.resolve import fits, resolve

    try:
        found = resolve(model, catalog(), record=record)
    except CheckpointError as error:
        if known := find(model):  # what is known of it lies here, even if the model does not
            return {"model": known.id, "family": known.family, "checkpoint": str(error)} | _known(known)
        raise
    facts: dict[str, Any] = {"model": found.target, "family": found.family.name, "why": found.why}
    if checkpoint := found.checkpoint:
        facts["folder"] = str(checkpoint.folder)
        facts["architecture"] = checkpoint.architecture
        facts["heads"] = [f"{name} {shape}" for name, shape in sorted(checkpoint.heads().items())]
        verdicts = fits(checkpoint, catalog())
        if not verdicts[found.family.name].ok:
            facts["check"] = f"{found.family.name}: {verdicts[found.family.name].why}"
        facts["families"] = [f"{name}: {fit.why}" for name, fit in verdicts.items()]
        if checkpoint.adapter:
            facts["adapter of"] = checkpoint.adapter.get("base_model_name_or_path")
    return facts | (_known(found.record) if found.record else {})


def _known(record: Record) -> dict[str, Any]:
    return record.model_dump(exclude={"id", "family", "assumed", "sources"}) | {
        "where read": [f"{fact}: {source}" for fact, source in record.sources.items()],
        "assumed": list(record.assumed),
    }


def _sees(model: str, record: str | None, family_options: dict[str, Any], prompt: str, answer: str) -> dict[str, Any]:
    from rm_plugins.reward.load import load_reward

    turns = [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]
    seen = load_reward(model, record=record, **family_options).explain(turns)
    return {
        "text": seen.text,
        "ids": list(seen.ids),
        "read at": [f"{position}: {seen.tokens[position]!r}" for position in seen.read_at],
        "flags": sorted(seen.flags),
        "notes": list(seen.notes),
    }


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return "\n".join(safe(item) for item in value)
    if isinstance(value, dict):
        return "\n".join(f"{key}: {_line(item)}" for key, item in value.items())
    return str(value)


def _line(value: Any) -> str:
    return " ".join(map(safe, value)) if isinstance(value, list) else safe(value)
