"""The ledger and the history: bounded, never in the way, every loss counted."""

from __future__ import annotations

import threading
import time

from bsmon_agent.ledger import PER_RECORD, History, Ledger


def numbers(records):
    return [record["seq"] for record in records]


def test_records_are_numbered_from_one_and_leave_in_order():
    ledger = Ledger()
    for step in range(3):
        ledger.push({"step": step})
    assert ledger.drain() == [{"step": 0, "seq": 1}, {"step": 1, "seq": 2}, {"step": 2, "seq": 3}]
    assert ledger.drain() == []
    assert (ledger.seq, ledger.dropped) == (3, 0)


def test_the_oldest_go_first_and_the_loss_is_counted_and_seen():
    ledger = Ledger(maxlen=4)
    for step in range(10):
        ledger.push({"step": step})
    assert numbers(ledger.drain()) == [7, 8, 9, 10]
    assert ledger.dropped == 6
    for step in range(5):
        ledger.push({"step": step})
    assert numbers(ledger.drain()) == [12, 13, 14, 15]
    assert ledger.dropped == 7


def test_nothing_is_lost_uncounted_while_one_thread_pushes_and_another_drains():
    ledger = Ledger(maxlen=64)
    total = 50_000
    pushing = threading.Thread(target=lambda: [ledger.push({"step": step}) for step in range(total)])
    pushing.start()
    seen: list[int] = []
    while pushing.is_alive():
        seen += numbers(ledger.drain())
        time.sleep(0.001)
    seen += numbers(ledger.drain())
    assert seen == sorted(set(seen))
    assert seen[-1] == total
    assert len(seen) + ledger.dropped == total
    assert ledger.dropped > 0  # it was driven hard enough to mean something


def test_a_push_stays_cheap_when_nobody_drains():
    ledger = Ledger()
    records = [{"step": step} for step in range(20_000)]
    start = time.perf_counter()
    for record in records:
        ledger.push(record)
    assert (time.perf_counter() - start) / len(records) < 5e-6


def test_a_closed_ledger_keeps_nothing():
    ledger = Ledger()
    ledger.push({"step": 1})
    ledger.close()
    ledger.push({"step": 2})
    assert ledger.drain() == []


def test_history_is_bounded_in_bytes():
    history = History(size=10 * (100 + PER_RECORD))
    for seq in range(1, 101):
        history.add(seq, bytes(100), now=0.0)
    assert len(history.after(0)) == 10
    assert history.held <= history.size
    assert history.seq == 100


def test_history_is_bounded_in_time():
    history = History(seconds=600.0)
    for second in range(1000):
        history.add(second + 1, str(second).encode(), now=float(second))
    assert history.after(0)[0] == b"399"


def test_history_keeps_at_least_the_newest_record():
    history = History(size=10)
    history.add(1, bytes(50))
    history.add(2, bytes(60))
    assert history.after(0) == [bytes(60)]
    assert history.last == bytes(60)


def test_history_gives_what_comes_after_a_number():
    history = History()
    for seq in (1, 2, 4, 5):
        history.add(seq, b"%d" % seq)
    assert history.after(0) == [b"1", b"2", b"4", b"5"]
    assert history.after(2) == history.after(3) == [b"4", b"5"]
    assert history.after(5) == history.after(99) == []
