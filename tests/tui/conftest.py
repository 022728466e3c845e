"""A pilot on the screen, with a monitor of made-up jobs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from feed import Feed, busy
from seen import Opened, Seen

from bsmon.draw.look import GlyphName
from bsmon.draw.palette import Depth
from bsmon.tui.app import BsmonApp


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Opened:
    """``async with opened(size=(80, 24)) as seen``."""
    monkeypatch.delenv("NO_COLOR", raising=False)

    @asynccontextmanager
    async def on(
        feed: Feed | None = None,
        size: tuple[int, int] = (80, 24),
        depth: Depth | None = "256",
        glyphs: GlyphName = "braille",
    ) -> AsyncIterator[Seen]:
        data = feed or busy()
        app = BsmonApp(data, depth=depth, glyphs=glyphs)
        async with app.run_test(size=size, notifications=True) as pilot:
            seen = Seen(app, data, pilot)
            await seen.settle()
            yield seen

    return on
