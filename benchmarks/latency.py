"""From the end of an optimizer step to its numbers in the store: a real training, the live source, the fleet.

The training runs in a process of its own, through the launcher. A step's record carries the time when it ended; here
it is compared with the time when the store had taken it. Both clocks are this machine's.

    python benchmarks/latency.py [--seconds 20] [--jobs 1] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bsmon.model import Event, Hello, Steps
from bsmon.sources.live import LiveSource
from bsmon.store.fleet import Fleet

TARGET = 0.300  # seconds, of the 99th percentile
PACES = (0.0025, 0.025, 0.25)  # seconds a step

TRAINING = """
import sys, time, torch
torch.set_num_threads(1)
model = torch.nn.Linear(32, 32)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
steps, pace = int(sys.argv[1]), float(sys.argv[2])
for _ in range(steps):
    due = time.perf_counter() + pace
    optimizer.zero_grad()
    model(torch.randn(8, 32)).square().mean().backward()
    optimizer.step()
    time.sleep(max(0.0, due - time.perf_counter()))
"""


class Clock:
    """Stands before the fleet and notes how old each record is once the fleet has it."""

    def __init__(self) -> None:
        self.fleet = Fleet()
        self.ages: list[float] = []  # seconds, of the records that were made while we listened
        self.seen: dict[str, set[int]] = {}  # session -> numbers of its records
        self._met: dict[str, float] = {}  # session -> when it was first heard of
        self._start = time.time()

    def ingest(self, event: Event) -> None:
        self.fleet.ingest(event)
        now = time.time()
        if isinstance(event, Hello) and event.started > self._start:  # others may train here too
            self._met.setdefault(event.session, now)
        if isinstance(event, Steps) and event.session in self._met:
            seen = self.seen.setdefault(event.session, set())
            fresh = [record for record in event.records if record.seq not in seen]
            seen.update(record.seq for record in fresh)
            self.ages += [now - record.time for record in fresh if record.time > self._met[event.session]]

    def lost(self) -> int:
        """Records that never came."""
        return sum(max(seen) - len(seen) for seen in self.seen.values())


def measure(directory: Path, steps: int, pace: float, jobs: int) -> Clock:
    """Trainings at this pace, listened to from before their start to after their end."""
    os.environ["BSMON_DIR"] = str(directory / f"at-{pace}")
    script = directory / "training.py"
    script.write_text(TRAINING)
    line = [sys.executable, "-m", "bsmon_agent.launch", str(script), str(steps), str(pace)]
    clock, source = Clock(), LiveSource()
    source.start(clock.ingest)
    trainings = [subprocess.Popen(line) for _ in range(jobs)]
    for training in trainings:
        training.wait()
    time.sleep(1.0)
    source.stop()
    return clock


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=20.0, help="length of each training")
    parser.add_argument("--jobs", type=int, default=1, help="trainings at once")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = []
    with tempfile.TemporaryDirectory(prefix="bs", dir="/tmp") as directory:
        for pace in PACES:
            clock = measure(Path(directory), round(options.seconds / pace), pace, options.jobs)
            marks = statistics.quantiles(clock.ages, n=100)
            found.append(
                {"pace": pace, "records": len(clock.ages), "lost": clock.lost(), "p50": marks[49], "p99": marks[98]}
            )
    if options.json:
        print(json.dumps(found))
    else:
        print("a step takes   records   lost   p50        p99        (optimizer step -> value in the store)")
        for row in found:
            print("{pace:8.4f} s {records:11d} {lost:6d}   {p50:.3f} s    {p99:.3f} s".format(**row))
        print(f"target: p99 <= {TARGET:.3f} s")
    return 0 if all(row["p99"] <= TARGET and row["lost"] == 0 for row in found) else 1


if __name__ == "__main__":
    raise SystemExit(main())
