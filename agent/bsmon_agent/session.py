"""One process's agent: what it is made of, and how it comes, tells of itself and goes."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from bsmon_agent import exits, probes
from bsmon_agent.card import Card
from bsmon_agent.dispatch import Dispatch
from bsmon_agent.governor import Governor
from bsmon_agent.ledger import Ledger
from bsmon_agent.loop import Loop
from bsmon_agent.probes.base import Probe
from bsmon_agent.reductions import Lagged
from bsmon_agent.steps import Steps

if TYPE_CHECKING:
    from bsmon_agent.publisher import Publisher

_session: Session | None = None


def current() -> Session | None:
    """This process's session, if the agent is attached."""
    return _session


def attach(name: str | None = None, model: Any = None, optimizer: Any = None, total_steps: int | None = None) -> None:
    """Attach, or tell the session that is there what is given now. torch is imported by now."""
    global _session
    if _session is None:
        _session = Session(name)
        _session.install()
    _session.given(name, model, optimizer, total_steps)


def detach() -> None:
    """Leave torch and the training as they were."""
    global _session
    session, _session = _session, None
    if session is not None:
        session.close()


class Session:
    """The loop with its probes on one side, the ledger and its publisher on the other.

    Tests give a ledger of their own, chosen probes, or no publisher at all.
    """

    def __init__(
        self,
        name: str | None = None,
        ledger: Ledger | None = None,
        chosen: Sequence[Probe] | None = None,
        governor: Governor | None = None,
        publish: bool = True,
    ) -> None:
        self.card = Card(name)
        self.governor = governor or Governor()
        self.ledger = ledger or Ledger()
        self.publisher: Publisher | None = None
        self._publish = publish
        self._lagged = Lagged(self.ledger.push)
        self._told: dict[str, Any] | None = None  # the last hello, to see what changed
        missing: list[str] = []
        self._probes = list(chosen) if chosen is not None else probes.load(missing.append)
        self.dispatch = Dispatch()
        for text in missing:
            self.dispatch.note(text)
        self.steps = Steps(self.card, self.dispatch, self.governor, self._lagged.add)
        self.loop = Loop(self.card, self.dispatch, self.governor, self.steps, self._start, self._broken)

    def install(self) -> None:
        """Hook everything into torch."""
        self.dispatch.install(self._probes)
        self.loop.install()

    def given(self, name: str | None, model: Any, optimizer: Any, total_steps: int | None) -> None:
        """What the user says outright goes before what we find."""
        if name is not None:
            self.card.name = name
        if total_steps is not None:
            self.card.total_steps = int(total_steps)
        self.loop.given(model, optimizer)

    def tokens(self, count: int) -> None:
        self.loop.guarded(self.loop.tokens, count)

    def log(self, scalars: dict[str, Any]) -> None:
        self.loop.guarded(self.loop.logged, scalars)

    # ------------------------------------------------------------ to the outside

    def _start(self) -> None:
        """The first sign of a training: from now on this process can be seen."""
        if self._publish and self.publisher is None:
            from bsmon_agent.publisher import Publisher

            self.publisher = Publisher(self.ledger, self.describe, self.beat)
            self.publisher.start()
            exits.watch(self._exit)
            if self.publisher.problem is not None:
                logging.getLogger("bsmon").warning("%s", self.publisher.problem)

    def describe(self) -> dict[str, Any]:
        """The hello. In the publisher's thread, like ``beat``."""
        hello = self.card.describe()
        self.dispatch.ask("describe", hello)
        self.card.complete(hello)
        return hello

    def beat(self) -> dict[str, Any]:
        """The heartbeat; where the hello changed since the last one, that is announced too."""
        hello = self.describe()
        if self.publisher is not None and hello != self._told:
            self._told = hello
            self.publisher.announce()
        beat: dict[str, Any] = {"overhead": self.governor.cost(), "memory": {}, "notes": list(self.dispatch.notes)}
        self.dispatch.ask("report", beat)
        return beat

    # ------------------------------------------------------------ the end

    def _broken(self, error: Exception) -> None:
        """The agent itself failed: it leaves the training, and stays only to say so."""
        self.dispatch.note(f"the agent is off: {type(error).__name__}: {error}")
        self._remove()

    def _remove(self) -> None:
        try:
            self.loop.remove()
        except Exception as error:
            self.dispatch.note(f"the agent left something behind: {type(error).__name__}: {error}")
        self.dispatch.remove()

    def _exit(self, code: int | None) -> None:
        self.loop.guarded(self.loop.read)
        self._lagged.close()

    def close(self) -> None:
        """Everything out again; who watches sees the end."""
        self._exit(None)
        self._remove()
        exits.forget(self._exit)
        if self.publisher is not None:
            self.publisher.stop()

    def abandon(self) -> None:
        """In a forked child: take out what was inherited. What reaches outside is the parent's."""
        exits.forget(self._exit)
        self._remove()


def _in_child() -> None:
    """A forked child starts afresh, and is seen only if it trains itself."""
    global _session
    if _session is not None:
        name, total_steps = _session.card.name, _session.card.total_steps
        _session.abandon()
        _session = None
        attach(name, total_steps=total_steps)


os.register_at_fork(after_in_child=_in_child)
