"""A training with the agent in it ends with the very same bits as one without."""

from __future__ import annotations

import copy
import io
import pickle
import re
import sys
import types
import warnings
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
nn = torch.nn
F = torch.nn.functional

from torch.utils.checkpoint import (  # noqa: E402
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

WIDTH, VOCABULARY, STEPS = 16, 32, 12


def selective(context: Any, op: Any, *args: Any, **kwargs: Any) -> Any:
    keep = op in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
    return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE


class Block(nn.Module):
    """A feed-forward block, or top-2 of four of them; dropout uses the random state."""

    def __init__(self, experts: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.gate = nn.Linear(WIDTH, experts, bias=False) if experts else None
        many = [nn.Sequential(nn.Linear(WIDTH, 32), nn.GELU(), nn.Linear(32, WIDTH)) for _ in range(max(1, experts))]
        self.experts = nn.ModuleList(many)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Any) -> Any:
        h = self.norm(x)
        if self.gate is None:
            return x + self.dropout(self.experts[0](h))
        weights, chosen = self.gate(h).softmax(-1).topk(2)
        out = torch.zeros_like(h)
        for number, expert in enumerate(self.experts):
            share = (weights * (chosen == number)).sum(-1, keepdim=True)
            out = out + share * expert(h)
        return x + self.dropout(out)


class Model(nn.Module):
    def __init__(self, experts: int = 0, recompute: str = "") -> None:
        super().__init__()
        self.recompute = recompute
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block(experts) for _ in range(2))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: Any) -> Any:
        x = self.embed(ids)
        for block in self.blocks:
            if self.recompute == "reentrant":
                x = checkpoint(block, x, use_reentrant=True)
            elif self.recompute == "non-reentrant":
                x = checkpoint(block, x, use_reentrant=False)
            elif self.recompute == "selective":
                contexts = lambda: create_selective_checkpoint_contexts(selective)  # noqa: E731
                x = checkpoint(block, x, use_reentrant=False, context_fn=contexts)
            else:
                x = block(x)
        return self.head(x)


def train(
    experts: int = 0,
    recompute: str = "",
    accumulation: int = 1,
    clip: bool = False,
    amp: bool = False,
    scaler: bool = False,
    optimizer: str = "AdamW",
) -> bytes:
    """The bits of everything that a training leaves: weights, optimizer state, random state."""
    torch.manual_seed(7)
    model = Model(experts, recompute)
    opt = getattr(torch.optim, optimizer)(model.parameters(), lr=1e-3)
    scale = torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=4, enabled=scaler)
    for _ in range(STEPS):
        opt.zero_grad()
        for _ in range(accumulation):
            ids = torch.randint(0, VOCABULARY, (4, 8))
            with torch.autocast("cpu", torch.bfloat16, enabled=amp):
                loss = F.cross_entropy(model(ids).flatten(0, 1), ids.flatten()) / accumulation
            scale.scale(loss).backward()
        if clip:
            scale.unscale_(opt)
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scale.step(opt)
        scale.update()
        with torch.no_grad():
            model.eval()
            model(ids)
            model.train()
    left = io.BytesIO()
    torch.save([model.state_dict(), opt.state_dict(), torch.get_rng_state()], left)
    return left.getvalue()


RUNS: dict[str, dict[str, Any]] = {
    "dense": {},
    "experts": {"experts": 4},
    "accumulation": {"accumulation": 3},
    "experts, accumulation": {"experts": 4, "accumulation": 2},
    "clipping": {"clip": True},
    "bfloat16": {"amp": True},
    "bfloat16, scaler": {"amp": True, "scaler": True, "clip": True},
    "scaler": {"scaler": True},
    "reentrant": {"recompute": "reentrant"},
    "non-reentrant": {"recompute": "non-reentrant", "experts": 4},
    "selective": {"recompute": "selective", "experts": 4, "accumulation": 2},
    "momentum": {"optimizer": "NAdam", "clip": True},
}


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS.keys())
@pytest.mark.parametrize("share", [0.01, 1.0], ids=["within budget", "all probes always"])
def test_bit_identical(watch: Callable[..., Any], run: dict[str, Any], share: float) -> None:
    from bsmon_agent.governor import Governor

    plain = train(**run)
    seen = watch(governor=Governor(share=share))
    watched = train(**run)
    records = seen.records
    notes = seen.notes
    seen.session.close()
    assert watched == plain
    assert len(records) == STEPS
    assert notes == []
    assert train(**run) == plain, "nor is anything left behind"


def snapshot() -> dict[str, Any]:
    """What the agent may have changed in torch."""
    import torch.utils.data.dataloader as loader
    from torch.optim import lr_scheduler, optimizer

    owners = (torch.optim.Optimizer, nn.Module, torch.amp.GradScaler, loader._BaseDataLoaderIter, torch.autograd)
    kept = {f"{owner.__name__}.{name}": value for owner in owners for name, value in vars(owner).items()}
    kept |= {"compile": torch.compile, "script": torch.jit.script, "clip": nn.utils.clip_grad_norm_}
    kept |= {"clip2": torch.nn.utils.clip_grad.clip_grad_norm_, "cycle": lr_scheduler.OneCycleLR.__init__}
    kept |= {"pre": dict(optimizer._global_optimizer_pre_hooks), "post": dict(optimizer._global_optimizer_post_hooks)}
    return kept


def test_detach_leaves_torch_as_it_was(watch: Callable[..., Any]) -> None:
    before = snapshot()
    seen = watch()
    model = Model()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        ids = torch.randint(0, VOCABULARY, (4, 8))
        model(ids).mean().backward()
        opt.step()
    assert {name for name, value in snapshot().items() if before.get(name) is not value}
    seen.session.close()
    after = snapshot()
    assert after == before
    assert all(after[name] is value for name, value in before.items() if name not in ("pre", "post"))
    for module in model.modules():
        assert not module._forward_hooks and not module._forward_pre_hooks


def test_a_copy_or_pickle_of_the_model_carries_nothing_along(watch: Callable[..., Any]) -> None:
    watch()
    model = nn.Linear(4, 1)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.randn(2, 4)).mean().backward()
        opt.step()
    assert model._forward_pre_hooks, "the root is hooked"
    file = io.BytesIO()
    torch.save(model, file)
    assert b"bsmon" not in file.getvalue()
    file.seek(0)
    for other in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        assert torch.equal(other(torch.ones(1, 4)), model(torch.ones(1, 4)))
        hooks = [*other._forward_pre_hooks.values(), *other._forward_hooks.values()]
        assert not hooks
    assert torch.equal(torch.jit.script(model)(torch.ones(1, 4)), model(torch.ones(1, 4)))


def test_scripting_finds_the_names_of_its_caller(watch: Callable[..., Any]) -> None:
    watch()

    @torch.jit.script
    class Adds:
        def __init__(self) -> None:
            self.one = 1.0

        def to(self, x: torch.Tensor) -> torch.Tensor:
            return added(x, self.one)

    @torch.jit.script
    def scripted(x: torch.Tensor) -> torch.Tensor:
        return Adds().to(x)

    assert scripted(torch.ones(1)).item() == 2.0


def added(x: torch.Tensor, y: float) -> torch.Tensor:
    return x + y


class Hooked(nn.Module):
    """Experts and a hook of its own, for what a copy must keep and what it must not."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.register_forward_hook(Hooked.seen, with_kwargs=True, always_call=True)

    def seen(self, args: Any, kwargs: Any, output: Any) -> None:
        pass

    def forward(self, x: Any) -> Any:
        return self.inner(x)


@pytest.mark.parametrize("make", [Hooked, lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU()), lambda: Model(4)])
def test_copies_and_pickles_are_those_of_a_model_without_hooks(
    watch: Callable[..., Any], make: Callable[[], Any]
) -> None:
    watch()
    model = make()
    ids = torch.randint(0, VOCABULARY, (4, 8)) if isinstance(model, Model) else torch.randn(2, 4)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(ids).mean().backward()
        opt.step()
    assert model._forward_pre_hooks, "the root is hooked"
    shallow = copy.copy(model)
    assert shallow._forward_pre_hooks is model._forward_pre_hooks
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        own = {number for number, hook in model._forward_hooks.items() if hook is Hooked.seen}
        for module in other.modules():
            assert not module._forward_pre_hooks and not module._forward_pre_hooks_with_kwargs
            assert set(module._forward_hooks) <= own
        assert set(other._forward_hooks_always_called) == own
        if isinstance(other, nn.Sequential):
            assert torch.equal(torch.jit.script(other)(ids), model(ids))


@pytest.mark.filterwarnings("error")
def test_a_trace_holds_nothing_of_ours(watch: Callable[..., Any]) -> None:
    from bsmon_agent.governor import Governor

    def train_and_trace() -> list[str]:
        torch.manual_seed(3)
        model, graphs = Model(), []
        opt = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(8):
            ids = torch.randint(0, VOCABULARY, (4, 8))
            graphs.append(str(torch.jit.trace(model, ids, check_trace=False).inlined_graph))
            model(ids).mean().backward()
            graphs.append(str(torch.jit.trace(model, ids, check_trace=False).inlined_graph))
            opt.step()
        return [re.sub(r"___torch_mangle_\d+\.", "", graph) for graph in graphs]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        plain = train_and_trace()
        seen = watch(governor=Governor(share=1.0))
        traced = train_and_trace()
    assert traced == plain
    assert seen.notes == []
    assert len(seen.records) == 8


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("experts", [0, 4])
def test_a_flop_counter_counts_nothing_of_ours(watch: Callable[..., Any], accumulation: int, experts: int) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    from bsmon_agent.governor import Governor

    def count() -> int:
        with FlopCounterMode(display=False) as counter:
            train(experts, accumulation=accumulation)
        return counter.get_total_flops()

    plain = count()
    seen = watch(governor=Governor(share=1.0))
    assert count() == plain
    assert "noise" in {field for record in seen.records for field in record}
    assert seen.notes == []


class Lazy(types.ModuleType):
    def __getattribute__(self, name: str) -> Any:
        if name == "__dict__":
            raise ImportError("it cannot be loaded here")
        return super().__getattribute__(name)


def test_a_module_that_cannot_be_looked_into_is_passed_over(
    watch: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "lazy", Lazy("lazy"))
    monkeypatch.setitem(sys.modules, "absent", None)
    seen = watch()
    train(clip=True)
    assert len(seen.records) == STEPS


class TakesGradients(torch.optim.SGD):
    """As some optimizers do: the first argument of a step is no closure."""

    def step(self, gradients: Any, closure: Any = None) -> Any:  # type: ignore[override]
        self.was_given = gradients, closure


@pytest.mark.parametrize("given", [[torch.ones(1)], nn.Linear(2, 1), {"loss": 1}, lambda: 1], ids=type)
def test_what_a_step_is_given_comes_through(watch: Callable[..., Any], given: Any) -> None:
    watch()
    model = nn.Linear(2, 1)
    opt = TakesGradients(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.ones(1, 2)).backward()
        opt.step(given)
        assert opt.was_given[0] is given
        opt.step(given, closure=lambda: 5)
        assert opt.was_given[0] is given
        assert opt.was_given[1]() == 5


def test_no_graph_is_kept_alive(watch: Callable[..., Any]) -> None:
    import gc
    import weakref

    watch()
    model = Model()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        ids = torch.randint(0, VOCABULARY, (4, 8))
        out = model(ids)
        loss = out.mean()
        kept = [weakref.ref(out), weakref.ref(loss), weakref.ref(ids)]
        loss.backward()
        opt.step()
        del out, loss, ids
        gc.collect()
        assert [ref() for ref in kept] == [None] * 3


def test_a_model_that_is_dropped_is_freed(watch: Callable[..., Any]) -> None:
    import gc
    import weakref

    from bsmon_agent import probes

    watch(chosen=[probe for probe in probes.load(lambda text: None) if probe.name not in ("router", "noise")])
    model = Model()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        model(torch.randint(0, VOCABULARY, (4, 8))).mean().backward()
        opt.step()
    kept = [weakref.ref(opt), weakref.ref(model)]
    del opt, model
    gc.collect()
    assert [ref() for ref in kept] == [None] * 2


METHODS = ["model_found", "see", "read", "between", "describe", "report", "remove"]
MOMENTS = ["forward_begin", "forward_end", "backward_begin", "backward_end", "step_begin", "collect"]


@pytest.mark.parametrize("method", METHODS + MOMENTS)
def test_a_planted_exception_is_a_note_and_no_more(
    watch: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    from bsmon_agent import probes
    from bsmon_agent.governor import Governor

    plain = train(clip=True)
    for probe in probes.load(lambda text: None):
        defined = getattr(type(probe), method)
        if probe.optional or defined is not getattr(probes.base.Probe, method):

            def planted(self: Any, *args: Any, **kwargs: Any) -> Any:
                raise ValueError(f"planted in {self.name}")

            monkeypatch.setattr(type(probe), method, planted)
    seen = watch(governor=Governor(share=1.0))
    watched = train(clip=True)
    beat = seen.session.beat()
    steps = seen.all("step")
    seen.session.close()
    assert watched == plain
    assert steps == list(range(1, STEPS + 1))
    assert any("planted" in note for note in (beat["notes"] + seen.notes)), beat["notes"]


def test_a_failure_of_the_agent_itself_ends_the_agent_alone(
    watch: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = train()
    before = snapshot()
    seen = watch()
    monkeypatch.setattr(seen.session.steps, "_record", lambda closed: 1 / 0)
    assert train() == plain
    assert seen.session.beat()["notes"] == ["the agent is off: ZeroDivisionError: division by zero"]
    assert snapshot() == before


def test_an_interrupt_passes_through(watch: Callable[..., Any]) -> None:
    seen = watch()
    model = Model()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    ids = torch.randint(0, VOCABULARY, (4, 8))
    with pytest.raises(KeyboardInterrupt):
        out = model(ids).mean()
        out.register_hook(interrupt)
        out.backward()
    model(ids).mean().backward()
    opt.step()
    assert seen.all("accumulation") == [1]


def interrupt(gradient: Any) -> None:
    raise KeyboardInterrupt
