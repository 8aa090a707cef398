"""Fits a step on a pool of scored answers, and says what it changes there."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from scipy.stats import pearsonr, spearmanr

from rm_plugins.conversation import Conversation
from rm_plugins.errors import MissingExtraError, OptionError
from rm_plugins.judging.groups import prompt_of
from rm_plugins.reward.scorefile import parse_row
from rm_plugins.shaping.batch import Array, Batch
from rm_plugins.shaping.length import LengthCurve
from rm_plugins.shaping.reference import Reference
from rm_plugins.shaping.scale import Fixed
from rm_plugins.shaping.step import Step

Kind: TypeAlias = Literal["fixed", "reference", "length_curve"]
_REFERENCES = 32
"""Quantiles that stand for all rewards of a pool of references."""


@dataclass(frozen=True)
class Pool:
    """Scored answers.

    Attributes:
        rewards: (n,) raw; answers without a reward are left out.
        lengths: (n,) in `unit`.
        groups: (n,) the prompt of each.
        gold: (n,) of the gold column, NaN where a row has none; None without a column.
        unit: `tokens` or `characters`.
        source: sha256 of the file that the answers are in.
        run: what the score file says of its making: model, family, record, options.
    """

    rewards: Array
    lengths: Array
    groups: list[str]
    gold: Array | None
    unit: str
    source: str
    run: dict[str, Any]

    def batch(self) -> Batch:
        """As a step sees it."""
        return Batch.of(self.rewards.tolist(), self.groups, self.lengths.tolist())


def read_pool(scores: Path, source: Path, gold: str | None = None, count: Callable[[str], int] | None = None) -> Pool:
    """Reads what `rm-plugins score` wrote, with the answers that it was about.

    Args:
        scores: the result file; its `.run.json` stands beside it.
        source: the file that was scored.
        gold: column of the source with the true quality of an answer, a number.
        count: tokens of a text; characters are counted without it.

    Raises:
        OptionError: a file is missing or of another run, fewer than three answers have a reward, or no row has the
            gold column.
    """
    note = scores.with_name(scores.name + ".run.json")
    for path in (scores, source, note):
        if not path.is_file():
            raise OptionError(f"There is no file {path}; rm-plugins score makes {scores.name} and {note.name}.")
    run, data = json.loads(note.read_text(encoding="utf-8")), source.read_bytes()
    if (digest := hashlib.sha256(data).hexdigest()) != run.get("source_sha256"):
        raise OptionError(f"{scores} was not made from {source}, which has changed or is another file.")
    lines = dict(enumerate(data.split(b"\n"), 1))
    told = [json.loads(line) for line in scores.read_bytes().splitlines()]
    scored = [(row["score"], parse_row(lines[row["line"]])) for row in told if row["score"] is not None]
    rows = [(score, row) for score, row in scored if isinstance(row, Conversation)]
    if len(rows) < 3:
        raise OptionError(f"{scores} has {len(rows)} scored answers; a fit needs at least 3.")
    return Pool(
        rewards=np.array([score for score, _ in rows], dtype=np.float64),
        lengths=np.array([(count or len)(row.answer) for _, row in rows], dtype=np.float64),
        groups=[prompt_of(row) for _, row in rows],
        gold=_gold([row for _, row in rows], gold) if gold else None,
        unit="tokens" if count else "characters",
        source=digest,
        run=run,
    )


def _gold(rows: list[Conversation], name: str) -> Array:
    values = [row.columns.get(name) for row in rows]
    numbers = [float(value) if isinstance(value, int | float) else np.nan for value in values]
    if np.isnan(numbers).all():
        raise OptionError(f"No scored row has a number in column {name!r}.")
    return np.array(numbers)


def fit(kind: Kind, pool: Pool, **settings: Any) -> Step:
    """A step fitted on a pool.

    Args:
        pool: scored answers.
        kind: `fixed`: mean and deviation. `reference`: the pool is of reference answers, and rewards are centred on
            its quantiles. `length_curve`: LOWESS of rewards over lengths.
        settings: of the step.
    """
    if kind == "fixed":
        return Fixed.of(pool.rewards)
    if kind == "reference":
        levels = np.quantile(pool.rewards, (np.arange(_REFERENCES) + 0.5) / _REFERENCES)
        return Reference(rewards=tuple(np.unique(levels).tolist()), **settings)
    step = LengthCurve(unit=pool.unit, **settings)
    step.fit(pool.batch())
    return LengthCurve(unit=pool.unit, **settings, **step.state_dict())


def report(pool: Pool, step: Step) -> dict[str, float | int | str]:
    """What the step changes on the pool: correlations with length, and agreement with gold if there is any."""
    after = step.apply(pool.batch())
    found: dict[str, float | int | str] = {
        "answers": len(pool.rewards),
        "mean": float(pool.rewards.mean()),
        "deviation": float(pool.rewards.std(ddof=1)),
        "unit of length": pool.unit,
        "source sha256": pool.source[:16],
    }
    for name, values in (("before", pool.rewards), ("after", after)):
        found[f"length correlation {name} (Pearson)"] = _correlation(pearsonr, pool.lengths, values)
        found[f"length correlation {name} (Spearman)"] = _correlation(spearmanr, pool.lengths, values)
        if pool.gold is not None:
            found[f"agreement with gold {name}"] = agreement(values, pool.gold, pool.groups)
    if pool.gold is not None:
        found["gain in agreement"] = float(found["agreement with gold after"]) - float(
            found["agreement with gold before"]
        )
    return found


def agreement(values: Array, gold: Array, groups: list[str]) -> float:
    """Share of pairs of answers to one prompt that are ordered as gold orders them; NaN if gold orders none.

    Ties of the rewards count half. Where no prompt has two answers, all pairs of the pool count.
    """
    names = np.array(groups)
    if len(set(groups)) == len(groups):
        names = np.zeros(len(groups))
    right = pairs = 0.0
    for name in np.unique(names):
        at = (names == name) & ~np.isnan(gold) & ~np.isnan(values)
        one, two = np.sign(np.subtract.outer(gold[at], gold[at])), np.sign(np.subtract.outer(values[at], values[at]))
        upper = np.triu(one != 0, 1)
        pairs += upper.sum()
        right += (0.5 * (1 + one * two))[upper].sum()
    return float(right / pairs) if pairs else float("nan")


def _correlation(measure: Callable[..., Any], lengths: Array, values: Array) -> float:
    known = ~np.isnan(values)
    if np.ptp(lengths[known]) == 0 or np.ptp(values[known]) == 0:
        return float("nan")
    return float(measure(lengths[known], values[known]).statistic)


def draw(pool: Pool, step: Step, path: Path) -> None:
    """Draws rewards over lengths before and after the step, with the curve if it is one.

    Raises:
        MissingExtraError: the extra `fit` is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("Drawing needs matplotlib: pip install 'rm-plugins[fit]'") from error
    figure = Figure(figsize=(9, 4), layout="constrained")
    for place, (title, values) in enumerate((("before", pool.rewards), ("after", step.apply(pool.batch()))), 1):
        axes = figure.add_subplot(1, 2, place)
        correlation = _correlation(spearmanr, pool.lengths, values)
        axes.scatter(pool.lengths, values, s=8, alpha=0.5, linewidths=0)
        axes.set(
            title=f"{title}: Spearman {round(correlation, 2) + 0.0:.2f}",
            xlabel=f"length in {pool.unit}",
            ylabel="reward",
        )
        if place == 1 and isinstance(step, LengthCurve):
            axes.plot(step.lengths, step.rewards, color="tab:red", label="average reward of this length")
            axes.legend()
    figure.savefig(path, dpi=120)
