"""Trains a mixture-of-experts character transformer on Python's reference text: top-2 of 8 experts, each with a
capacity, so that what overflows an expert is dropped; an auxiliary loss pulls the load apart.
"""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader

from bsmon.demo.options import Pace, parse
from bsmon.demo.text import ALPHABET, Windows
from bsmon.demo.transformer import Transformer

LENGTH, WIDTH, DEPTH, HEADS = 64, 64, 2, 4
EXPERTS, TOP_K, CAPACITY_FACTOR, BALANCE = 8, 2, 1.1, 0.01
BATCH = 16


class Router(nn.Module):
    """Sends each token to its ``top_k`` best experts, as far as these have room (GShard: first choices first).

    Tokens [T, D] to logits [T, E], weights [T, K] (0 where an expert was full) and experts [T, K].
    """

    def __init__(self, width: int, num_experts: int, top_k: int, capacity_factor: float) -> None:
        super().__init__()
        self.gate = nn.Linear(width, num_experts, bias=False)
        self.num_experts, self.top_k, self.capacity_factor = num_experts, top_k, capacity_factor
        self.balance_loss = torch.zeros(())

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits = self.gate(tokens)
        probabilities = logits.softmax(-1)
        weights, indices = probabilities.topk(self.top_k)
        weights = weights / weights.sum(-1, keepdim=True)
        chosen = functional.one_hot(indices, self.num_experts)  # [T, K, E]
        self.balance_loss = self.imbalance(chosen, probabilities)
        return logits, weights * self.fits(chosen), indices

    def fits(self, chosen: Tensor) -> Tensor:
        """Which assignments [T, K] find room: an expert serves the first ``capacity`` that ask for it."""
        capacity = math.ceil(self.capacity_factor * chosen.shape[0] * self.top_k / self.num_experts)
        by_choice = chosen.transpose(0, 1).flatten(0, 1)  # all first choices, then all second ones
        place = (by_choice.cumsum(0) * by_choice).sum(-1).view(self.top_k, -1).T
        return place <= capacity

    def imbalance(self, chosen: Tensor, probabilities: Tensor) -> Tensor:
        """The auxiliary loss of Switch Transformers (arXiv 2101.03961, eq. 4): 1 when the load is even."""
        load = chosen.float().mean((0, 1))
        return self.num_experts * (load * probabilities.mean(0)).sum()


class MoE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.router = Router(WIDTH, EXPERTS, TOP_K, CAPACITY_FACTOR)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH)) for _ in range(EXPERTS)
        )

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, 1)
        _, weights, indices = self.router(tokens)
        y = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            token, choice = torch.where((indices == number) & (weights > 0))
            y = y.index_add(0, token, expert(tokens[token]) * weights[token, choice, None])
        return y.view_as(x)


def main() -> None:
    options = parse(__doc__)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    loader = DataLoader(Windows(LENGTH), batch_size=BATCH, shuffle=True, drop_last=True)
    batches = itertools.chain.from_iterable(itertools.repeat(loader))
    model = Transformer(len(ALPHABET), LENGTH, WIDTH, DEPTH, HEADS, MoE)
    routers = [module for module in model.modules() if isinstance(module, Router)]
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1)
    warmup = min(0.1, 100 / options.steps)  # of all steps
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=options.steps, pct_start=warmup)
    pace = Pace(options.share)

    for step, (characters, following) in enumerate(itertools.islice(batches, options.steps), 1):
        logits = model(characters)
        loss = functional.cross_entropy(logits.flatten(0, 1), following.flatten())
        balance = torch.stack([router.balance_loss for router in routers]).sum()
        (loss + BALANCE * balance).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step == 1 or step % 50 == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)
        pace.rest()


if __name__ == "__main__":
    main()
