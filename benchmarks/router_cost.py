"""What counting a router costs: microseconds of thread CPU time a call, and the share of a training step.

For each number of experts, a router's call is timed without hooks, with a hook that does not look, and with one that
does; the three take turns in an order drawn anew each round. Printed is the median of the paired differences to the
call without hooks, with the 95% interval of a sign test, and what that is of a training step of a model with such
routers (tokens x width through a router and two matmuls of expert size for each chosen expert). Then that model trains
with the agent at its default budget, and its governor says what it settled on.

    python benchmarks/router_cost.py [--rounds 400] [--tokens 4096] [--width 256] [--layers 4]
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import random
import statistics
import time

import torch
from torch import Tensor, nn

from bsmon_agent.governor import Governor
from bsmon_agent.probes.router import RouterProbe
from bsmon_agent.session import Session

WARM_UP = 20  # rounds
STEPS = 12  # of training
TOP_K = 2


class TopKRouter(nn.Module):
    """(logits, weights, numbers), as most have it."""

    def __init__(self, width: int, experts: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, experts, bias=False)
        self.num_experts, self.top_k = experts, TOP_K

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits = self.gate(x)
        weights, numbers = logits.softmax(-1).topk(self.top_k, -1)
        return logits, weights, numbers


class Block(nn.Module):
    """A router, and the arithmetic of its K chosen experts without the moving about of tokens."""

    def __init__(self, width: int, experts: int) -> None:
        super().__init__()
        self.router = TopKRouter(width, experts)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(width, 1, bias=False)) for _ in range(experts))
        self.rise, self.fall = nn.Linear(width, 4 * TOP_K * width), nn.Linear(4 * TOP_K * width, width)

    def forward(self, x: Tensor) -> Tensor:
        _, weights, _ = self.router(x)
        y: Tensor = x + self.fall(self.rise(x).relu()) * weights.sum(-1, keepdim=True)
        return y


class Training:
    def __init__(self, experts: int, tokens: int, width: int, layers: int) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(*(Block(width, experts) for _ in range(layers)))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4)
        self.data = torch.randn(tokens, width)

    def microseconds(self) -> float:
        """Thread CPU time of a step."""
        times = []
        for _ in range(STEPS):
            begun = time.thread_time_ns()
            self.step()
            times.append(time.thread_time_ns() - begun)
        return statistics.median(times) / 1e3

    def step(self) -> None:
        self.model(self.data).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


class Arm:
    """One way of looking at a block of its own. ``armed`` None: no hook at all."""

    def __init__(self, name: str, block: Block, armed: bool | None) -> None:
        self.name, self.router = name, block.router
        self.times: list[int] = []
        if armed is not None:
            self.probe = RouterProbe()
            self.probe.armed = armed
            self.probe.model_found(block, None)

    def run(self, data: Tensor) -> None:
        begun = time.thread_time_ns()
        self.router(data)
        self.times.append(time.thread_time_ns() - begun)


def interval(values: list[float]) -> tuple[float, float, float]:
    """Median, and its 95% interval by order statistics, whatever the shape."""
    ordered = sorted(values)
    n = len(ordered)
    half = math.ceil(0.98 * math.sqrt(n))
    return ordered[max(0, n // 2 - half)], statistics.median(ordered), ordered[min(n - 1, n // 2 + half)]


def measure(training: Training, rounds: int, layers: int) -> dict[str, object]:
    ways = {"without": None, "idle": False, "always": True}
    taking_part = [Arm(name, copy.deepcopy(training.model[0]), armed) for name, armed in ways.items()]
    order = random.Random(0)
    for _ in range(WARM_UP + rounds):
        for arm in order.sample(taking_part, len(taking_part)):
            arm.run(training.data)
    step, plain = training.microseconds(), taking_part[0].times[WARM_UP:]
    result: dict[str, object] = {"step_us": round(step), "router_us": round(statistics.median(plain) / 1e3)}
    for arm in taking_part[1:]:
        times = arm.times[WARM_UP:]
        differences = [(mine - theirs) / 1e3 for mine, theirs in zip(times, plain, strict=True)]
        low, middle, high = interval(differences)
        result[arm.name] = {
            "us_per_call": round(middle, 1),
            "interval": [round(low, 1), round(high, 1)],
            "share_of_step": round(middle * layers / step, 6),
        }
    return result


def sampled(training: Training) -> dict[str, object]:
    """What the governor makes of it at the default budget, by its own account."""
    session = Session(chosen=[RouterProbe()], governor=Governor(), publish=False)
    session.install()
    training.optimizer = torch.optim.SGD(training.model.parameters(), lr=1e-4)
    for _ in range(4 * STEPS):
        training.step()
    duty, step = session.governor.duties["router"], session.governor._step.value
    session.close()
    return {
        "one_step_in": duty.every,
        "us_per_look": round(duty.cost.value, 1),
        "share_of_step": round(duty.cost.value / duty.every / step, 5),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for experts in (8, 64, 256):
        training = Training(experts, options.tokens, options.width, options.layers)
        result = {"experts": experts, "routers": options.layers} | measure(training, options.rounds, options.layers)
        print(json.dumps(result | {"sampled": sampled(training)}), flush=True)


if __name__ == "__main__":
    main()
