"""What several floors need to agree on: when a job counts as lost, how much is kept, and where."""

from __future__ import annotations

import os
from pathlib import Path

LOST_AFTER = 30.0  # seconds without a word from a process
STALE_STEPS = 3.0  # expected steps without one
STALE_AT_LEAST = 2.0  # seconds: short steps arrive in batches, and a scheduler's hiccup is no news
ENDED_KEPT = 3600.0  # seconds that a run which ended before anybody looked is still shown
WINDOW_STEPS = 20  # a rate is taken over the longer of this many steps …
WINDOW_SECONDS = 10.0  # … and this many seconds
WINDOW_MOST = 1000  # … but over no more records than this
KEPT_SECONDS = 600.0  # of single step records, as far as their number allows
KEPT_RECORDS = 32768  # step records over all processes
SESSIONS = 4096  # processes known at one time
ENDED_SESSIONS = 256  # of these, ended ones


def state_directory() -> Path:
    """Where what should outlive the program goes (the alert log): ``$XDG_STATE_HOME/bsmon``."""
    home = os.environ.get("XDG_STATE_HOME")
    base = Path(home) if home and Path(home).is_absolute() else Path.home() / ".local" / "state"
    return base / "bsmon"
