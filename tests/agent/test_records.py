"""What a step's record says, in the many shapes that a training loop has."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
nn = torch.nn
F = torch.nn.functional

VOCABULARY = 32


class Tiny(nn.Module):
    """Token ids [B, T] to logits [B, T, V]."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 8)
        self.head = nn.Linear(8, VOCABULARY)

    def forward(self, input_ids: Any, attention_mask: Any = None) -> Any:
        return self.head(self.embed(input_ids))


def ids(batch: int = 4, length: int = 6) -> Any:
    return torch.randint(0, VOCABULARY, (batch, length))


def loss_of(model: Any, batch: Any, **kwargs: Any) -> Any:
    return F.cross_entropy(model(batch, **kwargs).flatten(0, 1), batch.flatten())


def test_a_plain_loop(watch: Callable[..., Any]) -> None:
    seen = watch()
    model = Tiny()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses, norms = [], []
    for _ in range(6):
        optimizer.zero_grad()
        loss = loss_of(model, ids())
        loss.backward()
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), 1e-3).item())
        optimizer.step()
        losses.append(loss.item())
    assert seen.all("step") == [1, 2, 3, 4, 5, 6]
    assert seen.all("loss") == losses
    assert seen.all("grad_norm") == pytest.approx(norms)
    assert seen.all("learning_rate") == [0.01] * 6
    for field, value in {"samples": 4, "micro": 4, "accumulation": 1, "tokens": 24, "sequence_length": 6}.items():
        assert seen.all(field) == [value] * 6, field
    for record in seen.records[1:]:
        parts = record["forward"] + record["backward"] + record["optimizer_time"]
        assert 0 < parts < record["duration"]
        assert record["cpu_time"] >= 0
    hello = seen.hello
    assert hello["token_source"] == "first integer input [B,T]"
    assert hello["loss_source"] == "root of backward()"
    assert hello["grad_norm_source"] == "clip_grad_norm_"
    assert hello["optimizers"] == ["AdamW"]
    assert hello["model"]["name"] == "Tiny"
    assert hello["model"]["parameters"] == sum(p.numel() for p in model.parameters())
    assert hello["model"]["gradient_bytes"] == 4 * hello["model"]["parameters"]
    assert seen.notes == []
    assert_readable(seen)


def assert_readable(seen: Any) -> None:
    """What the agent says is what the app's types allow."""
    msgspec = pytest.importorskip("msgspec")
    from bsmon.model import Beat, Hello, Record
    from bsmon_agent import wire

    for record in seen.records:
        msgspec.convert(record, Record)
        assert set(record) <= set(wire.RECORD_FIELDS)
    assert set(seen.hello) <= set(Hello.__struct_fields__)
    msgspec.convert(seen.hello, Hello)
    beat = seen.session.beat()
    assert set(beat) <= set(Beat.__struct_fields__)
    assert beat["memory"]["process_rss"] > 1 << 20
    msgspec.convert({"schema": 1, "session": "0" * 8, "time": 0.0, **beat}, Beat)


def test_accumulation(watch: Callable[..., Any]) -> None:
    seen = watch()
    model = Tiny()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        for _ in range(3):
            (loss_of(model, ids(2)) / 3).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert seen.all("accumulation") == [3] * 5
    assert seen.all("samples") == [6] * 5
    assert seen.all("micro") == [2] * 5
    assert seen.all("tokens") == [36] * 5
    assert seen.all("loss")[0] == pytest.approx(math.log(VOCABULARY), abs=1.0)
    assert seen.hello["loss_source"] == "sum of 3 backward roots"


def test_padding_is_counted_apart(watch: Callable[..., Any]) -> None:
    seen = watch()
    model = Tiny()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        mask = torch.ones(4, 6, dtype=torch.int64)
        mask[0, 2:] = 0
        batch = ids()
        F.cross_entropy(model(input_ids=batch, attention_mask=mask).flatten(0, 1), batch.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert seen.all("padding") == [4] * 4
    assert seen.all("tokens") == [24] * 4
    assert seen.hello["token_source"] == "input_ids"


def test_evaluation_in_between_never_counts(watch: Callable[..., Any]) -> None:
    seen = watch()
    model = Tiny()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(6):
        loss = loss_of(model, ids())
        with torch.no_grad():
            model.eval()
            model(ids(16))
            model.train()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        model.eval()
        model(ids(32))  # gradients on: it is the mode that tells
        model.train()
    assert seen.all("samples") == [4] * 6
    assert seen.all("tokens") == [24] * 6


def test_muon_beside_adamw_is_one_step(watch: Callable[..., Any]) -> None:
    seen = watch()
    model = Tiny()
    first = torch.optim.SGD(model.embed.parameters(), lr=0.1)
    second = torch.optim.AdamW(model.head.parameters(), lr=0.2)
    for _ in range(6):
        loss_of(model, ids()).backward()
        for optimizer in (first, second):
            optimizer.step()
            optimizer.zero_grad()
    assert seen.all("step") == [1, 2, 3, 4, 5, 6]
    assert seen.all("samples") == [4] * 6
    assert seen.all("accumulation") == [1] * 6
    assert seen.hello["optimizers"] == ["SGD", "AdamW"]


def test_a_gan_is_one_step_a_cycle(watch: Callable[..., Any]) -> None:
    seen = watch()
    critic, generator = nn.Linear(8, 1), nn.Linear(3, 8)
    optimizers = [torch.optim.Adam(critic.parameters()), torch.optim.Adam(generator.parameters())]
    for _ in range(6):
        optimizers[0].zero_grad()
        fake = generator(torch.randn(4, 3))
        critic(torch.randn(4, 8)).mean().backward()
        (-critic(fake.detach()).mean()).backward()
        optimizers[0].step()
        optimizers[1].zero_grad()
        critic(fake).mean().backward()
        optimizers[1].step()
    assert seen.all("step") == [1, 1, 2, 3, 4, 5, 6]
    assert seen.all("skipped") == [None] * 7
    assert seen.all("samples")[2:] == [8] * 5
    assert seen.all("accumulation")[2:] == [2] * 5
    assert seen.all("tokens") == [None] * 7
    assert "token ids" in seen.hello["unavailable"]["tokens_per_s"]


def test_a_closure_is_counted_once(watch: Callable[..., Any]) -> None:
    seen = watch()
    model = Tiny()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=5)
    batch = ids()
    firsts: list[float] = []
    calls = [0]
    for _ in range(4):
        here: list[float] = []

        def closure(here: list[float] = here) -> Any:
            calls[0] += 1
            optimizer.zero_grad()
            loss = loss_of(model, batch)
            loss.backward()
            here.append(loss.item())
            return loss

        optimizer.step(closure)
        firsts.append(here[0])
    assert calls[0] > 8, "LBFGS evaluates several times a step"
    assert seen.all("loss") == firsts
    assert seen.all("accumulation") == [1] * 4
    assert seen.all("samples") == [4] * 4
    assert seen.all("skipped") == [None] * 4
    for record in seen.records[1:]:
        assert record["optimizer_time"] + record["forward"] + record["backward"] <= record["duration"]
        assert record["optimizer_time"] > 0


def test_a_closure_that_ends_an_accumulation(watch: Callable[..., Any]) -> None:
    """As Lightning does it: micro-batches before, the last one inside the step."""
    seen = watch()
    model = Tiny()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def closure() -> Any:
        loss = loss_of(model, ids(2))
        loss.backward()
        return loss

    for _ in range(5):
        optimizer.zero_grad()
        closure()
        closure()
        optimizer.step(closure)
    assert seen.all("accumulation") == [3] * 5
    assert seen.all("samples") == [6] * 5


@pytest.mark.parametrize("where", ["forward", "backward", "step"])
def test_an_exception_that_the_loop_survives(watch: Callable[..., Any], where: str) -> None:
    class Breaks(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, value: Any) -> Any:
            return value.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            raise RuntimeError("planted in the backward")

    class Picky(torch.optim.SGD):
        broken = False

        def step(self, closure: Any = None) -> Any:
            if self.broken:
                raise RuntimeError("planted in the step")
            return super().step(closure)

    seen = watch()
    model = Tiny()
    optimizer = Picky(model.parameters(), lr=0.1)
    for number in range(8):
        bad = number in (2, 5)
        optimizer.zero_grad()
        try:
            optimizer.broken = bad and where == "step"
            batch = ids().to(torch.float32) if bad and where == "forward" else ids()
            logits = model(batch)
            loss = F.cross_entropy(logits.flatten(0, 1), batch.flatten())
            (Breaks.apply(loss) if bad and where == "backward" else loss).backward()
            optimizer.step()
        except RuntimeError:
            assert bad
    good = [record for record in seen.records if not record.get("skipped")]
    assert [record["step"] for record in good] == [1, 2, 3, 4, 5, 6]
    assert [record["samples"] for record in good] == [4] * 6
    assert [record["accumulation"] for record in good] == [1] * 6
    assert len(seen.records) - len(good) == (2 if where == "step" else 0)
    assert seen.notes == []


def test_steps_inside_steps_count_once(watch: Callable[..., Any]) -> None:
    class Outer(torch.optim.SGD):
        """Wraps another optimizer, as ZeroRedundancyOptimizer does."""

        inner: Any = None

        def step(self, closure: Any = None) -> Any:
            self.inner.step()
            try:
                self.inner.fails.step()
            except RuntimeError:
                pass
            return super().step()

    class Fails(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            raise RuntimeError("planted")

    seen = watch()
    model = Tiny()
    optimizer = Outer(model.parameters(), lr=0.1)
    optimizer.inner = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.inner.fails = Fails(model.parameters(), lr=0.1)
    for _ in range(6):
        loss_of(model, ids()).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert seen.all("step") == [1, 2, 3, 4, 5, 6]
    assert seen.hello["optimizers"] == ["Outer"]


def test_optimizer_in_backward_is_one_step(watch: Callable[..., Any]) -> None:
    seen = watch()
    model = Tiny()
    for parameter in model.parameters():
        optimizer = torch.optim.AdamW([parameter], lr=0.1)

        def step(p: Any, optimizer: Any = optimizer) -> None:
            optimizer.step()
            optimizer.zero_grad()

        parameter.register_post_accumulate_grad_hook(step)
    for _ in range(6):
        loss_of(model, ids()).backward()
    assert seen.all("step") == [1, 2, 3, 4, 5, 6]
    assert seen.all("samples") == [4] * 6
    assert seen.all("skipped") == [None] * 6
    assert seen.hello["model"]["name"] == "Tiny"


def test_gradients_thrown_away_are_a_skipped_step(watch: Callable[..., Any]) -> None:
    seen = watch()
    model = Tiny()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for number in range(8):
        loss_of(model, ids()).backward()
        if number in (3, 6):
            (model if number == 3 else optimizer).zero_grad()
            continue
        optimizer.step()
        optimizer.zero_grad()
    assert seen.all("skipped") == [None, None, None, True, None, None, True, None]
    assert seen.all("step") == [1, 2, 3, 3, 4, 5, 5, 6]


def test_clearing_another_optimizers_gradients_is_no_skipped_step(watch: Callable[..., Any]) -> None:
    seen = watch()
    actor, critic = nn.Linear(4, 2), nn.Linear(4, 1)
    actor_opt, critic_opt = (torch.optim.SGD(module.parameters(), lr=0.1) for module in (actor, critic))
    for _ in range(6):
        states = torch.randn(5, 4)
        critic(states).mean().backward()
        actor_opt.zero_grad()
        critic_opt.step()
        critic_opt.zero_grad()
        actor(states).mean().backward()
        actor_opt.step()
    assert seen.all("skipped") == [None] * 7
    assert seen.all("step") == [1, 1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("fused", [False, True])
def test_a_loss_scaler(watch: Callable[..., Any], fused: bool) -> None:
    seen = watch()
    model = Tiny()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
    losses = []
    for number in range(8):
        optimizer.zero_grad()
        loss = loss_of(model, ids())
        losses.append(loss.item())
        scaler.scale(loss).backward()
        if number in (3, 5):
            model.head.weight.grad[0, 0] = math.inf
        scaler.step(optimizer)
        scaler.update()
    assert seen.all("loss") == losses
    assert seen.all("skipped") == [None, None, None, True, None, True, None, None]
    assert seen.all("step")[-1] == 6
    assert seen.hello["loss_source"] == "root of backward(), loss scale undone"


@pytest.mark.parametrize("unscaled", [False, True])
def test_a_norm_that_carries_the_loss_scale_is_not_told(watch: Callable[..., Any], unscaled: bool) -> None:
    seen = watch()
    model = Tiny()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for _ in range(4):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, ids())).backward()
        if unscaled:
            scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    if unscaled:
        assert seen.all("grad_norm")[-1] == pytest.approx(norm.item())
    else:
        assert seen.all("grad_norm") == [None] * 4
        assert "loss scale" in seen.hello["unavailable"]["grad_norm"]


def test_the_norm_is_sampled_where_nobody_clips(watch: Callable[..., Any]) -> None:
    from bsmon_agent.governor import Governor

    seen = watch(governor=Governor(share=1.0))
    model = Tiny()
    embedding = nn.Embedding(VOCABULARY, 8, sparse=True)
    model.embed = embedding
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    norms = []
    for _ in range(5):
        optimizer.zero_grad()
        loss_of(model, ids()).backward()
        norms.append(math.sqrt(sum(float(p.grad.to_dense().square().sum()) for p in model.parameters())))
        optimizer.step()
    assert seen.all("grad_norm") == pytest.approx(norms)
    assert "sampled" in seen.hello["grad_norm_source"]


def test_a_resumed_run_goes_on_counting(watch: Callable[..., Any]) -> None:
    model = Tiny()
    first = torch.optim.AdamW(model.parameters())
    for _ in range(7):
        loss_of(model, ids()).backward()
        first.step()
    seen = watch()
    second = torch.optim.AdamW(model.parameters())
    second.load_state_dict(first.state_dict())
    for _ in range(3):
        loss_of(model, ids()).backward()
        second.step()
        second.zero_grad()
    assert seen.all("step") == [8, 9, 10]


def test_attached_in_the_middle_of_a_loop(watch: Callable[..., Any]) -> None:
    model = Tiny()
    optimizer = torch.optim.AdamW(model.parameters())
    seen = None
    for number in range(12):
        loss = loss_of(model, ids())
        if number == 5:
            seen = watch()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert seen is not None
    assert seen.all("step") == [6, 7, 8, 9, 10, 11, 12]
    assert seen.all("samples") == [None] + [4] * 6
    assert seen.hello["model"]["name"] == "Tiny"


def test_the_learning_rate_is_that_of_the_step(watch: Callable[..., Any]) -> None:
    seen = watch()
    model = Tiny()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    for _ in range(5):
        loss_of(model, ids()).backward()
        optimizer.step()
        schedule.step()
    assert seen.all("learning_rate") == [1.0, 0.5, 0.25, 0.125, 0.0625]


def test_a_schedule_tells_the_number_of_steps(watch: Callable[..., Any]) -> None:
    seen = watch()
    optimizer = torch.optim.SGD(Tiny().parameters(), lr=0.1)
    torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=7)
    assert "total_steps" not in seen.hello, "it may count epochs"
    torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, epochs=3, steps_per_epoch=40)
    assert seen.hello["total_steps"] == 120


def test_the_users_own_numbers(watch: Callable[..., Any]) -> None:
    seen = watch()
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(4):
        model(torch.randn(5, 3)).mean().backward()
        seen.session.tokens(100)
        seen.session.tokens(11)
        if number < 2:
            seen.session.log({"accuracy": number / 2, "note": "not a number", "tensor": torch.tensor(3.0)})
        optimizer.step()
        optimizer.zero_grad()
    assert seen.all("tokens") == [111] * 4
    assert seen.all("user") == [{"accuracy": 0.0, "tensor": 3.0}, {"accuracy": 0.5, "tensor": 3.0}, None, None]
    assert seen.hello["token_source"] == "user"


def test_waiting_for_data(watch: Callable[..., Any]) -> None:
    import time

    class Slow(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return 16

        def __getitem__(self, index: int) -> Any:
            time.sleep(0.005)
            return ids(1)[0]

    seen = watch()
    model = Tiny()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert "DataLoader" in seen.hello["unavailable"]["phases_s.data_wait"]
    for batch in torch.utils.data.DataLoader(Slow(), batch_size=2):
        loss_of(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for _ in torch.utils.data.DataLoader(Slow(), batch_size=8):
                break
    waits = seen.all("data_wait")
    assert len(waits) == 8
    assert all(0.010 <= wait < 0.035 for wait in waits[1:]), waits
    assert "phases_s.data_wait" not in seen.hello["unavailable"]


def test_another_threads_use_of_the_model_is_not_counted(watch: Callable[..., Any]) -> None:
    import threading

    seen = watch()
    model = Tiny()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(6):
        loss = loss_of(model, ids())
        side = threading.Thread(target=lambda: loss_of(model, ids(64)).backward(inputs=[model.head.bias]))
        side.start()
        side.join()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert seen.all("samples") == [4] * 6
    assert seen.all("accumulation") == [1] * 6


def test_a_training_in_a_thread_of_its_own(watch: Callable[..., Any]) -> None:
    import threading

    seen = watch()
    model = Tiny()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train() -> None:
        for _ in range(6):
            loss_of(model, ids()).backward()
            optimizer.step()
            optimizer.zero_grad()

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    assert seen.all("step") == [1, 2, 3, 4, 5, 6]
    assert seen.all("samples")[1:] == [4] * 5
