"""How this process ends: calls back once, with the exit code as far as it can be known from inside.

Python does not tell its atexit functions. What tells: an exception that nobody caught is in ``sys.last_value``; the
frame of the main module says whether it returned (code 0) or was left by an exception; a ``sys.exit`` that ended the
program was seen on its way. ``raise SystemExit(n)`` leaves no trace: then the code is None, which means unknown.
A signal that kills the process calls nobody.
"""

from __future__ import annotations

import atexit
import functools
import opcode
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn

Callback = Callable[[int | None], None]

_callbacks: list[Callback] = []
_ready = False
_main: FrameType | None = None  # the frame of the main module, kept to see how it is left
_asked: int | None = None  # what sys.exit() was last called with in the main thread


def watch(callback: Callback) -> None:
    """Call back when this process ends by itself, in the main thread, before modules are torn down."""
    global _ready, _main
    if not _ready:
        _ready = True
        _main = _main_frame()
        _see_sys_exit()
        atexit.register(_at_exit)
        if _forked():
            from multiprocessing.util import Finalize

            Finalize(None, _at_end_of_forked, exitpriority=0)
    _callbacks.append(callback)


def forget(callback: Callback) -> None:
    """Do not call it any more."""
    if callback in _callbacks:
        _callbacks.remove(callback)


def status(value: object) -> int:
    """The exit status of ``sys.exit(value)``, as the shell sees it."""
    if value is None:
        return 0
    return value & 0xFF if isinstance(value, int) else 1


def code() -> int | None:
    """The exit code, in an atexit function; None if it cannot be known."""
    if _main is None or hasattr(sys, "ps1"):
        return None
    if _returned(_main):
        return 0
    uncaught = getattr(sys, "last_value", None)
    if uncaught is not None:
        return 128 + signal.SIGINT if isinstance(uncaught, KeyboardInterrupt) else 1
    return _asked


def _returned(frame: FrameType) -> bool:
    return opcode.opname[frame.f_code.co_code[frame.f_lasti]].startswith("RETURN_")


def _main_frame() -> FrameType | None:
    """The outermost frame of ``__main__`` on the main thread's stack."""
    found = None
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None:
        if frame.f_globals.get("__name__") == "__main__" and frame.f_code.co_name == "<module>":
            found = frame
        frame = frame.f_back
    return found


def _see_sys_exit() -> None:
    original = sys.exit

    @functools.wraps(original)
    def exit(*args: Any) -> NoReturn:
        global _asked
        if threading.current_thread() is threading.main_thread():
            _asked = status(args[0] if args else None)
        original(*args)

    sys.exit = exit


def _forked() -> bool:
    """Whether multiprocessing forked this process: it leaves by os._exit(), and the main module's frame never ends."""
    if "multiprocessing.process" not in sys.modules or "--multiprocessing-fork" in sys.orig_argv:
        return False
    from multiprocessing import parent_process

    return parent_process() is not None


def _at_end_of_forked() -> None:
    """Called while the exception that ends a forked worker is on its way, if there is one; Python 3.13 calls later."""
    error = sys.exc_info()[1]
    if error is None:
        _call(0 if sys.version_info < (3, 13) else None)
    else:
        _call(status(error.code) if isinstance(error, SystemExit) else 1)


def _at_exit() -> None:
    _call(None if _forked() else code())


def _call(found: int | None) -> None:
    while _callbacks:
        try:
            _callbacks.pop()(found)
        except Exception:  # an exit is no place for a traceback of ours
            pass


def _in_child() -> None:
    global _ready
    _callbacks.clear()
    _ready = False


os.register_at_fork(after_in_child=_in_child)
