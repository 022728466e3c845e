"""The real screen, in a real terminal, on made-up jobs whose clock runs (``--still``: stands still)."""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tui"))

from feed import START, Feed, busy

from bsmon.tui.app import run


class Running(Feed):
    """The feed with the time of the wall."""

    def tick(self) -> None:
        self.time = START + time.monotonic() - BEGAN
        self.revision = int((self.time - START) * 10)


BEGAN = time.monotonic()

if __name__ == "__main__":
    feed = busy()
    print("before")
    kind = Feed if "--still" in sys.argv else Running
    code = run(kind(feed.jobs, feed.alerts), differences="--plain" not in sys.argv)
    print(f"after {code}")
    sys.exit(code)
