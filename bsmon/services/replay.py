"""A monitor on a recording: its clock is the recording's, and can be stopped and put elsewhere."""

from __future__ import annotations

from pathlib import Path

from bsmon.services.monitor import Monitor
from bsmon.sources.recording import RecordingSource


class Replay(Monitor):
    """``speed`` None: the newest state of the recording, followed while it is written. Raises as its source does."""

    patience = 600.0  # all of it will come, however long it is

    def __init__(self, path: Path, speed: float | None = None) -> None:
        self._source = RecordingSource(path, speed)
        super().__init__([self._source], clock=self._source.clock)

    @property
    def over(self) -> bool:
        """All of it was shown, and nobody adds to it."""
        return self._source.over

    @property
    def title(self) -> str:
        """How it plays, for the screen's first line."""
        source = self._source
        if source.speed is None:
            return "RECORDED"
        if source.paused:
            return "REPLAY paused"
        return "REPLAY over" if source.over else f"REPLAY {source.speed:g}x"

    def hold(self) -> bool:
        """Stop its clock, or let it go on; False: it follows what is written, and that does not stop."""
        if self._source.speed is None:
            return False
        self._source.paused = not self._source.paused
        return True

    def seek(self, moment: float) -> bool:
        """Go to a moment of it, as if it had been watched up to there; False: it only follows what is written."""
        if self._source.speed is None:
            return False
        self.stop()
        self._source.rewind(moment)
        self.start_over()
        return True
