"""What both trainings take on their command line, and how they leave the rest of the machine alone."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from dataclasses import dataclass


@dataclass
class Options:
    steps: int
    share: float


def parse(description: str | None) -> Options:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--steps", type=int, default=20_000, help="optimizer steps (default %(default)s)")
    parser.add_argument("--share", type=float, default=0.3, help="of one core to take (default %(default)s)")
    found = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # who asks us to stop gets a clean end
    return Options(steps=found.steps, share=found.share)


class Pace:
    """Rests between two steps, so that the process takes about ``share`` of one core."""

    def __init__(self, share: float) -> None:
        self.rest_per_second = 1 / share - 1
        self.mark = time.process_time()

    def rest(self) -> None:
        now = time.process_time()
        time.sleep(min((now - self.mark) * self.rest_per_second, 1.0))
        self.mark = now
