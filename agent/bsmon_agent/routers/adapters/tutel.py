"""tutel's gates answer logits; the choice, noise included, and the drops happen in a function behind them."""

from __future__ import annotations

from bsmon_agent.routers.adapters.generic import read_gate
from bsmon_agent.routers.reading import Call, Reading
from bsmon_agent.routers.registry import Site, adapter


@adapter("tutel", r"tutel:\w*TopKGate", tag="logits-only")
def read(site: Site, call: Call) -> Reading | str:
    return read_gate(site, call)
