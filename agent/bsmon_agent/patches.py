"""Changes made to what is not ours, each with its way back."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol


class Change(Protocol):
    """Something that can be put in place and taken out again, any number of times."""

    def on(self) -> None: ...

    def off(self) -> None: ...


@dataclass
class Attribute:
    """An attribute of a class or module. Taken out only while it is still ours: who patched over us keeps his."""

    holder: Any
    name: str
    original: Any
    replacement: Any

    def on(self) -> None:
        setattr(self.holder, self.name, self.replacement)

    def off(self) -> None:
        if vars(self.holder).get(self.name) is self.replacement:
            setattr(self.holder, self.name, self.original)


@dataclass
class Everywhere:
    """A function, in every module that holds it under any name (``from torch.nn.utils import clip_grad_norm_``)."""

    original: Any
    replacement: Any

    def on(self) -> None:
        _swap(self.original, self.replacement)

    def off(self) -> None:
        _swap(self.replacement, self.original)


def _swap(old: Any, new: Any) -> None:
    for module in list(sys.modules.values()):
        try:
            names = module.__dict__
        except Exception:  # a lazy module may raise anything
            continue
        if isinstance(names, dict):
            for name in [name for name, value in list(names.items()) if value is old]:
                names[name] = new


@dataclass
class Hook:
    """A hook that is registered with a function of torch's, which gives a handle back."""

    register: Callable[[], Any]
    handle: Any = None

    def on(self) -> None:
        self.handle = self.register()

    def off(self) -> None:
        if self.handle is not None:
            self.handle.remove()
            self.handle = None


class Patches:
    """A set of changes, taken out in the reverse order."""

    def __init__(self) -> None:
        self.changes: list[Change] = []

    def make(self, change: Change) -> None:
        change.on()
        self.changes.append(change)

    def wrap(self, holder: Any, name: str, wrapper: Callable[[Any], Any]) -> None:
        """Replace an attribute that ``holder`` itself has by ``wrapper(original)``."""
        original = vars(holder)[name]
        self.make(Attribute(holder, name, original, wrapper(original)))

    def off(self) -> None:
        for change in reversed(self.changes):
            change.off()

    def on(self) -> None:
        for change in self.changes:
            change.on()

    def clear(self) -> None:
        self.off()
        self.changes.clear()


class Callback(functools.partial):  # type: ignore[type-arg]
    """A hook of ours that lives in a user's module. A copy or pickle of that module does not carry it along.

    In the copy stands a function of the standard library that takes anything and returns None, so that the pickle of
    a model loads where bsmon is not installed.
    """

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return contextlib.nullcontext().__exit__

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (contextlib.nullcontext(), "__exit__")


def run_eagerly(functions: Iterable[Any], callees_too: bool = False) -> None:
    """Have torch.compile never compile the frames of these (a call that it inlines is traced all the same).

    ``callees_too`` covers all that they call. Does nothing while torch has not loaded its compiler.
    """
    dynamo = sys.modules.get("torch._dynamo.eval_frame")
    if dynamo is None:
        return
    for function in functions:
        if callees_too and hasattr(dynamo, "set_code_exec_strategy"):
            skip = dynamo.FrameAction.SKIP
            dynamo.set_code_exec_strategy(function.__code__, dynamo.FrameExecStrategy(skip, skip))
        elif hasattr(dynamo, "skip_code"):
            dynamo.skip_code(function.__code__)
