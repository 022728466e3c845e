"""bsmon's part in a training process. Importing it loads neither torch nor ZeroMQ, and nothing here ever raises."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from typing import Any

__version__ = "0.1.0"
__all__ = ["attach", "detach", "log", "router", "tokens"]

_given: dict[str, Any] = {}  # by attach(), until torch is imported
_waiting = False


def attach(name: str | None = None, model: Any = None, optimizer: Any = None, total_steps: int | None = None) -> None:
    """Let this training be seen. Idempotent: a later call may add what an earlier one did not know.

    ``name`` of the job; the ``model`` that is trained and its ``optimizer``, where they should not be looked for;
    ``total_steps`` for the time to the end. With BSMON=0 in the environment nothing happens.
    """
    if os.environ.get("BSMON") == "0":
        return
    given = {"name": name, "model": model, "optimizer": optimizer, "total_steps": total_steps}
    _given.update((key, value) for key, value in given.items() if value is not None)
    _safely(_wait)


def _wait() -> None:
    global _waiting
    from bsmon_agent.waiting import when_imported

    if not _waiting:
        _waiting = True
        when_imported("torch", lambda: _safely(_attach))


def _attach() -> None:
    global _waiting
    if _waiting:
        from bsmon_agent import session

        given = dict(_given)
        _given.clear()
        _waiting = False
        session.attach(**given)


def detach() -> None:
    """Take the agent out of this process again; torch is left as it was."""
    global _waiting
    _waiting = False
    _given.clear()
    session = sys.modules.get("bsmon_agent.session")
    if session is not None:
        _safely(session.detach)


def tokens(count: int) -> None:
    """Tokens that this process trained on since the last step, where they can't be told from the model's input."""
    _safely(lambda: _session() and _session().tokens(count))


def log(**scalars: Any) -> None:
    """Numbers of your own, shown beside ours with the next step."""
    _safely(lambda: _session() and _session().log(scalars))


def router(module: Any, indices: Any = None, probs: Any = None, dropped: Any = None, capacity: Any = None) -> None:
    """Declare a mixture-of-experts router that no adapter knows; ``bsmon_agent.routers.declare`` says how."""

    def declare() -> None:
        from bsmon_agent import routers

        routers.declare(module, indices, probs, dropped, capacity)

    _safely(declare)


def _session() -> Any:
    session = sys.modules.get("bsmon_agent.session")
    return session and session.current()


def _safely(action: Callable[[], object]) -> None:
    try:
        action()
    except Exception as error:  # whatever it is, the training goes on, without us
        logging.getLogger("bsmon").warning("bsmon: %s: %s", type(error).__name__, error)
