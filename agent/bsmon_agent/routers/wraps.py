"""Functions of libraries that must be wrapped because no hook sees what they know; counted, so that the last user
takes the wraps out again."""

from __future__ import annotations

from collections.abc import Callable

from bsmon_agent.routers.registry import Adapter, Site

_users: dict[str, tuple[int, Callable[[], None]]] = {}


def acquire(sites: list[Site]) -> list[Adapter]:
    """Put in the wraps that these routers need; answers whose."""
    needed = list({site.adapter.family: site.adapter for site in sites if site.adapter.install is not None}.values())
    for one in needed:
        assert one.install is not None
        users, undo = _users.get(one.family, (0, None))
        _users[one.family] = users + 1, undo or one.install()
    return needed


def release(adapters: list[Adapter]) -> None:
    for one in adapters:
        users, undo = _users.pop(one.family)
        if users > 1:
            _users[one.family] = users - 1, undo
        else:
            undo()
