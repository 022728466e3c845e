"""Finding the module that is trained."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
nn = torch.nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
        self.head = nn.Linear(8, 1)

    def forward(self, x: Any) -> Any:
        return self.head(self.body(x))


def steps(call: Any, opt: Any, count: int = 8) -> None:
    for _ in range(count):
        call(torch.randn(4, 8)).mean().backward()
        opt.step()
        opt.zero_grad()


def test_an_attribute_of_a_trainer(watch: Callable[..., Any]) -> None:
    class Trainer:
        def __init__(self) -> None:
            self.net = Net()
            self.opt = torch.optim.SGD(self.net.parameters(), lr=0.1)

        def fit(self) -> None:
            steps(self.net, self.opt)

    seen = watch()
    Trainer().fit()
    assert seen.hello["model"]["name"] == "Net"
    assert seen.all("samples") == [4] * 8


def test_a_module_that_is_never_called_itself(watch: Callable[..., Any]) -> None:
    """As with Lightning: the module makes the optimizer, and the trainer calls its ``training_step``."""

    class Lit(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

        def training_step(self, x: Any) -> Any:
            return self.net(x)

    seen = watch()
    lit = Lit()
    steps(lit.training_step, lit.configure_optimizers())
    assert seen.hello["model"]["name"] == "Net"
    assert seen.all("samples") == [None] * 2 + [4] * 6


def test_parts_that_are_called_one_by_one(watch: Callable[..., Any]) -> None:
    seen = watch()
    holder = nn.ModuleDict({"body": Net().body, "head": nn.Linear(8, 1)})
    opt = torch.optim.SGD(holder.parameters(), lr=0.1)
    steps(lambda x: holder["head"](holder["body"](x)), opt)
    assert seen.all("samples")[-1] == 4
    assert seen.all("accumulation")[-1] == 1


def test_the_outermost_that_is_called(watch: Callable[..., Any]) -> None:
    class WithLoss(nn.Module):
        def __init__(self, net: nn.Module) -> None:
            super().__init__()
            self.net = net

        def forward(self, x: Any) -> Any:
            return self.net(x).square()

    seen = watch()
    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    steps(WithLoss(net), opt)
    assert seen.hello["model"]["name"] == "Net", "what is hidden in an expression is not seen, its inside is"
    seen.session.close()

    seen = watch()
    whole = WithLoss(Net())
    opt = torch.optim.SGD(whole.net.parameters(), lr=0.1)
    steps(whole, opt)
    assert seen.hello["model"]["name"] == "WithLoss"


def test_no_name_leads_to_it(watch: Callable[..., Any]) -> None:
    seen = watch()
    hidden = [[Net()]]
    opt = torch.optim.SGD(hidden[0][0].parameters(), lr=0.1)
    steps(lambda x: hidden[0][0](x), opt)
    assert seen.all("samples") == [4] * 8


def test_given_by_the_user(watch: Callable[..., Any]) -> None:
    seen = watch()
    model = Net()
    seen.session.given("mine", model, None, 500)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    steps(model, opt)
    assert seen.all("samples") == [4] * 8
    assert seen.hello["name"] == "mine"
    assert seen.hello["total_steps"] == 500


def test_another_model_takes_its_place(watch: Callable[..., Any]) -> None:
    """As in a search over models, one after the other in one process."""
    seen = watch()

    def trial(batch: int) -> None:
        model = Net()
        opt = torch.optim.AdamW(model.parameters())
        for _ in range(12):
            model(torch.randn(batch, 8)).mean().backward()
            opt.step()
            opt.zero_grad()

    trial(4)
    trial(6)
    assert seen.all("samples")[:12] == [4] * 12
    assert seen.all("samples")[-6:] == [6] * 6
    assert seen.hello["optimizers"] == ["AdamW"]


def test_replicas_in_threads_are_not_counted(watch: Callable[..., Any]) -> None:
    """DataParallel calls shallow copies, which share the hooks of the original."""
    import copy

    seen = watch()
    model = Net()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        loss = model(torch.randn(4, 8)).mean()
        copy.copy(model)(torch.randn(9, 8))
        loss.backward()
        opt.step()
    assert seen.all("samples") == [4] * 4


def test_looking_through_frames_changes_no_locals(watch: Callable[..., Any]) -> None:
    watch()

    def asks() -> Any:
        config = locals()
        model = Net()
        torch.optim.SGD(model.parameters(), lr=0.1)
        return config

    def does_not() -> Any:
        model = Net()
        big = torch.zeros(3)
        before = sys.getrefcount(big)
        opt = torch.optim.SGD(model.parameters(), lr=0.1)
        steps(model, opt, 2)
        return sys.getrefcount(big) - before

    assert set(asks()) == set()
    assert does_not() == 0, "no copy of the frame's locals is left to keep them alive"
