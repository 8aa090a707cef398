"""From a policy's token ids back to the conversation they stand for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from rm_plugins.conversation import Conversation, Message, from_trl
from rm_plugins.errors import ConversationError, OptionError, TextError
from rm_plugins.text.template import ChatTemplate

_UNREADABLE = "A row of policy ids does not read as the policy's chat template; pass the data set to ppo_module."


class _Mark(NamedTuple):
    """What a template writes before and after a role's text."""

    opening: str
    closing: str


class PolicyText:
    """Reads rows of policy ids: prompt and response, with pads already taken out.

    With a data set the prompt is looked up by its ids and its messages are exact; where one prompt begins like another
    the longest that fits is taken. Without one, the policy's chat template is inverted: every role's opening is known
    from rendering, and text between openings is a turn. The turns are rendered again, and must give the row's text.

    Args:
        tokenizer: the policy's.
        dataset: rows with `input_ids`, and `prompt` (text or messages) or `messages`.

    Raises:
        OptionError: neither a usable data set nor a chat template is there.
    """

    def __init__(self, tokenizer: Any, dataset: Iterable[Any] | None = None) -> None:
        self._tokenizer = tokenizer
        self._pad = tokenizer.pad_token_id
        self._prompts = dict(self._known(dataset)) if dataset is not None else {}
        self._lengths = sorted({len(key) for key in self._prompts}, reverse=True)
        self._default = ""
        self._roles: dict[str, _Mark] = {}
        if getattr(tokenizer, "chat_template", None):
            self._template = ChatTemplate(tokenizer)
            self._roles = self._marks(self._template)
        elif dataset is None:
            raise OptionError(
                "The policy's tokenizer has no chat template, so prompts cannot be told from answers; pass the data "
                "set: reward.ppo_module(tokenizer, dataset)."
            )

    def conversation(self, ids: Sequence[int]) -> Conversation:
        """The conversation of one row.

        Raises:
            ConversationError: the row starts with no known prompt, and inverting the template does not give its text.
        """
        for length in self._lengths:  # longest first: a prompt may begin like another
            if (prompt := self._prompts.get(tuple(ids[:length]))) is not None:
                return from_trl([prompt], [self._answer(ids[length:])])[0]
        if not self._roles:
            raise ConversationError("A row of policy ids starts with no prompt of the data set; pass the training set.")
        return self._invert(self._tokenizer.decode(ids, skip_special_tokens=False))

    def _known(self, dataset: Iterable[Any]) -> Iterator[tuple[tuple[int, ...], Any]]:
        for row in dataset:
            prompt = row["prompt"] if "prompt" in row else _without_answer(row.get("messages"))
            if prompt is None or "input_ids" not in row:
                raise OptionError(
                    f"The data set needs 'input_ids' and 'prompt' or 'messages'; it has {', '.join(sorted(row))}."
                )
            yield tuple(i for i in map(int, row["input_ids"]) if i != self._pad), prompt

    def _answer(self, ids: Sequence[int]) -> str:
        """Text of a response up to its end of sequence; later tokens are padding of some kind."""
        return str(self._tokenizer.decode(_until(ids, self._tokenizer.eos_token_id), skip_special_tokens=True))

    def _marks(self, template: ChatTemplate) -> dict[str, _Mark]:
        """Role -> what the template writes around its text, without pads, which PPO has taken out."""
        said = {role: f"{role}-text" for role in ("system", "user", "assistant")}
        system, user, answer = ({"role": role, "content": text} for role, text in said.items())
        after_user = self._after(template.render([user]), said["user"])
        after_answer = self._after(template.render([user, answer]), said["assistant"])
        long = self._unpadded(template.render([user, answer, user]))
        _, to_answer, to_user = _split(long, said)
        marks = {
            "assistant": _Mark(to_answer.removeprefix(after_user), after_answer),
            "user": _Mark(to_user.removeprefix(after_answer), after_user),
        }
        self._default = self._unpadded(template.added_system).removesuffix(marks["user"].opening)
        if template.has_system:
            shown = self._unpadded(template.render([system, user]))
            opening, rest = shown.split(said["system"])
            closing = rest.split(said["user"])[0].removesuffix(marks["user"].opening)
            bos = self._tokenizer.bos_token
            marks["system"] = _Mark(opening.removeprefix(bos) if bos else opening, closing)
        return marks

    def _after(self, rendered: str, said: str) -> str:
        return self._unpadded(rendered.rsplit(said, 1)[1])

    def _unpadded(self, text: str) -> str:
        pad = self._tokenizer.pad_token
        return text.replace(pad, "") if pad else text

    def _invert(self, whole: str) -> Conversation:
        text = whole.removeprefix(self._default)
        found = sorted((at, role) for role, mark in self._roles.items() for at in _positions(text, mark.opening))
        if not found or found[-1][1] != "assistant":
            raise ConversationError(_UNREADABLE)
        ends = [at for at, _ in found[1:]] + [len(text)]
        turns = [
            {"role": role, "content": self._content(text[at:end], self._roles[role])}
            for (at, role), end in zip(found, ends, strict=True)
        ]
        if not self._unpadded(whole).startswith(self._prompt_text(turns[:-1])):
            raise ConversationError(_UNREADABLE)
        turns[-1]["content"] = self._before_specials(turns[-1]["content"])
        return Conversation(tuple(turns))

    def _prompt_text(self, turns: Sequence[Message]) -> str:
        try:
            return self._unpadded(self._template.render(turns, add_generation_prompt=True))
        except TextError as error:
            raise ConversationError(_UNREADABLE) from error

    def _content(self, turn: str, mark: _Mark) -> str:
        return turn.removeprefix(mark.opening).removesuffix(mark.closing)

    def _before_specials(self, answer: str) -> str:
        for token in self._tokenizer.all_special_tokens:
            answer = answer.split(token)[0]
        return answer


def _without_answer(messages: Any) -> Any:
    """The prompt in the messages of a training example: all but the answer at their end."""
    return messages[:-1] if messages and messages[-1].get("role") == "assistant" else messages


def _split(text: str, said: dict[str, str]) -> list[str]:
    """What stands before the first user text, between it and the answer, and between the answer and the second."""
    head, middle, _ = text.split(said["user"])
    to_answer, to_user = middle.split(said["assistant"])
    return [head, to_answer, to_user]


def _until(ids: Sequence[int], stop: int | None) -> list[int]:
    taken = list(ids)
    return taken[: taken.index(stop)] if stop in taken else taken


def _positions(text: str, needle: str) -> Iterator[int]:
    position = text.find(needle)
    while needle and position >= 0:
        yield position
        position = text.find(needle, position + len(needle))
