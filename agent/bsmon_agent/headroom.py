"""Room for ZeroMQ, before it starts: where it gets no file descriptor or no thread, it ends the whole process.

Once its own threads run, a want of either is an error like any other.
"""

from __future__ import annotations

import contextlib
import os
import threading

DESCRIPTORS = 24  # two sockets, the context and its threads take 14
THREADS = 3  # ZeroMQ's two, and ours


def ensure() -> None:
    """Take as much as will be needed and give it back. Raises OSError or RuntimeError if it is not to be had."""
    with contextlib.ExitStack() as taken:
        first = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        taken.callback(os.close, first)
        for _ in range(DESCRIPTORS - 1):
            taken.callback(os.close, os.dup(first))
        leave = threading.Event()
        taken.callback(leave.set)
        for _ in range(THREADS):
            thread = threading.Thread(target=leave.wait, name="bsmon", daemon=True)
            thread.start()
            taken.callback(thread.join)
            taken.callback(leave.set)
