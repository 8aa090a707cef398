"""Process reward models: one probability for each step of an answer.

Models: Math-Shepherd and the RLHFlow PRMs and ORMs, plain language models whose logits of "+" and "-" are read; their
records say how steps are written. Qwen2.5-Math-PRM: `score.0`, ReLU, `score.2` with two outputs, read at `<extra_0>`
behind each step. Skywork-o1-Open-PRM: `v_head.summary`, a sigmoid, read at the line break behind each line. TRL's token
classifiers (its PRMTrainer): `score` with two labels, read at the separator. Steps are in `Score.steps`, each the
probability in [0, 1] that it is right; `aggregate=` makes one number of them. An answer without steps has no value.
Source: the cards and repositories named in `records.toml`, and TRL 1.12's PRMTrainer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

from rm_plugins import Family, hookimpl
from rm_plugins.family import LOCAL_OPTIONS, Fit, LoadSpec, RewardModel, is_language_model
from rm_plugins.records import StepFacts
from rm_plugins.steps import AGGREGATE, PARTS, Steps

if TYPE_CHECKING:
    from torch import Tensor

    from rm_plugins.checkpoint import Checkpoint

LogProbs: TypeAlias = "Callable[[Tensor], Tensor]"
"""Takes states (steps, hidden) and returns the log-probability that each step is right."""
BOXED = "Please reason step by step, and put your final answer within \\boxed{}."
QWEN, SKYWORK, TOKENS = "Qwen2ForProcessRewardModel", "Qwen2ForPrmModel", "ForTokenClassification"
FACTS = {
    QWEN: StepFacts(form="answer", separator="\n\n", tag="<extra_0>", system=BOXED),
    SKYWORK: StepFacts(form="pieces", separator="\n", tag="\n", prompt_end="\n", blank=True),
    TOKENS: StepFacts(form="pieces", separator="\n", tag="\n"),
}
"""How the models that have a head of their own are shown steps."""
OPTIONS = ("bos", "system", "reasoning", "max_tokens_in_flight")


@hookimpl
def rm_families() -> Iterable[Family]:
    """Yields the process family."""
    yield Family(
        name="process",
        kind="process",
        summary="a score for each step: Math-Shepherd, RLHFlow PRM, Qwen2.5-Math-PRM, Skywork-o1-PRM, TRL's",
        load=load,
        fits=fits,
        options={name: LOCAL_OPTIONS[name] for name in OPTIONS}
        | AGGREGATE
        | {"separator": "what stands between the steps of an answer, where it is not what the model's own data has"},
    )


def fits(checkpoint: Checkpoint) -> Fit:
    """Fits the architectures with a head for steps; language models only by their record."""
    heads, kind = checkpoint.heads(), _kind(checkpoint)
    expected = {
        QWEN: {"score.0.weight", "score.0.bias", "score.2.weight", "score.2.bias"},
        SKYWORK: {"v_head.summary.weight", "v_head.summary.bias"},
        TOKENS: {"score.weight", "score.bias"},
    }.get(kind)
    if expected is None:
        return Fit(False, "its architecture has no head for steps; a language model that scores them needs a record")
    return Fit(set(heads) == expected, f"{checkpoint.architecture} has {', '.join(sorted(expected))}")


def load(spec: LoadSpec) -> RewardModel:
    """Loads the model and its way to score steps.

    Raises:
        HeadError: a language model without a record, or tensors that no process model has.
        OptionError: nobody says how the steps' scores become one.
    """
    from rm_plugins.engine.local import LocalModel, load_tokenizer
    from rm_plugins.engine.runner import Engine
    from rm_plugins.text.rules import rules_for
    from rm_plugins.text.steps import PieceEncoder, StepEncoder

    record = spec.record
    rule = Steps(spec.options.get("aggregate", record and record.aggregate))
    known = record.steps if record else None
    checkpoint = spec.fitting("process", is_language_model if known else fits)
    facts = known or FACTS[_kind(checkpoint)]
    if "separator" in spec.options:
        facts = facts.model_copy(update={"separator": str(spec.options["separator"])})
    tokenizer = load_tokenizer(checkpoint, checkpoint.base())
    backbone, log_probs = _language_model(spec, tokenizer, facts) if known else _with_head(spec, checkpoint)
    make = PieceEncoder if facts.form == "pieces" else StepEncoder
    encoder = make(tokenizer, rules_for(spec, backbone.config.get_text_config()), facts)
    engine = Engine(backbone, max_tokens_in_flight=spec.options.get("max_tokens_in_flight"))
    return LocalModel(encoder, engine, lambda states: rule.score(log_probs(states).tolist()), PARTS)


def _kind(checkpoint: Checkpoint) -> str:
    return TOKENS if checkpoint.architecture.endswith(TOKENS) else checkpoint.architecture


def _language_model(spec: LoadSpec, tokenizer: Any, facts: StepFacts) -> tuple[Any, LogProbs]:
    """A language model, and the logits of two tokens against each other."""
    from rm_plugins.engine.vocabulary import VocabularyHead
    from rm_plugins.engine.weights import load_language_model
    from rm_plugins.text.steps import single_token

    labels = [single_token(tokenizer, label) for label in facts.labels or ()]
    model = load_language_model(spec)
    head = VocabularyHead(model)
    return model.base_model, lambda states: head.logits(states, labels).log_softmax(-1)[:, 0]


def _with_head(spec: LoadSpec, checkpoint: Checkpoint) -> tuple[Any, LogProbs]:
    """A backbone, and its head: two labels against each other, the second one right, or one output's sigmoid."""
    from torch.nn.functional import logsigmoid

    from rm_plugins.engine.heads import stack
    from rm_plugins.engine.weights import load_backbone, read_tensors

    names = set(checkpoint.heads())
    prefix = "v_head.summary" if _kind(checkpoint) == SKYWORK else "score"
    head = stack(read_tensors(checkpoint, names), prefix, checkpoint.hidden_size)
    backbone = load_backbone(spec, names)
    if _kind(checkpoint) == SKYWORK:
        return backbone, lambda states: logsigmoid(head(states)[:, 0])
    return backbone, lambda states: head(states).log_softmax(-1)[:, 1]
