"""What is known of each published reward model: the facts of `records.toml`, or facts derived from a checkpoint."""

from __future__ import annotations

import difflib
import logging
import tomllib
from functools import cache
from importlib.resources import files
from typing import Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict

from rm_plugins.checkpoint import Checkpoint
from rm_plugins.errors import UnknownModelError

logger = logging.getLogger(__name__)

BosPolicy: TypeAlias = Literal["keep", "strip_prefix", "strip_all", "none", "template", "derive"]
EosPolicy: TypeAlias = Literal["template", "append"]
Pooling: TypeAlias = Literal["last", "last_non_pad", "before_first_pad"]
SystemPolicy: TypeAlias = Literal["template", "merge", "drop", "error"]


class StepFacts(BaseModel):
    """How a process model is shown the steps of an answer.

    Attributes:
        form: `answer`: the steps are one assistant turn, a tag behind each, and the tag's token is read. `turns`: each
            step is a user turn that the tag answers, and the token before the tag is read, which predicts it.
            `pieces`: no template; prompt, steps and tags are tokenized one by one, and the tag is read. `running`: the
            steps are one assistant turn without tags, and each is scored by all tokens up to its end.
        separator: what stands between the steps of an answer, "" where the whole answer is one; options override it.
        tag: text of the one token that ends a step.
        lead: what is written between a step and its tag.
        join: what is written between a tag and the next step.
        prompt_end: `pieces`: what is written behind the prompt.
        blank: whether a blank step is a step.
        system: system turn of a conversation that has none.
        labels: the tokens whose logits say right and wrong, for models without a head of their own.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    form: Literal["answer", "turns", "pieces", "running"]
    separator: str
    tag: str = ""
    lead: str = ""
    join: str = ""
    prompt_end: str = ""
    blank: bool = False
    system: str = ""
    labels: tuple[str, str] | None = None


class Record(BaseModel):
    """The facts that decide a model's number.

    Attributes:
        id: hub id, or the name of an unknown checkpoint.
        family: family that reads it; None to let the families decide.
        dtype: dtype the published number was made with; None for the checkpoint's own.
        bos: what happens to the beginning-of-sequence token; "derive" looks at ids for an unknown model.
        eos: "template" leaves the end as the template wrote it; "append" ends it in exactly one end-of-sequence token.
        pooling: which token is read.
        system: what to do with a system turn; "template" passes it if the template has the role and merges it if not.
        template: chat template of a card that writes its text by hand; None for the tokenizer's own.
        suffix: token that ends the text, whatever the template wrote.
        pad_id: pad that pooling looks for; None for the config's.
        rewardbench: facts that differ where RewardBench writes the text.
        base: hub id of the model whose config and tokenizer it uses, for a pickle of weights that has none.
        sign: 1 if higher is better, -1 for a cost model.
        steps: process models that are plain language models: how they are shown steps.
        reference: implicit models: hub id of the model that training started from; "none" if it used none.
        beta: implicit models: what the difference of log-probabilities is multiplied by.
        compares_with: data-set column of the answer that each answer is compared with, for models that need one.
        judge: generative models: the format in which they are asked, of `judging/formats.toml`.
        aggregate: process models: how the card makes one number of the steps; None where it does not say.
        sources: fact -> where it was read.
        assumed: facts that were derived, one sentence each.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str
    family: str | None = None
    backbone: str | None = None
    revision: str = "main"
    dtype: str | None = None
    attn_implementation: str | None = None
    bos: BosPolicy = "derive"
    eos: EosPolicy = "template"
    pooling: Pooling = "last"
    system: SystemPolicy = "template"
    template: str | None = None
    suffix: str = ""
    pad_id: int | None = None
    rewardbench: dict[str, str] = {}
    max_length: int | None = None
    base: str | None = None
    sign: Literal[1, -1] = 1
    steps: StepFacts | None = None
    aggregate: str | None = None
    reference: str | None = None
    beta: float | None = None
    compares_with: str | None = None
    judge: str | None = None
    licence: str = "unverified"
    published: str = ""
    sources: dict[str, str] = {}
    notes: str = ""
    assumed: tuple[str, ...] = ()


@cache
def records() -> dict[str, Record]:
    """Every published model that is known, by hub id."""
    groups = tomllib.loads(files("rm_plugins").joinpath("records.toml").read_text(encoding="utf-8"))["group"]
    return {model["id"]: Record(**(_shared(group) | model)) for group in groups for model in group["models"]}


def _shared(group: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key not in ("name", "models")}


def find(model: str) -> Record | None:
    """The record of a hub id, whatever the case of its letters; None if there is none."""
    lower = {known.lower(): record for known, record in records().items()}
    return lower.get(model.lower())


def require(model: str) -> Record:
    """The record of a hub id.

    Raises:
        UnknownModelError: no record has that id; names the nearest.
    """
    if record := find(model):
        return record
    close = difflib.get_close_matches(model, records(), n=1, cutoff=0.4)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    raise UnknownModelError(
        f"No record of {model!r}.{hint} 'rm-plugins list --models' shows the {len(records())} known models."
    )


def derive(checkpoint: Checkpoint) -> Record:
    """A record for a checkpoint nobody described: what its config says, and what had to be assumed."""
    config = checkpoint.text_config
    dtype = config.get("dtype") or config.get("torch_dtype")
    assumed = [
        "bos: exactly one if the tokenizer or the template writes one",
        "eos: as the template writes it",
        "pooling: the right-most token that is not the pad is read, as stock transformers does",
        f"dtype: {dtype} from the config" if dtype else "dtype: float32, the config names none",
        "sign: higher is better",
    ]
    if (pad := config.get("pad_token_id")) is not None and pad == config.get("eos_token_id"):
        assumed.append(
            "pad is eos: an eos that ends the text is not read but the token before it, as stock transformers does; "
            "pooling='last' reads the eos"
        )
    if code := config.get("auto_map"):
        assumed.append(f"code: {', '.join(map(str, code.values()))} is not run; the stock class is used")
    return Record(
        id=checkpoint.name,
        backbone=checkpoint.config.get("model_type"),
        pooling="last_non_pad",
        dtype=str(dtype) if dtype else "float32",
        max_length=config.get("max_position_embeddings"),
        assumed=tuple(assumed),
    )


def as_published(facts: Record, family: str) -> Record:
    """A derived record with the text of the family's published models, if those on its backbone agree on one.

    Their cards write the text by hand, so an unknown model of the family was made for that text too, or for none.
    """
    models = [r for r in records().values() if r.family == family and r.backbone == facts.backbone and not r.base]
    texts = {(r.template, r.bos, r.eos, r.pooling, r.pad_id) for r in models}
    if len(texts) != 1 or models[0].template is None:
        return facts
    chosen = models[0].model_dump(include={"template", "rewardbench", "bos", "eos", "pooling", "pad_id"})
    rest = tuple(fact for fact in facts.assumed if fact.split(":")[0] not in chosen)
    logger.warning(
        "%s has no record: its text is written by hand as for %s; record= says what it is", facts.id, models[0].id
    )
    return facts.model_copy(update=chosen | {"assumed": (f"text: as for {models[0].id}, by hand", *rest)})
