"""Small trainings for the tests of the noise probe, and the norms they must give, worked out by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import torch
from torch import nn

from bsmon.model import NoiseSample
from bsmon_agent.governor import Governor
from bsmon_agent.ledger import Ledger
from bsmon_agent.probes.batch import BatchProbe
from bsmon_agent.probes.loss import LossProbe
from bsmon_agent.probes.noise import NoiseProbe
from bsmon_agent.session import Session

BATCH, LENGTH, WORDS, WIDTH = 8, 6, 11, 8


class Watched:
    """A session with the noise probe in every step, and what it recorded."""

    def __init__(self) -> None:
        self.probe = NoiseProbe()
        self.ledger = Ledger()
        chosen = [BatchProbe(), LossProbe(), self.probe]
        self.session = Session(ledger=self.ledger, chosen=chosen, governor=Governor(1.0), publish=False)
        self._records: list[dict[str, Any]] = []

    @property
    def records(self) -> list[dict[str, Any]]:
        self._records += self.ledger.drain()
        return self._records

    @property
    def samples(self) -> list[NoiseSample]:
        return [msgspec.convert(record["noise"], NoiseSample) for record in self.records if "noise" in record]

    @property
    def notes(self) -> list[str]:
        return self.session.dispatch.notes


@contextmanager
def watching() -> Iterator[Watched]:
    watched = Watched()
    watched.session.install()
    try:
        yield watched
    finally:
        watched.session.close()


class Tiny(nn.Module):
    """Embedding, position embedding, norm, two linear layers, head; variations by name."""

    def __init__(self, tied: bool = False, sparse: bool = False, unused: bool = False, frozen: bool = False) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH, sparse=sparse)
        self.places = nn.Embedding(LENGTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 12)
        self.down = nn.Linear(12, WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        if tied:
            self.head.weight = self.words.weight
        if unused:
            self.spare = nn.Linear(3, 3)
        if frozen:
            self.up.requires_grad_(False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids) + self.places(torch.arange(ids.shape[1]))
        x = x + self.down(torch.tanh(self.up(self.norm(x))))
        return self.head(x)


def data(seed: int = 0, batch: int = BATCH) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, WORDS, (batch, LENGTH + 1), generator=generator)
    return ids[:, :-1], ids[:, 1:]


def mean_loss(model: nn.Module, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(model(ids).flatten(0, 1), targets.flatten())


def train(
    model: nn.Module,
    steps: int = 3,
    parts: int = 4,
    batch: int = BATCH,
    learning_rate: float = 0.1,
    loss: Callable[..., torch.Tensor] = mean_loss,
    before_step: Callable[[], None] = lambda: None,
) -> None:
    """Plain SGD with accumulation; step t has the data of seed t."""
    optimizer = torch.optim.SGD((p for p in model.parameters() if p.requires_grad), lr=learning_rate)
    for step in range(steps):
        ids, targets = data(step, batch)
        optimizer.zero_grad()
        for some, wanted in zip(ids.chunk(parts), targets.chunk(parts), strict=True):
            (loss(model, some, wanted) / parts).backward()
        before_step()
        optimizer.step()


def by_hand(
    model: nn.Module, ids: torch.Tensor, targets: torch.Tensor, parts: int, only: Iterable[str] | None = None
) -> tuple[float, list[float]]:
    """|g|^2 and the |h_r|^2 of one step, each part's gradient on its own, over all or some of the parameters."""
    named = {name: p for name, p in model.named_parameters() if p.requires_grad and (only is None or name in only)}
    contributions = []
    for some, wanted in zip(ids.chunk(parts), targets.chunk(parts), strict=True):
        model.zero_grad()
        (mean_loss(model, some, wanted) * len(some) / len(ids)).backward()
        contributions.append([None if p.grad is None else p.grad.to_dense().clone() for p in named.values()])
    total = [None if column[0] is None else sum(column) for column in zip(*contributions, strict=True)]
    return squared(total), [squared(one) for one in contributions]


def squared(gradients: Iterable[torch.Tensor | None]) -> float:
    return float(sum(g.double().square().sum() for g in gradients if g is not None))
