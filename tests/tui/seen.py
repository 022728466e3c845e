"""What a person sees and does, by a pilot."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from feed import Feed
from textual.pilot import Pilot

from bsmon.tui.app import BsmonApp


class Seen:
    """The screen, its feed, and hands on the keys."""

    def __init__(self, app: BsmonApp, feed: Feed, pilot: Pilot[int]) -> None:
        self.app, self.feed, self.pilot = app, feed, pilot

    @property
    def text(self) -> str:
        page = self.app.page
        assert page is not None
        return self.app.text_of(page)

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    async def press(self, *keys: str) -> str:
        await self.pilot.press(*keys)
        return await self.settle()

    async def settle(self) -> str:
        """Let the screen catch up with the feed."""
        await self.pilot.pause()
        self.app.look_again()
        await self.pilot.pause()
        return self.text

    async def resize(self, width: int, height: int) -> str:
        await self.pilot.resize_terminal(width, height)
        return await self.settle()


Opened = Callable[..., AbstractAsyncContextManager[Seen]]
