"""From what the user named to a family, a checkpoint and a record."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import NamedTuple

from rm_plugins import records
from rm_plugins.catalog import Catalog
from rm_plugins.checkpoint import Checkpoint
from rm_plugins.errors import CheckpointError, UnknownModelError, WrongFamilyError
from rm_plugins.family import Family, Fit
from rm_plugins.packaged import shipped
from rm_plugins.records import Record


class Resolved(NamedTuple):
    """A family and what it will load.

    Attributes:
        target: name of the model, without a family prefix.
        checkpoint: None for a family that takes a bare target, and for a server.
        record: None without a checkpoint, unless the caller said which published model the server runs.
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
    """Finds what `model` is: a folder, a published id, `family:target`, or `family:https://server`.

    Args:
        model: what the user named.
        catalog: installed families.
        family: family to use whatever the checkpoint looks like.
        record: hub id of the published model that a local copy is, or that a server runs.
        revision: hub revision, overriding the record's.

    Raises:
        UnknownModelError, UnknownFamilyError, CheckpointError: nothing by that name, or it cannot be read.
        WrongFamilyError: no installed family reads the checkpoint.
    """
    prefix, colon, target = model.partition(":")
    if colon and not Path(model).exists():
        named = catalog.get(prefix)
        if target.startswith(("https://", "http://")):
            return Resolved(named, target, None, records.require(record) if record else None, "a server, named by you")
        if not named.reads_checkpoints:
            return Resolved(named, target, None, None, f"named by {model!r}")
        return resolve(target, catalog, family=prefix, record=record, revision=revision)
    known = records.require(record) if record else records.find(model)
    try:
        checkpoint = Checkpoint.open(
            _existing(model),
            revision or (known.revision if known else None),
            bare=bool(known and known.base),
        )
    except (UnknownModelError, CheckpointError) as error:
        raise type(error)(f"{error}{_hint(model, known, catalog)}") from error
    facts = known or records.derive(checkpoint)
    _check_backbone(checkpoint, facts)
    if family or facts.family:
        chosen, why = catalog.get(family or facts.family or ""), "you named it" if family else "its record names it"
    else:
        chosen, why = _best(checkpoint, catalog)
    return Resolved(chosen, model, checkpoint, known or records.as_published(facts, chosen.name), why)


def _hint(model: str, known: Record | None, catalog: Catalog) -> str:
    """What may have been meant by a name that nothing was found under."""
    if Path(model).is_dir() or (known and known.backbone):
        return ""
    if known:
        return f" It is a model behind an API: '{known.family}:https://...' with record={known.id!r}. {known.notes}"
    if model in catalog.found:
        return f" {model!r} is a family: write '{model}:' and its target."
    names = [*records.records(), *shipped()]
    short = {name.rsplit("/", 1)[-1].lower(): name for name in names}
    asked = model.rsplit("/", 1)[-1].lower()
    close = sorted(name for name in short if name.startswith(asked)) or difflib.get_close_matches(asked, short, n=1)
    return f" Did you mean {short[close[0]]!r}?" if close else ""


def _check_backbone(checkpoint: Checkpoint, facts: Record) -> None:
    kind = checkpoint.config.get("model_type")
    if facts.backbone and kind and kind != facts.backbone:
        raise WrongFamilyError(
            f"{checkpoint.name} is a {kind!r} model and the published {facts.id} a {facts.backbone!r} one; "
            "its record does not describe this checkpoint."
        )


def _existing(model: str) -> str:
    looks_local = model.startswith(("/", "./", "../", "~"))
    path = Path(model).expanduser()
    if looks_local and not path.is_dir():
        raise UnknownModelError(f"There is no folder {path}.")
    return str(path) if looks_local else model


def fits(checkpoint: Checkpoint, catalog: Catalog) -> dict[str, Fit]:
    """What every installed family says of the checkpoint, by family name."""
    return {family.name: _verdict(family, checkpoint) for family in catalog.families()}


def _verdict(family: Family, checkpoint: Checkpoint) -> Fit:
    try:
        fit = family.fits(checkpoint)
    except Exception as error:  # a stranger's check may raise anything; the other families still have their say
        return Fit(False, f"its own check failed with {type(error).__name__}: {error}")
    return fit if isinstance(fit, Fit) else Fit(False, f"its own check returned a {type(fit).__name__}, not a Fit")


def _best(checkpoint: Checkpoint, catalog: Catalog) -> tuple[Family, str]:
    verdicts = fits(checkpoint, catalog)
    good = [family for family in catalog.families() if verdicts[family.name].ok]
    if len(good) > 1:
        raise WrongFamilyError(
            f"{checkpoint.name} could be of family {' or '.join(repr(family.name) for family in good)}; say which with "
            "family=, or which published model it is with record=."
        )
    if good:
        return good[0], verdicts[good[0].name].why
    reasons = [f"{name}: {fit.why}" for name, fit in verdicts.items()] or ["no family is installed"]
    broken = [f"{failure.name} of {failure.provider} cannot load: {failure.error}" for failure in catalog.failures]
    raise WrongFamilyError("\n  ".join([f"No installed family reads {checkpoint.name}.", *broken, *reasons]))
