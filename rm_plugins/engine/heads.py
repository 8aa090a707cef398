"""Heads that families build from a checkpoint's tensors: stacks of linear layers, in float32."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TypeAlias

from torch import Tensor
from torch.nn.functional import batch_norm, linear, relu

from rm_plugins.errors import HeadError

Activation: TypeAlias = Callable[[Tensor], Tensor]
Stack: TypeAlias = Callable[[Tensor], Tensor]
"""Takes (n, inputs) and returns (n, outputs)."""
_EPSILON = 1e-5
"""Of torch's BatchNorm1d; no published head sets another."""


def stack(tensors: Mapping[str, Tensor], prefix: str, inputs: int, activation: Activation = relu) -> Stack:
    """The layers named `prefix.weight`, or `prefix.0.weight`, `prefix.2.weight`, ..., in the order of their numbers.

    The activation stands between linear layers and never behind the last. A layer with running statistics is a batch
    norm in evaluation.

    Args:
        tensors: name -> float32 tensor; weights (outputs, inputs), biases (outputs,) where a layer has one.
        prefix: of the layers' names.
        inputs: width of what the first layer takes.
        activation: what stands between them.

    Raises:
        HeadError: no layer has that prefix, one lacks its weight, or neighbours do not fit each other.
    """
    pattern = re.compile(rf"{re.escape(prefix)}(?:\.(\d+))?\.weight")
    numbered = sorted((int(hit[1] or 0), name) for name in tensors if (hit := pattern.fullmatch(name)))
    layers = [_layer(tensors, name.removesuffix(".weight")) for _, name in numbered]
    if not layers:
        raise HeadError(f"There is no layer named {prefix} among {', '.join(sorted(tensors)) or 'no tensors'}.")
    if lost := [n for n in tensors if n.startswith(f"{prefix}.") and f"{n.rpartition('.')[0]}.weight" not in tensors]:
        raise HeadError(f"{lost[0]} belongs to a layer whose weight is not there.")
    widths = [(inputs, "the backbone"), *((tensors[name].shape[0], name) for _, name in numbered)]
    for (width, before), (_, name) in zip(widths, numbered, strict=False):
        if width != tensors[name].shape[-1]:
            raise HeadError(f"{name} takes {tensors[name].shape[-1]} inputs and {before} gives {width}.")
    norms = [tensors[name].ndim == 1 for _, name in numbered]

    def run(states: Tensor) -> Tensor:
        for number, layer in enumerate(layers):
            states = layer(states)
            last = number == len(layers) - 1
            states = states if last or norms[number] else activation(states)
        return states

    return run


def gate(tensors: Mapping[str, Tensor], prefix: str, inputs: int, temperature: float) -> Stack:
    """A softmax over the outputs of `prefix.layers`, times `prefix.logit_scale`, as ArmoRM and QRM weigh objectives.

    Args:
        tensors: as in `stack`.
        prefix: of the gate's tensors.
        inputs: as in `stack`.
        temperature: divides the outputs before the softmax.
    """
    layers, scale = stack(tensors, f"{prefix}.layers", inputs), tensors[f"{prefix}.logit_scale"]
    return lambda states: (layers(states) / temperature).softmax(-1) * scale[0]


def _layer(tensors: Mapping[str, Tensor], name: str) -> Stack:
    weight, bias = tensors[f"{name}.weight"], tensors.get(f"{name}.bias")
    mean, variance = tensors.get(f"{name}.running_mean"), tensors.get(f"{name}.running_var")
    if mean is None or variance is None:
        return lambda states: linear(states, weight, bias)
    return lambda states: batch_norm(states, mean, variance, weight, bias, eps=_EPSILON)
