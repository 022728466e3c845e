"""How the gradient of a layer's parameters follows from its input and its output's gradient, for two halves of a batch.

A rule takes the layer, its input, its output's gradient and the number of rows (samples x positions) in the first
half, and yields each parameter with its gradients of both halves: a large one in chunks, so that memory stays small.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

CHUNK = 1 << 24  # elements of a gradient that are in memory at once

Pieces = Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]
Rule = Callable[[Any, torch.Tensor, torch.Tensor, int], Pieces]


def linear(layer: Any, x: torch.Tensor, out: torch.Tensor, half: int) -> Pieces:
    """weight' = out'^T x, bias' = sum of out' (GPT-2's Conv1D keeps the transpose, whose norm is the same)."""
    x = x.reshape(-1, x.shape[-1]).to(out.dtype)
    out = out.reshape(-1, out.shape[-1])
    for columns in out.split(max(1, CHUNK // x.shape[1]), dim=1):
        yield layer.weight, columns[:half].T @ x[:half], columns[half:].T @ x[half:]
    if layer.bias is not None:
        yield layer.bias, out[:half].sum(0), out[half:].sum(0)


def embedding(layer: nn.Embedding, ids: torch.Tensor, out: torch.Tensor, half: int) -> Pieces:
    """weight'[id] = sum of out' over the places where it was looked up."""
    padding = -1 if layer.padding_idx is None else layer.padding_idx
    ids, out = ids.reshape(-1), out.reshape(-1, out.shape[-1])

    def gathered(rows: slice, columns: torch.Tensor) -> torch.Tensor:
        backward: Callable[..., torch.Tensor] = torch.ops.aten.embedding_dense_backward
        return backward(columns[rows].contiguous(), ids[rows], layer.num_embeddings, padding, False)

    for columns in out.split(max(1, CHUNK // layer.num_embeddings), dim=1):
        yield layer.weight, gathered(slice(half), columns), gathered(slice(half, None), columns)


def norm(layer: Any, x: torch.Tensor, out: torch.Tensor, half: int) -> Pieces:
    """weight' = sum of out' times the normalised input, bias' = sum of out'."""
    shape = layer.normalized_shape
    normalise = F.rms_norm if isinstance(layer, nn.RMSNorm) else F.layer_norm
    unit = normalise(x.to(layer.weight.dtype), shape, eps=layer.eps).reshape(-1, *shape)
    out = out.reshape(-1, *shape)
    product = out * unit
    yield layer.weight, product[:half].sum(0), product[half:].sum(0)
    if getattr(layer, "bias", None) is not None:
        yield layer.bias, out[:half].sum(0), out[half:].sum(0)


RULES: dict[str, Rule] = {
    "Linear": linear,
    "Conv1D": linear,
    "Embedding": embedding,
    "LayerNorm": norm,
    "RMSNorm": norm,
}
PLAIN = {"Embedding": {"max_norm": None, "scale_grad_by_freq": False, "sparse": False}}  # what a rule takes for granted


def rule(layer: nn.Module) -> Rule | None:
    """The rule for a layer, or None; by the name of its class, as a subclass may do something else."""
    name = type(layer).__name__
    if any(getattr(layer, option) != value for option, value in PLAIN.get(name, {}).items()):
        return None
    return RULES.get(name) if isinstance(getattr(layer, "weight", None), torch.Tensor) else None


def first_half(layer: nn.Module, x: torch.Tensor, batch: int, length: int | None) -> int | None:
    """Rows of the first batch // 2 samples in a layer's input, or None if samples can't be told apart in it.

    The batch comes first: [batch, …, features], or samples and positions in one dimension, [batch * length, features].
    """
    features = {"Embedding": 0}.get(type(layer).__name__, len(getattr(layer, "normalized_shape", (0,))))
    if x.dim() <= features:
        return None
    rows = x.shape[: x.dim() - features].numel()
    if x.shape[0] == batch and (x.dim() > 1 or length is None):  # ids in one dimension may be positions
        return batch // 2 * (rows // batch)
    return batch // 2 * length if length is not None and features and rows == x.shape[0] == batch * length else None


SAVED = {  # node of the graph -> where it keeps a layer's input
    "AddmmBackward0": "_saved_mat1",
    "MmBackward0": "_saved_self",
    "LinearBackward0": "_saved_input",
    "NativeLayerNormBackward0": "_saved_input",
}
SINGLE = ("Linear", "Conv1D", "LayerNorm")  # layers of one such node
HOPS = 3  # from a layer's output: it may be a view of a view


def kept_input(layer: nn.Module, x: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
    """What autograd keeps of a layer's input: under autocast a copy in another type, and else the input itself.

    Where saved tensors are packed (checkpointing, offloading), to look at one would be to compute or fetch it.
    """
    if type(layer).__name__ not in SINGLE or not torch.is_autocast_enabled(x.device.type) or _packed():
        return x
    node = output.grad_fn
    for _ in range(HOPS):
        if node is None:
            break
        place = SAVED.get(node.name())
        if place is not None:
            saved: torch.Tensor = getattr(node, place)
            return saved if saved.numel() == x.numel() else x
        node = node.next_functions[0][0] if node.next_functions else None
    return x


def _packed() -> bool:
    look = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    return look is None or look(False) is not None
