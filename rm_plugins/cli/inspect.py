"""`rm-plugins inspect MODEL`: what a model is, which family reads it and why, and what had to be assumed."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from rm_plugins.catalog import catalog
from rm_plugins.cli.show import print_json, print_rows, safe


def inspect_model(
    model: Annotated[str, typer.Argument(help="Hub id, folder, or family:target.")],
    record: Annotated[str | None, typer.Option(help="Treat a local copy as this published model.")] = None,
    explain: Annotated[str | None, typer.Option(help="Load the model and show what it sees of this answer.")] = None,
    prompt: Annotated[str, typer.Option(help="The prompt that --explain's answer belongs to.")] = "Hello!",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Shows a model's head, family, record and assumptions without loading its weights."""
    facts = _facts(model, record)
    if explain is not None:
        facts["sees"] = _sees(model, record, prompt, explain)
    if as_json:
        print_json(facts)
        return
    print_rows(["", ""], [[key, _cell(value)] for key, value in facts.items() if value not in (None, "", [], {})])


def _facts(model: str, record: str | None) -> dict[str, Any]:
    from rm_plugins.reward.resolve import fits, resolve

    found = resolve(model, catalog(), record=record)
    facts: dict[str, Any] = {"model": found.target, "family": found.family.name, "why": found.why}
    if checkpoint := found.checkpoint:
        facts["folder"] = str(checkpoint.folder)
        facts["architecture"] = checkpoint.architecture
        facts["heads"] = [f"{name} {shape}" for name, shape in sorted(checkpoint.heads().items())]
        facts["families"] = [f"{name}: {fit.why}" for name, fit in fits(checkpoint, catalog()).items()]
        if checkpoint.adapter:
            facts["adapter of"] = checkpoint.adapter.get("base_model_name_or_path")
    if found.record:
        shown = found.record.model_dump(exclude={"id", "family", "assumed", "sources"})
        facts |= shown
        facts["where read"] = [f"{fact}: {source}" for fact, source in found.record.sources.items()]
        facts["assumed"] = list(found.record.assumed)
    return facts


def _sees(model: str, record: str | None, prompt: str, answer: str) -> dict[str, Any]:
    from rm_plugins.reward.load import load_reward

    turns = [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]
    seen = load_reward(model, record=record).explain(turns)
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
        return "\n".join(f"{key}: {safe(item)}" for key, item in value.items())
    return str(value)
