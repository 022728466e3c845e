"""A recording in place of live processes: played from any moment at any speed, or as it stands and grows."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from bsmon.config import KEPT_SECONDS
from bsmon.sources.base import Ingest
from bsmon.sources.recorded import Arrived, Recording, survey
from bsmon.units import age

BEAT = 0.05  # seconds between two moments at which a played recording goes on
FOLLOW = 0.25  # seconds between two looks at whether it has grown
FIRST_LOOK = 3.0  # seconds into it at which playing begins: by then the processes have told their history


class RecordingSource:
    """``speed``: recorded seconds a second; None: all there is at once, then what is added to it.

    Where it begins (``rewind``), or at the end without a speed, it shows what was known then; of the time before
    that, at least ten minutes. The monitor's clock must be ``clock``.
    Raises ``RefusedError`` for what is no recording and ``OSError`` for what can't be opened.
    """

    name = "recording"

    def __init__(self, path: Path, speed: float | None = None) -> None:
        self.path = path
        self.speed = speed
        self.paused = False
        self.settled = False
        self.over = False  # all was handed on, and no recorder adds to it
        self._known = survey(path)
        self.first, self.last = self._known.first, self._known.last
        self._problem: str | None = None
        self._thread: threading.Thread | None = None
        self.rewind(self.first + FIRST_LOOK if speed is not None else self.last)

    @property
    def problem(self) -> str | None:
        return self._problem

    @property
    def looked_at(self) -> list[str]:
        return [f"{self.path}: a recording of {age(self.last - self.first)}"]

    def clock(self) -> float:
        """The moment that is shown, Unix seconds: nothing that arrived later was handed on."""
        return self._position

    def rewind(self, moment: float) -> None:
        """While it is stopped: begin at that moment the next time."""
        self._at = self._position = min(max(moment, self.first), self.last)

    def start(self, ingest: Ingest) -> None:
        """May be called again after ``stop``: it begins anew where it began, or was rewound to."""
        self._ingest = ingest
        self._recording = Recording(self.path)
        self._recording.skip_to(self._known.key_before(self._at - KEPT_SECONDS))
        self._unread = self._recording.events()
        self._ahead: Arrived | None = None
        self._stop = threading.Event()
        self.settled = self.over = False
        self._position = self._at
        self._thread = threading.Thread(target=self._run, name="bsmon-recording", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        if self._thread is not None:
            self._stop.set()
            self._thread.join(timeout=5)
            self._thread = None

    def _run(self) -> None:
        try:
            if self.speed is None:
                self._follow()
            else:
                self._play()
        except Exception as error:  # the thread's last word: the screen lives on and says it
            self._problem = f"stopped reading {self.path} ({type(error).__name__}: {error})"
        finally:
            self.settled = True
            self._recording.close()

    def _follow(self) -> None:
        """Hand on all there is, then what is added."""
        while not self._stop.is_set():
            self._feed(float("inf"))
            self._position = self.last
            self.settled = True
            self._stop.wait(FOLLOW)

    def _play(self) -> None:
        """Hand on what came before the beginning, then the rest as time goes by."""
        self._feed(self._position)
        self.settled = True
        before = time.monotonic()
        while not self._stop.wait(BEAT):
            now = time.monotonic()
            if not self.paused:
                target = self._position + (now - before) * (self.speed or 0.0)
                more = self._feed(target)
                self._position = target if more else max(self._position, min(target, self.last))
            before = now

    def _feed(self, until: float) -> bool:
        """Hand on what arrived up to a moment. False if there is nothing after it yet."""
        while not self._stop.is_set():
            if self._ahead is None:
                self._ahead = next(self._unread, None)
            if self._ahead is None:
                self._unread = self._recording.events()
                self._reached_end()
                return False
            if self._ahead.time > until:
                return True
            self._ingest(self._ahead.event)
            self._ahead = None
        return False

    def _reached_end(self) -> None:
        self.last = max(self.last, self._recording.last)
        self._problem = self._recording.problem
        self.over = not self._recording.written_now()
