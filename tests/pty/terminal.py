"""A program in a pseudo-terminal, with an emulator that tells what a person would see."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path

import pyte

HERE = Path(__file__).parent
ENVIRONMENT = {
    "PATH": os.environ.get("PATH", ""),
    "HOME": "/tmp",
    "TERM": "xterm-256color",
    "COLORTERM": "truecolor",
    "LANG": "C.UTF-8",
    "PYTHONPATH": os.pathsep.join(sys.path),
}


class Terminal:
    """Start with ``Terminal(argv)``; ``show()`` reads what came and gives the lines of the screen."""

    def __init__(self, *argv: str, size: tuple[int, int] = (80, 24), **environment: str) -> None:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execvpe(sys.executable, [sys.executable, *argv], ENVIRONMENT | environment)
        self.screen = pyte.Screen(*size)
        self._stream = pyte.ByteStream(self.screen)
        self.raw = b""
        self.code: int | None = None
        self.resize(*size)

    def resize(self, width: int, height: int) -> None:
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
        self.screen.resize(height, width)

    def read(self, seconds: float) -> bytes:
        """What arrives within some seconds, also fed to the emulator."""
        end, got = time.monotonic() + seconds, b""
        while (left := end - time.monotonic()) > 0:
            if not select.select([self.fd], [], [], left)[0]:
                break
            try:
                data = os.read(self.fd, 65536)
            except OSError:
                break
            if not data:
                break
            got += data
            self._feed(data)
        self.raw += got
        return got

    def _feed(self, data: bytes) -> None:
        for private in (b"\x1b[>1u", b"\x1b[>25u", b"\x1b[<u", b"\x1b[22;2t", b"\x1b[23;2t"):
            data = data.replace(private, b"")  # sequences that the emulator does not know
        self._stream.feed(data)

    @property
    def lines(self) -> list[str]:
        return [line.rstrip() for line in self.screen.display]

    def until(self, seen: Callable[[Terminal], bool], seconds: float = 30.0) -> None:
        end = time.monotonic() + seconds
        while not seen(self):
            if time.monotonic() > end:
                raise AssertionError("not seen:\n" + "\n".join(self.lines))
            self.read(0.1)

    def wait_for(self, text: str, seconds: float = 30.0) -> None:
        self.until(lambda own: text in "\n".join(own.lines), seconds)

    def keys(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def end(self, seconds: float = 15.0) -> int:
        """Wait for the program to end by itself; its exit code, or minus the signal that killed it."""
        limit = time.monotonic() + seconds
        while time.monotonic() < limit:
            self.read(0.05)
            done, status = os.waitpid(self.pid, os.WNOHANG)
            if done:
                self.code = os.waitstatus_to_exitcode(status)
                self.read(0.2)
                return self.code
        raise AssertionError("it did not end:\n" + "\n".join(self.lines))

    def close(self) -> None:
        if self.code is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.fd)
