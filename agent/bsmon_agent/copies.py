"""Copies and pickles of a user's module are what they would be without us: our hooks stay behind."""

from __future__ import annotations

import copy
import sys
from typing import Any

from torch import nn

from bsmon_agent.patches import Callback

HOOKS = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
)
SHALLOW = copy.copy.__code__


class Copying:
    """A ``__reduce_ex__`` of its own for ``nn.Module``, which asks ``object``'s and leaves our hooks out.

    A shallow copy shares the hooks with its original; so it does here.
    """

    def on(self) -> None:
        if "__reduce_ex__" not in vars(nn.Module):
            nn.Module.__reduce_ex__ = _reduce  # type: ignore[method-assign,assignment]

    def off(self) -> None:
        if vars(nn.Module).get("__reduce_ex__") is _reduce:
            del nn.Module.__reduce_ex__


def _reduce(module: nn.Module, protocol: Any) -> Any:
    reduced = object.__reduce_ex__(module, protocol)
    if sys._getframe(1).f_code is SHALLOW or not isinstance(reduced, tuple) or len(reduced) < 3:
        return reduced
    function, arguments, state, *rest = reduced
    if isinstance(state, dict):
        state = _without_ours(state)
    elif isinstance(state, tuple) and state and isinstance(state[0], dict):  # (dict, slots)
        state = (_without_ours(state[0]), *state[1:])
    return (function, arguments, state, *rest)


def _without_ours(state: dict[str, Any]) -> dict[str, Any]:
    ours = {
        number
        for name in ("_forward_hooks", "_forward_pre_hooks")
        for number, hook in (state.get(name) or {}).items()
        if isinstance(hook, Callback)
    }
    if not ours:
        return state
    return {name: _pruned(value, ours) if name in HOOKS else value for name, value in state.items()}


def _pruned(hooks: Any, ours: set[int]) -> Any:
    return type(hooks)((number, hook) for number, hook in hooks.items() if number not in ours)
