"""Recordings that are begun and ended from the screen."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from bsmon.config import state_directory
from bsmon.services.recorder import Recorder
from bsmon.sources.base import Source
from bsmon.sources.decode import RefusedError
from bsmon.units import size


class Keeper:
    """One recording at a time, of sources of its own, so that it holds the history of all that runs."""

    def __init__(self, sources: Callable[[], Sequence[Source]], directory: Path | None = None) -> None:
        self._sources = sources
        self._directory = directory or state_directory() / "recordings"
        self._recorder: Recorder | None = None

    @property
    def recording(self) -> bool:
        return self._recorder is not None

    def toggle(self) -> str:
        """Begin or end one; says what came of it."""
        return self.stop() if self._recorder else self._start()

    def stop(self) -> str:
        recorder, self._recorder = self._recorder, None
        if recorder is None:
            return "nothing is recorded"
        recorder.stop()
        lost = f"; {recorder.lost} events could not be written" if recorder.lost else ""
        return f"recorded {size(recorder.size)} in {recorder.path}{lost}"

    def _start(self) -> str:
        path = self._directory / time.strftime("%Y%m%d-%H%M%S.bsm")
        try:
            self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            recorder = Recorder(path, self._sources())
            recorder.start()
        except (OSError, RefusedError) as error:
            return f"nothing is recorded: {error}"
        self._recorder = recorder
        return f"recording into {path}"
