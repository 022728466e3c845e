"""Small hand-written mixture-of-experts layers, in the manners that are met in the wild."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

WIDTH, EXPERTS, TOP_K = 16, 8, 2


class TripleRouter(nn.Module):
    """(logits [T, E], weights [T, K], numbers [T, K])."""

    def __init__(self, top_k: int = TOP_K) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(EXPERTS, WIDTH) * 0.3)
        self.num_experts, self.top_k = EXPERTS, top_k

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits = x.reshape(-1, WIDTH) @ self.weight.T
        weights, numbers = logits.softmax(-1).topk(self.top_k, -1)
        return logits, weights / weights.sum(-1, keepdim=True), numbers


class Bank(nn.Module):
    """All experts on all tokens, weighted: nothing that depends on values, so that it can be compiled whole."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(EXPERTS, WIDTH, WIDTH) * 0.1)

    def forward(self, x: Tensor, weights: Tensor) -> Tensor:
        return (torch.einsum("td,edf->tef", x, self.w) * weights[..., None]).sum(1)


class Block(nn.Module):
    def __init__(self, router: nn.Module | None = None) -> None:
        super().__init__()
        self.router = TripleRouter() if router is None else router
        self.experts = Bank()

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.reshape(-1, WIDTH)
        _, weights, numbers = self.router(x)
        dense = torch.zeros(len(tokens), EXPERTS).scatter(1, numbers, weights)
        return x + self.experts(tokens, dense).view(x.shape)


class Net(nn.Module):
    """Two blocks, each called by ``call`` (a kind of checkpointing), or both in one call of it."""

    def __init__(self, call: Callable[[Any, Tensor], Tensor] | None = None, together: bool = False) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
        self.call = call or (lambda block, x: block(x))
        self.together = together

    def forward(self, x: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        if self.together:
            return self.call(lambda y: self.blocks[1](self.blocks[0](y)), x)
        for block in self.blocks:
            x = self.call(block, x)
        return x


def recomputed(reentrant: bool, **more: Any) -> Callable[[nn.Module, Tensor], Tensor]:
    def call(block: Any, x: Tensor) -> Tensor:
        result: Tensor = checkpoint(block, x, use_reentrant=reentrant, **more)
        return result

    return call


class CapacityRouter(nn.Module):
    """(used capacity [E], combine weights [T, E, C], mask [T, E, C]), first choices before second ones."""

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.w_g = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.n_exp, self.top_k, self.capacity_factor = EXPERTS, TOP_K, factor

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits = self.w_g(x)
        best, numbers = logits.topk(self.top_k, dim=-1)
        shares = torch.full_like(logits, float("-inf")).scatter(-1, numbers, best).softmax(-1).view(-1, EXPERTS)
        tokens = shares.shape[0]
        capacity = math.ceil(self.capacity_factor * self.top_k * tokens / EXPERTS)
        mask = functional.one_hot(numbers, EXPERTS).view(tokens, self.top_k, EXPERTS).permute(1, 0, 2)
        rank = mask.reshape(-1, EXPERTS).cumsum(0).view(self.top_k, tokens, EXPERTS) - 1
        mask = mask * (rank < capacity)
        used = mask.sum((0, 1))
        place = functional.one_hot((mask * rank).sum(-1), capacity)
        combine = ((mask * shares)[..., None] * place[:, :, None]).sum(0)
        return used, combine, combine.bool()


class CapacityBlock(nn.Module):
    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.router = CapacityRouter(factor)
        self.experts = Bank()

    def forward(self, x: Tensor) -> Tensor:
        _, combine, _ = self.router(x)
        return x + self.experts(x.reshape(-1, WIDTH), combine.sum(-1)).view(x.shape)


class GateBlock(nn.Module):
    """A plain Linear gate, and the top k inside the block, with a bias on the choice and ``room`` for each expert."""

    def __init__(self, bank: nn.Module | None = None) -> None:
        super().__init__()
        self.top_k = TOP_K
        self.gate = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(EXPERTS)) if bank is None else bank
        self.bias = torch.zeros(EXPERTS)
        self.room: int | None = None

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.reshape(-1, WIDTH)
        logits = self.gate(tokens)
        numbers = (logits + self.bias).topk(self.top_k, dim=-1).indices
        weights = logits.gather(-1, numbers).softmax(-1)
        if isinstance(self.experts, Bank):
            return x + self.experts(tokens, torch.zeros_like(logits).scatter(1, numbers, weights)).view(x.shape)
        y = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            token, choice = (place[: self.room] for place in torch.where(numbers == number))
            y = y.index_add(0, token, expert(tokens[token]) * weights[token, choice, None])
        return x + y.view(x.shape)


def chosen(logits: Tensor, top_k: int = TOP_K) -> list[int]:
    """Assignments per expert, counted apart from the library."""
    counts = [0] * logits.shape[-1]
    for row in logits.reshape(-1, logits.shape[-1]).tolist():
        for expert in sorted(range(len(row)), key=lambda e: (-row[e], e))[:top_k]:
            counts[expert] += 1
    return counts


class Answer(nn.Module):
    """A router by name and shape alone: answers what it is given."""

    def __init__(self, *output: Any, **attributes: Any) -> None:
        super().__init__()
        self.output = output if len(output) > 1 else output[0]
        for name, value in attributes.items():
            setattr(self, name, value)

    def forward(self, x: Tensor) -> Any:
        return self.output


def named(name: str, module: str = "__main__", base: type[nn.Module] = Answer) -> Any:
    """A class of this name that seems to come from that module."""
    return type(name, (base,), {"__module__": module})


class Around(nn.Module):
    """A block with a router and a bank of experts beside it."""

    def __init__(self, router: nn.Module, experts: nn.Module | None = None, **attributes: Any) -> None:
        super().__init__()
        self.router = router
        self.experts = Bank() if experts is None else experts
        for name, value in attributes.items():
            setattr(self, name, value)

    def forward(self, x: Tensor) -> Any:
        return self.router(x)
