"""Read at the start of every Python that has this directory on PYTHONPATH, which `bsmon run` puts there.

Brings the agent to those that import torch, and makes room for the user's own sitecustomize. PYTHONPATH reaches every
Python that is started below, whatever its version and environment: this must be valid and silent in all, down to 2.7,
and cost next to nothing.
"""

# mypy: allow-untyped-defs, allow-untyped-calls

import os
import sys


class Lookout(object):  # noqa: UP004
    """Stands first in sys.meta_path until somebody asks for torch; then the one who waits for its import takes over."""

    @classmethod
    def find_spec(cls, fullname, path=None, target=None):
        if fullname != "torch" or cls not in sys.meta_path:
            return None
        sys.meta_path.remove(cls)
        try:
            from bsmon_agent import attach
        except Exception:  # an environment without the agent
            return None
        before = sys.meta_path[:1]
        attach()  # it waits for torch by a finder of its own, now the first
        return None if sys.meta_path[:1] == before else sys.meta_path[0].find_spec(fullname, path, target)


def step_aside():
    """From now on all is as it would be without us. Children still find us, by PYTHONPATH."""
    here = os.path.dirname(__file__)  # noqa: PTH120
    sys.path[:] = [entry for entry in sys.path if entry != here]
    return sys.modules.pop("sitecustomize")


this = step_aside()  # kept: Python 2 empties a module that nobody holds
if sys.version_info >= (3, 10) and os.environ.get("BSMON") != "0":
    sys.meta_path.insert(0, Lookout)

import sitecustomize  # type: ignore[import-not-found]  # noqa: E402, F401  (where there is none, site expects this error)
