"""The probes. ``load`` is the one list: a probe that cannot be imported stops none of the others."""

from __future__ import annotations

import importlib
from collections.abc import Callable

from bsmon_agent.probes.base import Probe

PROBES = (
    "bsmon_agent.probes.step:StepProbe",
    "bsmon_agent.probes.phases:PhasesProbe",
    "bsmon_agent.probes.batch:BatchProbe",
    "bsmon_agent.probes.loss:LossProbe",
    "bsmon_agent.probes.norm:NormProbe",
    "bsmon_agent.probes.memory:MemoryProbe",
    "bsmon_agent.probes.user:UserProbe",
    "bsmon_agent.probes.router:RouterProbe",
    "bsmon_agent.probes.noise:NoiseProbe",
)


def load(note: Callable[[str], None]) -> list[Probe]:
    """One of each; why one is missing goes to ``note``."""
    probes = []
    for place in PROBES:
        module, _, name = place.partition(":")
        try:
            probes.append(getattr(importlib.import_module(module), name)())
        except Exception as error:
            note(f"{name} cannot be loaded: {type(error).__name__}: {error}")
    return probes
