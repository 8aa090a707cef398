"""Generative judges: language models that are asked in words which answer is better, or how good one is.

Models: Skywork-Critic, RM-R1, Prometheus 2, RewardAnything, Nemotron's principle judges, GenRM and ReasonGenRM, GenRM
verifiers, any chat model, here or behind an API (GPT-4o, Gemini). Weights: a causal language model, nothing else. How
a judge is asked and where its verdict stands is data, `judging/formats.toml`. Pairs are asked in both orders and
reduced as in `Pairwise`; ratings are in the format's range; probabilities in [0, 1]; all higher is better. A verdict
counts only at the end of the judge's own turn; without one there is no value and the flag `unreadable`. Source: with
each format.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rm_plugins import Family, hookimpl
from rm_plugins.errors import OptionError
from rm_plugins.family import LOCAL_OPTIONS, LoadSpec, RewardModel, is_language_model, named_only
from rm_plugins.judging.asking import Asker, Writer
from rm_plugins.judging.formats import Format, Read, format_named, formats
from rm_plugins.judging.judges import Listwise, PairVotes, Panel, Ratings
from rm_plugins.judging.pairs import PAIR_OPTIONS, pairwise
from rm_plugins.remote.parallel import LIMITS, Limits
from rm_plugins.text.rules import check_choice

OPTIONS = {
    "format": "how it is asked, where no record says: " + ", ".join(formats()),
    "samples": "answers to each question, whose verdicts are averaged; 1 by default",
    "temperature": "of sampling; by default the format's, and 1 where there are several samples",
    "max_new_tokens": "most tokens of a judgment",
    "read": "verdict (what was written), probability or log_odds (of the verdict's tokens)",
    "rubric": "what is judged by, for formats that show a rubric",
    "principle": "what is judged by, for formats that show a principle",
}
API_OPTIONS = {
    "api_model": "which model the server shall run; the record's name by default",
    "api_key_env": "environment variable with the key, OPENAI_API_KEY by default",
} | LIMITS


@hookimpl
def rm_families() -> Iterable[Family]:
    """Yields the generative family."""
    local = {name: LOCAL_OPTIONS[name] for name in ("bos", "system", "max_tokens_in_flight")}
    yield Family(
        name="generative",
        kind="generative",
        summary="judges that write: Skywork-Critic, RM-R1, Prometheus 2, RewardAnything, GenRM, any chat model or API",
        load=load,
        fits=named_only,
        options=OPTIONS | PAIR_OPTIONS | local | API_OPTIONS,
    )


def load(spec: LoadSpec) -> RewardModel:
    """Loads the judge, or the client of one.

    Raises:
        OptionError: no format is known, or an option does not go with it.
        HeadError: the checkpoint has a reward head, which would not be read.
        MissingExtraError: the judge is behind an API and the openai package is missing.
    """
    form = _format(spec)
    read = spec.options.get("read", form.read)
    check_choice("read", read, Read)
    if read != "verdict" and not form.labels:
        raise OptionError(f"read={read!r} needs two verdicts to compare, and format {form.name!r} has none.")
    if read == "verdict" and not form.max_new_tokens:
        raise OptionError("max_new_tokens=0 leaves the judge no room for a verdict; read='probability' needs none.")
    samples = _whole("samples", spec.options.get("samples", 1))
    temperature = spec.options.get("temperature", form.temperature or float(samples > 1))
    if isinstance(temperature, bool) or not isinstance(temperature, int | float) or temperature < 0:
        raise OptionError(f"temperature={temperature!r} must be a number of at least 0.")
    if form.kind != "pair" and (unused := [name for name in PAIR_OPTIONS if name in spec.options]):
        raise OptionError(f"{unused[0]}= is for judges of pairs, and format {form.name!r} is none.")
    given = _given(spec, form)
    limits = {"max_new_tokens": form.max_new_tokens, "temperature": float(temperature)}
    over_api = spec.target.startswith(("http://", "https://"))
    writer = _api(spec, form, read, limits) if over_api else _local(spec, limits)
    asker, panel = Asker(form, given), Panel(writer, form, read, samples)
    if form.kind == "pair":
        return pairwise(spec, PairVotes(asker, panel))
    return Listwise(asker, panel, given["principle"]) if form.kind == "list" else Ratings(asker, panel)


def _format(spec: LoadSpec) -> Format:
    name = spec.options.get("format", spec.record and spec.record.judge)
    if not name:
        raise OptionError(f"Nobody says how {spec.target} is asked; give format=, one of {', '.join(formats())}.")
    form = format_named(str(name))
    if "max_new_tokens" in spec.options:
        form = form.model_copy(update={"max_new_tokens": _whole("max_new_tokens", spec.options["max_new_tokens"], 0)})
    return form


def _given(spec: LoadSpec, form: Format) -> dict[str, str]:
    shown = form.places | ({"principle"} if form.kind == "list" else set())
    for name in ("rubric", "principle"):
        if (name in shown) != (name in spec.options):
            raise OptionError(f"Format {form.name!r} {'needs' if name in shown else 'shows no'} {name}=.")
    return {name: str(spec.options[name]) for name in ("rubric", "principle") if name in spec.options}


def _whole(name: str, value: Any, least: int = 1) -> int:
    if type(value) is not int or value < least:
        raise OptionError(f"{name}={value!r} must be a whole number of at least {least}.")
    return value


def _local(spec: LoadSpec, limits: dict[str, Any]) -> Writer:
    from rm_plugins.engine.local import load_tokenizer
    from rm_plugins.engine.weights import load_language_model
    from rm_plugins.judging.local import LocalWriter
    from rm_plugins.text.rules import rules_for

    if unused := [name for name in API_OPTIONS if name in spec.options]:
        raise OptionError(f"{unused[0]}= is for a judge behind an API, and {spec.target} runs here.")
    checkpoint = spec.fitting("generative", is_language_model)
    tokenizer, model = load_tokenizer(checkpoint, checkpoint.base()), load_language_model(spec)
    rules = rules_for(spec, model.config.get_text_config())
    flight = spec.options.get("max_tokens_in_flight")
    return LocalWriter(model, tokenizer, rules, max_tokens_in_flight=flight, **limits)


def _api(spec: LoadSpec, form: Format, read: Read, limits: dict[str, Any]) -> Writer:
    from rm_plugins.judging.api import ApiWriter

    model = spec.options.get("api_model", spec.record and spec.record.id)
    if not model:
        raise OptionError(f"Which model shall {spec.target} run? Name it with api_model= or record=.")
    if form.reasoning_role or (read != "verdict" and form.max_new_tokens):
        raise OptionError(f"Format {form.name!r} with read={read!r} goes on with the judge's own turn; no API can.")
    bounds = Limits(**{name: spec.options[name] for name in LIMITS if name in spec.options})
    variable = spec.options.get("api_key_env", "OPENAI_API_KEY")
    return ApiWriter(spec.target, str(model), key_variable=variable, limits=bounds, **limits)
