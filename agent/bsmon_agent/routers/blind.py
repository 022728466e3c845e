"""Why a router that was found counts nothing: the answer is never 0."""

from __future__ import annotations

import sys

COMPILED = (
    "compiled before it was watched, so its hook cannot fire: start with bsmon run, watch before the first compiled "
    "call, or call torch._dynamo.reset()"
)
REPLACED = "found, but never called though the model ran: something else (a fused kernel?) works in its place"
EVALUATED = "only evaluation forwards came by, and those are not counted"
WAITING = "no forward pass yet"


def why_uncalled(forwards: dict[bool, int], training_only: bool) -> str:
    """``forwards``: of the outermost module, by training mode, as far as they were seen."""
    if forwards[True] or (forwards[False] and not training_only):
        return COMPILED if compiler_ran() else REPLACED
    if forwards[False]:
        return EVALUATED
    return COMPILED if compiler_ran() else WAITING


def compiler_ran() -> bool:
    """Has torch.compile compiled anything in this process?"""
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", {})
    return any(counters.get(kind, {}).get(what) for kind, what in (("frames", "total"), ("stats", "unique_graphs")))
