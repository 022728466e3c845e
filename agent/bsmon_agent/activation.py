"""Brings the agent into this process once it trains: when torch is imported, and not before.

It runs at the start of every Python below ``bsmon run``, so it imports next to nothing.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType


def activate() -> None:
    """Attach as soon as the program itself has imported torch. Processes that never do stay as they are."""
    sys.meta_path.insert(0, _Lookout)


class _Lookout:
    """Stands first in ``sys.meta_path`` until somebody asks for torch; then the one who waits for it takes over."""

    @classmethod
    def find_spec(
        cls, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "torch" or cls not in sys.meta_path:
            return None
        sys.meta_path.remove(cls)
        from bsmon_agent.waiting import when_imported

        when_imported("torch", _attach)
        return sys.meta_path[0].find_spec(fullname, path, target)


def _attach() -> None:
    import bsmon_agent

    bsmon_agent.attach()
