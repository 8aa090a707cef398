"""What the servers of reward models are sent, and where their answers hold the reward."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from rm_plugins.text.encoder import Encoded

Outputs: TypeAlias = list[float]


@dataclass(frozen=True)
class Wire:
    """One protocol.

    Attributes:
        path: where a text is posted.
        takes_ids: it is sent token ids; a server that is sent text makes its own.
        body: what is posted for a text, given the name of the server's model.
        outputs: the numbers of an answer; raises LookupError, TypeError or ValueError where there are none.
        models: where the server lists its models; "" if it does not.
    """

    path: str
    takes_ids: bool
    body: Callable[[str, Encoded], Any]
    outputs: Callable[[Any], Sequence[Any]]
    models: str = ""

    def read(self, reply: Any) -> Outputs:
        """The numbers of an answer, all of them finite.

        Raises:
            ValueError: it has none.
        """
        try:
            values = [float(value) for value in self.outputs(reply)]
        except (LookupError, TypeError, ValueError) as error:
            raise ValueError(f"the server's answer has no reward where {self.path} puts it: {reply!r:.120}") from error
        if not values or not all(map(math.isfinite, values)):
            raise ValueError(f"the server's answer is not a finite number: {values!r:.120}")
        return values


def _one(value: Any) -> Sequence[Any]:
    """A reward that some servers wrap in a list of its own."""
    return value if isinstance(value, list) else [value]


WIRES = {
    "openrlhf": Wire(
        path="/get_reward",
        takes_ids=False,
        body=lambda model, seen: {"query": [seen.text], "prompts": [""], "labels": [""]},
        outputs=lambda reply: _one(reply["rewards"][0]),
    ),
    "vllm": Wire(
        path="/classify",
        takes_ids=True,
        body=lambda model, seen: {"model": model, "input": [list(seen.ids)], "use_activation": False},
        outputs=lambda reply: reply["data"][0]["probs"],
        models="/v1/models",
    ),
    "nemo": Wire(
        path="/v2/models/reward_model/infer",
        takes_ids=False,
        body=lambda model, seen: {
            "inputs": [{"name": "sentences", "shape": [1, 1], "datatype": "BYTES", "data": [seen.text]}],
            "outputs": [{"name": "rewards"}],
        },
        outputs=lambda reply: next(o["data"] for o in reply["outputs"] if o["name"] == "rewards"),
    ),
}
"""OpenRLHF's `serve_rm`, vLLM's pooling server with its activation off, NeMo-Aligner's Triton server."""
