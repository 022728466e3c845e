"""Read at the start of every Python that has this directory on PYTHONPATH, which `bsmon run` puts there.

Brings the agent if it is installed, then makes room for the user's own sitecustomize. PYTHONPATH reaches every
Python that is started below, whatever its version and environment: this must be valid and silent in all, down to 2.7.
"""

# mypy: allow-untyped-defs, allow-untyped-calls

import os
import sys


def _step_aside():
    """From now on the path is what it would be without us. Children still find us, by PYTHONPATH."""
    here = os.path.dirname(__file__)  # noqa: PTH120
    sys.path[:] = [entry for entry in sys.path if entry != here]
    return sys.modules.pop("sitecustomize")


def _bring_agent():
    if os.environ.get("BSMON") == "0":
        return
    try:
        from bsmon_agent.activation import activate

        activate()
    except Exception:  # an environment without the agent, or a Python too old for it
        pass


_this = _step_aside()  # kept: Python 2 empties a module that nobody holds
_bring_agent()

import sitecustomize  # type: ignore[import-not-found]  # noqa: E402, F401  (where there is none, site expects this error)
