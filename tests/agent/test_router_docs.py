"""The worked example of docs/routers.md, as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from bsmon_agent.routers import registry, watch  # noqa: E402
from tests.agent.moe_models import chosen  # noqa: E402

PAGE = Path(__file__).parents[2] / "docs" / "routers.md"


class StarGate(torch.nn.Module):
    """What the page says of it."""

    __module__ = "acme.moe"

    def __init__(self) -> None:
        super().__init__()
        self.n_stars, self.picks, self.slack = 8, 2, 1.0
        self.beam = torch.nn.Linear(16, 8)

    def forward(self, x):
        logits = self.beam(x)
        weights, numbers = logits.softmax(-1).topk(2, -1)
        kept = numbers.clone()
        kept[::3, 1] = -1
        return kept, weights, logits


def test_the_example_of_a_new_family():
    (example,) = (block for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S) if "StarGate" in block)
    before = list(registry.ADAPTERS)
    try:
        exec(compile(example, str(PAGE), "exec"), {"__name__": "acme_adapter"})
        torch.manual_seed(0)
        gate, x = StarGate(), torch.randn(24, 16)
        seen = watch(gate)
        gate(x)
        (layer,) = seen.read()
    finally:
        registry.ADAPTERS[:] = before
    assert layer["tokens_per_expert"] == chosen(gate.beam(x))
    assert (layer["dropped_assignments"], layer["tokens_fully_dropped"], layer["tag"]) == (8, 0, "exact")
    assert layer["capacity_factor"] == 1.0
