"""The keys of a replay, and of recording."""

from __future__ import annotations

from pathlib import Path

import pytest
from feed import START, busy
from seen import Opened

from bsmon.services.recorder import Recorder
from bsmon.services.replay import Replay
from bsmon.tui.app import BsmonApp


async def test_a_replay_is_wound_held_and_sent_to_an_alert(opened: Opened) -> None:
    feed = busy()
    feed.title = "REPLAY 4x"
    async with opened(feed, size=(120, 36)) as seen:
        assert "REPLAY 4x" in seen.lines[0] and "LIVE" not in seen.lines[0]
        for key, seconds in (("left", -30), ("right", 30), ("shift+left", -600), ("shift+right", 600)):
            await seen.press(key)
            assert feed.sought == START + seconds
        await seen.press("space")
        assert feed.held and "PAUSED" not in seen.lines[0], "its clock stops, not the view"
        await seen.press("A", "enter")
        assert feed.sought == feed.alerts[0].since


async def test_what_is_live_cannot_be_wound(opened: Opened) -> None:
    async with opened(size=(120, 36)) as seen:
        assert "LIVE" in seen.lines[0]
        assert "bsmon replay" in await seen.press("left")
        assert "PAUSED" in await seen.press("space")


async def test_r_records_and_says_where(opened: Opened) -> None:
    async with opened(size=(120, 36)) as seen:
        assert "recording into [a] file" in await seen.press("R")


async def test_the_screen_on_a_recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from bsmon.model import Hello, Record, Steps

    clock = [START]
    recorder = Recorder(tmp_path / "a", [], clock=lambda: clock[0])
    recorder.start()
    session = "a" * 8
    recorder.ingest(Hello(schema=1, session=session, pid=1, host="h", name="kept", job="j", started=START, time=START))
    for step in range(1, 121):
        clock[0] = START + step
        recorder.ingest(Steps(1, session, [Record(seq=step, step=step, time=clock[0], duration=1.0, loss=2.0)]))
    recorder.stop()
    replay = Replay(tmp_path / "a", speed=1.0)
    replay.start()
    app = BsmonApp(replay, depth="256")
    async with app.run_test(size=(120, 36), notifications=True) as pilot:

        async def shown() -> str:
            await pilot.pause(0.5)
            app.look_again()
            await pilot.pause()
            assert app.page is not None
            return app.text_of(app.page)

        assert "REPLAY 1x" in await shown()
        await pilot.press("space", "right", "right")
        found = await shown()
        assert "REPLAY paused" in found and "step 6" in found
        await pilot.press("shift+right")
        assert "step 120" in await shown()
        await pilot.press("shift+left")
        assert "step 120" not in await shown()
    replay.stop()
