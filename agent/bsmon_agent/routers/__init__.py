"""Mixture-of-experts routers: finding them, reading them, counting what they do.

``watch(module)`` stands alone; a job's counts come through ``bsmon_agent.probes.router``. How to add a router family
is told in docs/routers.md.
"""

from __future__ import annotations

from bsmon_agent.routers.adapters.declared import declare
from bsmon_agent.routers.find import find
from bsmon_agent.routers.watching import Watch, watch

__all__ = ["Watch", "declare", "find", "watch"]
