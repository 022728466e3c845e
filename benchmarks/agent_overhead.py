"""What a step costs more, in the training thread, with the agent in it and with the usual ways of writing numbers down.

All arms take turns step by step in one process on one model, in an order drawn anew each round, so that drift of the
machine meets all of them alike. Cost is thread CPU time; what is printed is the median of the paired differences to
the step without anything, with the 95% interval of a sign test (order statistics, no assumption on the shape).

    python benchmarks/agent_overhead.py [--pairs 5000]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from bsmon_agent import loop
from bsmon_agent.governor import SHARE, Duty, Governor
from bsmon_agent.patches import Attribute, Change, Hook, Patches
from bsmon_agent.session import Session

WARM_UP = 100  # rounds
SCALARS = 8
ARMS = 6
TARGET_US = 30.0
TARGET_SHARE = 1 / 8  # of TensorBoard


class Idle(Governor):
    """Never lets an optional probe look."""

    def _due(self, duty: Duty) -> bool:
        duty.last = sys.maxsize
        return False


class Training:
    """A small dense network; a step takes some 2.5 ms on one core."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(256, 256), nn.ReLU())))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.data = torch.randn(96, 256)
        self.zero_grad = torch.optim.Optimizer.zero_grad

    def step(self) -> torch.Tensor:
        loss: torch.Tensor = self.model(self.data).square().mean()
        self.zero_grad(self.optimizer)
        loss.backward()
        self.optimizer.step()
        return loss


@dataclass
class Arm:
    """One way of watching a training: put in place, told of each step, taken out."""

    name: str
    on: Callable[[], None] = lambda: None
    off: Callable[[], None] = lambda: None
    after: Callable[[torch.Tensor, int], None] = lambda loss, step: None
    times: list[int] = field(default_factory=list)

    def run(self, training: Training, step: int) -> None:
        self.on()
        begun = time.thread_time_ns()
        self.after(training.step(), step)
        self.times.append(time.thread_time_ns() - begun)
        self.off()


def no_op_hooks(training: Training) -> Arm:
    """As many hooks as the agent has, that do nothing."""
    original = torch.autograd.backward

    def backward(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs)

    def nothing(*args: Any) -> None:
        return None

    patches = Patches()
    patches.make(Attribute(torch.autograd, "backward", original, backward))
    for register in (
        register_optimizer_step_pre_hook,
        register_optimizer_step_post_hook,
        training.model.register_forward_pre_hook,
        training.model.register_forward_hook,
    ):
        patches.make(Hook(lambda register=register: register(nothing)))
    patches.off()
    return Arm("no-op hooks", patches.on, patches.off)


def agent(name: str, training: Training, governor: Governor) -> Arm:
    """A whole session with its publisher; its hooks are taken out while others have their turn.

    What is patched on classes stays (a change there empties Python's caches, which would be measured), and the one of
    these that a step calls is called directly.
    """
    original = torch.optim.Optimizer.zero_grad
    session = Session(governor=governor)
    session.install()
    session.given(name, training.model, training.optimizer, None)
    patched = torch.optim.Optimizer.zero_grad
    changes = [change for change in session.loop.hooks.patches.changes if quick(change)]

    def on() -> None:
        session.loop.finder.resume()
        training.zero_grad = patched
        for change in changes:
            change.on()

    def off() -> None:
        session.loop.finder.pause()
        training.zero_grad = original
        for change in changes:
            change.off()

    off()
    return Arm(name, on, off)


def quick(change: Change) -> bool:
    """A change in a namespace or a list of hooks; not on a class, and none that goes through all modules."""
    return isinstance(change, Hook) or (isinstance(change, Attribute) and not isinstance(change.holder, type))


def json_lines(directory: Path) -> Arm:
    file = (directory / "log.jsonl").open("w")

    def after(loss: torch.Tensor, step: int) -> None:
        file.write(json.dumps({"step": step, "time": time.time(), "loss": loss.item(), "lr": 1e-4}) + "\n")
        file.flush()

    return Arm("one JSON line", after=after)


def tensorboard(directory: Path) -> Arm:
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(directory / "tensorboard"))

    def after(loss: torch.Tensor, step: int) -> None:
        value = loss.item()
        for number in range(SCALARS):
            writer.add_scalar(f"scalar/{number}", value, step)

    return Arm(f"TensorBoard, {SCALARS} scalars", after=after)


@contextlib.contextmanager
def arms(training: Training) -> Iterator[list[Arm]]:
    with tempfile.TemporaryDirectory(prefix="bs", dir="/tmp") as place:
        os.environ["BSMON_DIR"] = f"{place}/run"
        yield [
            Arm("nothing"),
            no_op_hooks(training),
            agent("agent, probes idle", training, Idle()),
            agent("agent", training, Governor(SHARE / ARMS)),
            json_lines(Path(place)),
            tensorboard(Path(place)),
        ]


def measure(pairs: int) -> list[Arm]:
    training = Training()
    with arms(training) as all_arms:
        for step in range(pairs + WARM_UP):
            for arm in random.sample(all_arms, len(all_arms)):
                arm.run(training, step)
    return all_arms


def difference(arm: Arm, base: Arm) -> tuple[float, float, float]:
    """Median of the paired differences and its 95% interval, microseconds."""
    pairs = zip(arm.times[WARM_UP:], base.times[WARM_UP:], strict=True)
    ordered = sorted((mine - other) / 1e3 for mine, other in pairs)
    half = 1.96 * math.sqrt(len(ordered)) / 2
    middle = len(ordered) / 2
    return ordered[int(middle)], ordered[max(0, int(middle - half))], ordered[min(len(ordered) - 1, int(middle + half))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5000)
    pairs = parser.parse_args().pairs
    torch.set_num_threads(1)
    loop.READ_EVERY *= ARMS  # what the agent does by the clock it is to do as often a step as if it were alone
    base, *others = measure(pairs)
    step = sorted(base.times[WARM_UP:])[pairs // 2] / 1e3
    results = {arm.name: difference(arm, base) for arm in others}
    reference = results[f"TensorBoard, {SCALARS} scalars"][0]
    print(f"step without anything: {step:.0f} µs of thread CPU time (median of {pairs})\n")
    print(f"{'':24}{'µs a step':>10}{'95% interval':>18}{'of the step':>13}{'of TensorBoard':>16}")
    for name, (cost, low, high) in results.items():
        interval = f"{low:.1f} … {high:.1f}"
        print(f"{name:24}{cost:10.1f}{interval:>18}{cost / step:13.2%}{cost / reference:16.3f}")
    idle = results["agent, probes idle"][0]
    reached = idle <= TARGET_US and idle <= TARGET_SHARE * reference
    verdict = "reached" if reached else "not reached"
    print(f"\nprobes idle, at most {TARGET_US:.0f} µs and {TARGET_SHARE:.3f} of TensorBoard: {verdict}")


if __name__ == "__main__":
    main()
