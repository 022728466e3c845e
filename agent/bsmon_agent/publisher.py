"""The one thread of the agent: sends what the ledger holds, ten times a second, and answers requests for history.

It owns everything that touches the outside: the runtime directory, the sockets, the entry. Whatever goes wrong there
ends up in ``problem`` or ``notes`` and never in the training.
"""

from __future__ import annotations

import os
import signal
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

from bsmon_agent import exits, headroom, rundir, wire
from bsmon_agent.bulletin import Bulletin, Describe, why
from bsmon_agent.ledger import Ledger

if TYPE_CHECKING:
    import zmq

    from bsmon_agent.station import Station

HELLO_INTERVAL = 5.0  # seconds
ENTRY_INTERVAL = 30.0  # seconds; after a SIGKILL the entry tells the state of so long ago, at most
FAREWELL = 100  # milliseconds that the last messages may take to leave
PATIENCE = 2.0  # seconds that an exit waits for the thread, at most
LONGEST_PAUSE = 5.0  # seconds between two attempts while nothing works

_here: weakref.WeakSet[Publisher] = weakref.WeakSet()
_inherited: list[object] = []  # in a forked child: what is its parent's, and must not be finalized here


class Publisher:
    """Sends a ledger's records. ``describe`` gives a hello, ``beat`` a beat without its seq and losses.

    ``start``, ``stop`` and ``announce`` are for the training's threads and never raise. In a forked child it does
    nothing any more. At the end of the process it stops by itself, with the exit code if that can be known.
    """

    def __init__(self, ledger: Ledger, describe: Describe, beat: Describe) -> None:
        self.problem: str | None = None  # why nobody can see this training, and what to do about it
        self._ledger = ledger
        self._bulletin = Bulletin(ledger, describe, beat)
        self._context: zmq.Context[Any] | None = None
        self._station: Station | None = None
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._announced = False
        self._written = ""  # the state that the entry tells
        self._due = dict.fromkeys(("send", "beat", "hello", "entry"), 0.0)

    @property
    def notes(self) -> list[str]:
        """What a user should know of this side: directories passed over, fields left out, a full disk."""
        return self._bulletin.notes

    def start(self) -> None:
        """Open the sockets and start the thread. On failure ``problem`` says why, and the ledger keeps nothing."""
        if self._thread is not None or self.problem is not None:
            return
        try:
            self._open()
            thread = threading.Thread(target=self._run, name="bsmon", daemon=True)
            thread.start()
        except Exception as error:  # no pyzmq, no directory, no thread to be had: the training goes on without us
            self.problem = f"bsmon cannot show this training: {why(error)}"
            self._ledger.close()
            self._close()
            return
        self._thread = thread
        _here.add(self)
        exits.watch(self.stop)

    def announce(self) -> None:
        """What ``describe`` says has changed: send it soon."""
        self._announced = True

    def stop(self, exit_code: int | None = None) -> None:
        """Send what is left, write how it ended, close. Waits ``PATIENCE`` seconds at most."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._bulletin.exit_code = exit_code
            self._stop.set()
            thread.join(PATIENCE)
            exits.forget(self.stop)

    # ------------------------------------------------------------ the thread

    def _run(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # signals are the training's
        pause = wire.SEND_INTERVAL
        while not self._stop.is_set():
            try:
                self._turn()
                self.problem, pause = None, wire.SEND_INTERVAL
            except Exception as error:
                self.problem = f"bsmon cannot show this training now: {why(error)}"
                self._bulletin.note(f"sending failed for a while: {why(error)}")
                self._unsettle()
                self._stop.wait(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
        try:
            self._finish()
        except Exception as error:
            self.problem = f"the end of this training could not be told: {why(error)}"
        self._close(FAREWELL)

    def _turn(self) -> None:
        """Answer requests until it is time to send, then send."""
        station = self._settled()
        wait = self._due["send"] - time.monotonic()
        if wait <= 0:
            self._due["send"] = time.monotonic() + wire.SEND_INTERVAL
            self._welcome(station)  # before anything is sent: who has subscribed and asked since must not miss it
            self._send(station)
            station.desk.proceed()
        elif station.desk.wait(wait):
            for peer, after in station.desk.requests():
                station.desk.answer(peer, self._bulletin.answer(after))

    def _send(self, station: Station) -> None:
        for payload in self._bulletin.fresh():
            station.feed.send(wire.STEPS, payload)
        if self._is_due("hello", HELLO_INTERVAL) or self._announced:
            self._announced = False
            station.feed.send(wire.HELLO, self._bulletin.describe())
        if self._is_due("beat", wire.BEAT_INTERVAL):
            station.feed.send(wire.BEAT, self._bulletin.beat())
            self._look_after(station)

    def _welcome(self, station: Station) -> None:
        """A new viewer gets a hello at once: it then knows that its subscription holds."""
        floods = station.feed.floods
        if station.feed.welcome():
            station.feed.send(wire.HELLO, self._bulletin.hello)
        if station.feed.floods > floods:
            self._bulletin.note(
                "a viewer sent a flood of subscriptions; all viewers were hung up on, and may come back"
            )

    def _is_due(self, what: str, interval: float) -> bool:
        now = time.monotonic()
        if now < self._due[what]:
            return False
        self._due[what] = now + interval
        return True

    def _finish(self) -> None:
        """The last records, a beat that says so, and an entry for those who come later."""
        self._bulletin.finished = True
        station = self._settled()
        self._welcome(station)
        for payload in self._bulletin.fresh():
            station.feed.send(wire.STEPS, payload)
        station.feed.send(wire.BEAT, self._bulletin.beat())
        self._write_entry(station)

    # ------------------------------------------------------------ where

    def _open(self) -> None:
        import zmq

        headroom.ensure()
        self._context = zmq.Context()
        self._bulletin.describe()
        self._settled()

    def _settled(self) -> Station:
        """The station, in the first directory that can hold one."""
        if self._station is None:
            passed_over: list[str] = []
            self._station = self._settle(passed_over)
            for note in passed_over:
                self._bulletin.note(note)
            if self._station is None:
                raise RuntimeError(f"no runtime directory can be used; set BSMON_DIR. {'; '.join(passed_over)}")
        return self._station

    def _settle(self, passed_over: list[str]) -> Station | None:
        from bsmon_agent.station import Station

        assert self._context is not None
        for directory in rundir.candidates(passed_over):
            try:
                station = Station(self._context, directory)
            except Exception as error:
                passed_over.append(f"{directory} passed over: {why(error)}")
                continue
            try:
                self._write_entry(station)
                return station
            except Exception as error:
                station.close()
                passed_over.append(f"{directory} passed over: {why(error)}")
        return None

    def _look_after(self, station: Station) -> None:
        """Once a second: keep the entry fresh, and settle anew if the directory was taken from under us."""
        if not station.intact():
            self._bulletin.note(f"{station.entry.parent} was emptied or removed; the sockets were made again")
            self._unsettle()
        elif self._written != self._bulletin.state or self._is_due("entry", ENTRY_INTERVAL):
            try:
                self._write_entry(station)
            except OSError as error:
                self._bulletin.note(f"{station.entry} cannot be written: {why(error)}")

    def _write_entry(self, station: Station) -> None:
        said = self._bulletin
        station.write(said.hello, said.state, said.history.last, said.exit_code)
        self._written = said.state

    def _unsettle(self, linger: int = 0) -> None:
        station, self._station = self._station, None
        if station is not None:
            station.close(linger)

    def _close(self, linger: int = 0) -> None:
        self._unsettle(linger)
        if self._context is not None:
            self._context.term()

    def _disown(self) -> None:
        """This is a forked child: everything here belongs to the parent."""
        _inherited.append((self._context, self._station, self._thread))
        self._context = self._station = self._thread = None
        self.problem = "the agent stays in the process that started it; this one was forked from it"
        self._ledger.close()


def _in_child() -> None:
    for publisher in list(_here):
        publisher._disown()
    _here.clear()


os.register_at_fork(after_in_child=_in_child)
