"""Finds the module that is trained: the outermost one that is really called and owns what the optimizer updates."""

from __future__ import annotations

import gc
import inspect
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any

import torch
from torch import nn

from bsmon_agent.patches import Callback

DEEPEST = 64  # frames that are looked through
MOST = 256  # modules that are listened to while the root is being looked for
LOOKS = 3  # times that a root which is not called is looked for anew
UNSHARED = 3  # references to a frame's dict of locals while nobody else keeps it: the frame's, ours, getrefcount's

_CONTAINERS = (nn.ModuleList, nn.ModuleDict)


def modules_in_sight(frame: FrameType | None) -> list[nn.Module]:
    """Modules that a frame or one of its callers names: locals, globals, and the attributes of ``self``."""
    found: dict[int, nn.Module] = {}
    namespaces: set[int] = set()
    for _ in range(DEEPEST):
        if frame is None:
            break
        if id(frame.f_globals) not in namespaces:
            namespaces.add(id(frame.f_globals))
            _gather(frame.f_globals.values(), found)
        _gather(_local_values(frame), found)
        frame = frame.f_back
    return list(found.values())


def _gather(values: Iterable[Any], found: dict[int, nn.Module]) -> None:
    for value in list(values):
        if _is_module(value):
            found.setdefault(id(value), value)


def _local_values(frame: FrameType) -> list[Any]:
    """What a function's names hold, and what the attributes of its ``self`` hold.

    Below Python 3.13 asking for a frame's locals makes a copy that lives as long as the frame: it would keep tensors
    alive, so it is emptied again. It is the very dict that ``locals()`` gave to the user, if he asked: then hands off.
    """
    code = frame.f_code
    if not code.co_flags & inspect.CO_OPTIMIZED or {"locals", "vars", "f_locals"} & {*code.co_names}:
        return []
    names = frame.f_locals
    values = [value for value in names.values() if _is_module(value)]
    owner = names.get("self")
    if sys.version_info < (3, 13) and sys.getrefcount(names) <= UNSHARED:
        names.clear()
    attributes = getattr(owner, "__dict__", None)
    if isinstance(attributes, dict) and not _is_module(owner):
        values += [value for value in list(attributes.values()) if _is_module(value)]
    return values


def _is_module(value: Any) -> bool:
    """Not isinstance: proxies answer that with arbitrary code."""
    return issubclass(type(value), nn.Module)


def owners(modules: Iterable[nn.Module], parameters: set[int]) -> list[nn.Module]:
    """Those that hold at least half of these parameters (given by identity)."""
    return [module for module in modules if 2 * len(_identities(module) & parameters) >= len(parameters)]


def _identities(module: nn.Module) -> set[int]:
    return {id(parameter) for parameter in module.parameters()}


def optimized(optimizer: Any) -> set[int]:
    """The identities of an optimizer's parameters."""
    return {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}


def descendants(module: nn.Module) -> Iterator[nn.Module]:
    """Modules below, nearest first, containers that cannot be called left out."""
    queue = deque(module.children())
    while queue:
        child = queue.popleft()
        if not isinstance(child, _CONTAINERS):
            yield child
        queue.extend(child.children())


class RootFinder:
    """Listens to candidates until one of them proves to be the root; later, when the root falls silent, anew.

    A candidate that is called with gradients enabled becomes the root; an outer one that contains it takes its place.
    ``before`` and ``after`` are the hooks that every candidate gets.
    """

    def __init__(self, before: Callable[..., None], after: Callable[..., None]) -> None:
        self.settled = False
        self._before = before
        self._after = after
        self._root: weakref.ref[nn.Module] | None = None
        self._handles: dict[int, tuple[weakref.ref[nn.Module], list[Any]]] = {}
        self._searches = 0
        self._looks = 0

    @property
    def root(self) -> nn.Module | None:
        return self._root() if self._root is not None else None

    # ------------------------------------------------------------ looking

    def look(self, frame: FrameType | None, optimizer: Any) -> None:
        """Listen to what these frames name and this optimizer trains."""
        self.listen(owners(modules_in_sight(frame), optimized(optimizer)))
        if not self._handles:
            self._search(optimizer)

    def _search(self, optimizer: Any) -> None:
        """The last resort, some 40 ms: every module that Python knows of."""
        self._searches += 1
        if self._searches <= LOOKS:
            modules = [thing for thing in gc.get_objects() if _is_module(thing)]
            self.listen(owners(modules, optimized(optimizer)))

    def look_again(self, frame: FrameType | None, optimizer: Any) -> None:
        """The root was not called in a whole step: something around or inside it must have been."""
        self._looks += 1
        if self._looks > LOOKS:
            self.settled = True
            return
        self.reopen()
        self.look(frame, optimizer)
        self._search(optimizer)
        for module in [ref() for ref, _ in list(self._handles.values())]:
            if module is not None:
                self.listen(descendants(module))

    def reopen(self) -> None:
        """Whoever is called next may be the root."""
        self.settled, self._root = False, None

    def listen(self, modules: Iterable[nn.Module]) -> None:
        for module in modules:
            if len(self._handles) >= MOST:
                return
            known = self._handles.get(id(module))
            if known is None or known[0]() is not module:
                self._handles[id(module)] = weakref.ref(module), self._hook(module)

    def compiled(self, wrapper: nn.Module) -> None:
        """A module that was put around one we listen to, which will be traced from now on and not heard."""
        inside = {id(module) for module in wrapper.modules()}
        if any(key in inside and ref() is not None for key, (ref, _) in self._handles.items()):
            self.settled = False
            self.listen([wrapper])

    def pause(self) -> None:
        """Take the hooks out of all modules, for a moment."""
        for _, handles in self._handles.values():
            _remove(handles)
            handles.clear()

    def resume(self) -> None:
        for module, handles in [(ref(), handles) for ref, handles in self._handles.values()]:
            if module is not None:
                handles += self._hook(module)

    def _hook(self, module: nn.Module) -> list[Any]:
        if isinstance(module, torch.jit.ScriptModule):
            return []
        before = module.register_forward_pre_hook(Callback(self._before), prepend=True, with_kwargs=True)
        return [before, module.register_forward_hook(Callback(self._after))]

    @property
    def heard_of(self) -> bool:
        """Is anything listened to?"""
        return bool(self._handles)

    # ------------------------------------------------------------ hearing

    def elect(self, module: nn.Module, inside: bool) -> bool:
        """A candidate is called, maybe inside a call of the root: may it be the root from now on?"""
        known = self._handles.get(id(module))
        if self.settled or not torch.is_grad_enabled() or known is None or known[0]() is not module:
            return False  # the last: a shallow copy, which shares its hooks with the original
        root = self.root
        if root is not None and (inside or all(inner is not root for inner in module.modules())):
            return False
        self._root = weakref.ref(module)
        return True

    def settle(self) -> None:
        """The root was called and trained: stop listening to the others."""
        if self.settled:
            return
        self.settled = True
        root = self.root
        for key, (module, handles) in list(self._handles.items()):
            if module() is not root:
                _remove(handles)
                del self._handles[key]

    def close(self) -> None:
        for _, handles in self._handles.values():
            _remove(handles)
        self._handles.clear()
        self._root = None


def _remove(handles: list[Any]) -> None:
    for handle in handles:
        handle.remove()
