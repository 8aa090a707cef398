"""From what the user named to a family, a checkpoint and a record."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from rm_plugins import records
from rm_plugins.catalog import Catalog
from rm_plugins.checkpoint import Checkpoint
from rm_plugins.errors import UnknownModelError, WrongFamilyError
from rm_plugins.family import Family, Fit
from rm_plugins.records import Record


class Resolved(NamedTuple):
    """A family and what it will load.

    Attributes:
        target: name of the model, without a family prefix.
        checkpoint: None for a family that takes a bare target.
        record: None without a checkpoint.
        why: how the family was chosen, in a sentence.
    """

    family: Family
    target: str
    checkpoint: Checkpoint | None
    record: Record | None
    why: str


def resolve(
    model: str, catalog: Catalog, *, family: str | None = None, record: str | None = None, revision: str | None = None
) -> Resolved:
    """Finds what `model` is: a folder, a published id, or `family:target`.

    Args:
        model: what the user named.
        catalog: installed families.
        family: family to use whatever the checkpoint looks like.
        record: hub id of the published model that a local copy is.
        revision: hub revision, overriding the record's.

    Raises:
        UnknownModelError, UnknownFamilyError, CheckpointError: nothing by that name, or it cannot be read.
        WrongFamilyError: no installed family reads the checkpoint.
    """
    prefix, colon, target = model.partition(":")
    if colon and not Path(model).exists():
        return Resolved(catalog.get(prefix), target, None, None, f"named by {model!r}")
    known = records.require(record) if record else records.find(model)
    checkpoint = Checkpoint.open(_existing(model), revision or (known.revision if known else None))
    facts = known or records.derive(checkpoint)
    if family or facts.family:
        chosen = catalog.get(family or facts.family or "")
        return Resolved(chosen, model, checkpoint, facts, "you named it" if family else "its record names it")
    chosen, why = _best(checkpoint, catalog)
    return Resolved(chosen, model, checkpoint, facts, why)


def _existing(model: str) -> str:
    looks_local = model.startswith(("/", "./", "../", "~"))
    path = Path(model).expanduser()
    if looks_local and not path.is_dir():
        raise UnknownModelError(f"There is no folder {path}.")
    return str(path) if looks_local else model


def fits(checkpoint: Checkpoint, catalog: Catalog) -> dict[str, Fit]:
    """What every installed family says of the checkpoint, by family name."""
    return {family.name: family.fits(checkpoint) for family in catalog.families()}


def _best(checkpoint: Checkpoint, catalog: Catalog) -> tuple[Family, str]:
    verdicts = fits(checkpoint, catalog)
    for family in catalog.families():
        if verdicts[family.name].ok:
            return family, verdicts[family.name].why
    reasons = "; ".join(f"{name}: {fit.why}" for name, fit in verdicts.items()) or "no family is installed"
    raise WrongFamilyError(f"No installed family reads {checkpoint.name}. {reasons}.")
