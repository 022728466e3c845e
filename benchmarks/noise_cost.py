"""What measuring the gradient noise costs, and how near the truth it comes, beside two other ways of doing it.

usage: python benchmarks/noise_cost.py [STEPS]

One process, one frozen transformer whose noise scale is known by enumeration (tests/data/noise); each round takes the
same batch through every arm, so that all see the same machine. Time is the thread's CPU time; a cost is the median of
the rounds' differences from the plain step. `pip install gns-pytorch` adds that package to the arms.
"""

from __future__ import annotations

import importlib.util
import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.nn.functional as F

from bsmon.estimators import noise
from bsmon.model import NoiseSample
from bsmon_agent.probes.noise import NoiseProbe

DATA = Path(__file__).parents[1] / "tests" / "data" / "noise"
CHECKPOINT, BATCH, PARTS = "300", 32, 4
DUTIES = (1, 8, 64)

sys.path.insert(0, str(DATA))
from model import CharTransformer, dataset  # noqa: E402


class Arm:
    """A plain training step at learning rate zero; subclasses watch it."""

    name, parts = "plain, 4 micro-batches", PARTS

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.0)

    def loss(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.model(inputs).flatten(0, 1), targets.flatten())

    def step(self, inputs: torch.Tensor, targets: torch.Tensor) -> None:
        for some, wanted in zip(inputs.chunk(self.parts), targets.chunk(self.parts), strict=True):
            self.backward(some, wanted)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def backward(self, inputs: torch.Tensor, targets: torch.Tensor) -> None:
        (self.loss(inputs, targets) / self.parts).backward()

    def ratio(self) -> float | None:
        """B_noise / B as it was found."""
        return None


class Whole(Arm):
    name, parts = "plain, one pass", 1


class Probed(Arm):
    """With the agent's probe, armed in every step."""

    name = "bsmon, accumulation"

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__(model)
        self.probe = NoiseProbe()
        self.probe.model_found(model, self.optimizer)
        self.samples: list[NoiseSample] = []

    def backward(self, inputs: torch.Tensor, targets: torch.Tensor) -> None:
        self.probe.forward_begin(self.model, (inputs,), {})
        loss = self.loss(inputs, targets) / self.parts
        self.probe.backward_begin((loss,))
        loss.backward()
        self.probe.backward_end(False)

    def step(self, inputs: torch.Tensor, targets: torch.Tensor) -> None:
        super().step(inputs, targets)
        record: dict[str, Any] = {}
        self.probe.collect(record)
        found = record.get("noise")
        if found:
            numbers = {
                key: value.tolist() if isinstance(value, torch.Tensor) else value for key, value in found.items()
            }
            self.samples.append(msgspec.convert(numbers, NoiseSample))

    def ratio(self) -> float | None:
        return noise.estimate(self.samples, BATCH).phi


class Halved(Probed):
    name, parts = "bsmon, half-split", 1


class Smoothed(Arm):
    """Two batch sizes and exponential means, as k-diffusion does: .grad is copied to see what a pass added."""

    name, decay = "exponential means (beta .998)", 0.998

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__(model)
        self.signal = self.spread = 0.0

    def step(self, inputs: torch.Tensor, targets: torch.Tensor) -> None:
        small, before = [], None
        for some, wanted in zip(inputs.chunk(self.parts), targets.chunk(self.parts), strict=True):
            self.backward(some, wanted)
            after = torch.cat([p.grad.flatten() for p in self.model.parameters() if p.grad is not None])
            added = after if before is None else after - before
            small.append(float(added.square().sum()) * self.parts**2)
            before = after.clone()
        self.update(statistics.fmean(small), float(after.square().sum()))
        self.optimizer.step()
        self.optimizer.zero_grad()

    def update(self, small: float, large: float) -> None:
        few, many = BATCH // self.parts, BATCH
        signal, spread = (many * large - few * small) / (many - few), (small - large) / (1 / few - 1 / many)
        self.signal += (1 - self.decay) * (signal - self.signal)
        self.spread += (1 - self.decay) * (spread - self.spread)

    def ratio(self) -> float | None:
        return self.spread / self.signal / BATCH


class GnsPytorch(Whole):
    """The package gns-pytorch with its defaults, once a step; its values' median, as it gives one a call."""

    name = "gns-pytorch"

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__(model)
        random.seed(0)
        self.compute: Callable[..., float] = importlib.import_module("gns_pytorch").compute_gns
        self.values: list[float] = []

    def backward(self, inputs: torch.Tensor, targets: torch.Tensor) -> None:
        logits = self.model(inputs)
        each = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view(len(inputs), -1).mean(1)
        self.values.append(self.compute(each, self.model))
        each.mean().backward()

    def ratio(self) -> float | None:
        return statistics.median(self.values) / BATCH


def main() -> None:
    torch.set_num_threads(1)
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 257
    kinds: list[type[Arm]] = [Arm, Whole, Probed, Halved, Smoothed]
    if importlib.util.find_spec("gns_pytorch") is not None:
        kinds.append(GnsPytorch)
    arms, times = measure(kinds, steps)
    truth = json.loads((DATA / "truth.json").read_text())["checkpoints"][CHECKPOINT]["phi_at_batch_32"]
    report(arms, times, truth)


def measure(kinds: list[type[Arm]], steps: int) -> tuple[list[Arm], dict[str, list[float]]]:
    """Every arm on its own copy of the model, in a changing order; CPU seconds of each step."""
    inputs, targets, vocabulary = dataset()
    weights = torch.load(DATA / f"checkpoint_{CHECKPOINT}.pt")["model"]
    arms = []
    for kind in kinds:
        model = CharTransformer(vocabulary)
        model.load_state_dict(weights)
        arms.append(kind(model))
    generator = torch.Generator().manual_seed(11)
    times: dict[str, list[float]] = {arm.name: [] for arm in arms}
    for step in range(steps):
        chosen = torch.randint(0, len(inputs), (BATCH,), generator=generator)
        for number in range(len(arms)):
            arm = arms[(number + step) % len(arms)]
            begun = time.thread_time()
            arm.step(inputs[chosen], targets[chosen])
            times[arm.name].append(time.thread_time() - begun)
    return arms, times


def report(arms: list[Arm], times: dict[str, list[float]], truth: float) -> None:
    duties = "".join(f"{f'1 in {duty}':>9}" for duty in DUTIES)
    print(f"truth: noise scale / batch = {truth:.3f}; cost as a share of the plain step at a duty of\n")
    print(f"{'':32}{'ms a step':>10}{duties}   found / truth")
    for arm in arms:
        plain = times[Arm.name if arm.parts > 1 else Whole.name]
        extra = statistics.median(a - b for a, b in zip(times[arm.name], plain, strict=True)) / statistics.median(plain)
        shares = "".join(f"{extra / duty:9.1%}" for duty in DUTIES) if type(arm) not in (Arm, Whole) else " " * 27
        ratio = arm.ratio()
        found = "" if ratio is None else f"{ratio / truth:10.2f}"
        print(f"{arm.name:32}{1e3 * statistics.median(times[arm.name]):10.1f}{shares}{found}")


if __name__ == "__main__":
    main()
