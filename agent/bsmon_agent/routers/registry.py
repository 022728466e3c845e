"""Which adapter reads which router. An adapter is one function in a file of its own; see docs/routers.md."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from bsmon_agent.routers.reading import Call, Reading
from bsmon_agent.routers.structure import Facts, facts_of

Tag = Literal["exact", "derived", "logits-only", "unsupported"]


@dataclass
class Site:
    """A router where it stands: what an adapter may look at besides the call itself."""

    name: str
    module: nn.Module
    parent: nn.Module | None
    adapter: Adapter
    tag: Tag
    detail: Any = None  # what the rule that found it knows besides: a declaration, the index of the logits

    def __post_init__(self) -> None:
        self.known = self.facts()  # as found, for the hook; what may change while it runs is asked for afresh

    def facts(self) -> Facts:
        return self.adapter.facts(self.module, self.parent)

    @property
    def router(self) -> str:
        return kind(self.module)


Read = Callable[[Site, Call], Reading | str]
FactsOf = Callable[[nn.Module, nn.Module | None], Facts]


@dataclass(frozen=True)
class Adapter:
    """How one family of routers is read. ``read`` answers a Reading, or says in words why the output can't be read."""

    family: str
    classes: tuple[str, ...]  # "package:Class", the class a pattern; it lies in the package or below
    read: Read
    facts: FactsOf = facts_of
    tag: Tag = "exact"
    before: Callable[[nn.Module], Any] | None = None  # looks at the module just before the call; not under a compiler
    install: Callable[[], Callable[[], None]] | None = None  # wraps what hooks can't see; answers its undoing

    def fits(self, module: nn.Module) -> str | None:
        """Which of these classes it is, or is derived from."""
        return next((wanted for cls in type(module).__mro__ for wanted in self.classes if _is(cls, wanted)), None)


def kind(module: nn.Module) -> str:
    """The name of a module's class; ``fully_shard`` puts one of its own before it."""
    cls = next(cls for cls in type(module).__mro__ if not cls.__name__.startswith("FSDP"))
    return cls.__name__


ADAPTERS: list[Adapter] = []


def adapter(family: str, *classes: str, **more: Any) -> Callable[[Read], Read]:
    """Register the decorated function as the adapter of these classes."""

    def register(read: Read) -> Read:
        ADAPTERS.append(Adapter(family, classes, read, **more))
        return read

    return register


def adapter_of(module: nn.Module) -> Adapter | None:
    """The adapter that knows this class; one that names it plainly goes before one whose pattern covers it."""
    fitting = [(wanted, one) for one in ADAPTERS if (wanted := one.fits(module)) is not None]
    return min(fitting, key=lambda fit: not _plain(fit[0]), default=(None, None))[1]


def _plain(wanted: str) -> bool:
    return wanted.rpartition(":")[2].isidentifier()


def _is(cls: type, wanted: str) -> bool:
    package, _, name = wanted.partition(":")
    return re.fullmatch(name, cls.__name__) is not None and f"{cls.__module__}.".startswith(f"{package}.")
