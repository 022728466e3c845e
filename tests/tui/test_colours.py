"""Colours on the screen: none where none are wanted, and none that a terminal does not have."""

from __future__ import annotations

import pytest
from feed import busy
from rich.color import ColorType
from seen import Opened, Seen

from bsmon.draw.palette import Depth
from bsmon.tui.theme import detect_depth


def colours(seen: Seen) -> set[ColorType]:
    strips = seen.app.screen._compositor.render_strips()
    styles = [style for strip in strips for _, style, _ in strip if style is not None]
    return {
        colour.type for style in styles for colour in (style.color, style.bgcolor) if colour and not colour.is_default
    }


@pytest.mark.parametrize(
    ("depth", "allowed"),
    [
        ("mono", set()),
        ("16", {ColorType.STANDARD}),
        ("256", {ColorType.EIGHT_BIT}),
        ("truecolor", {ColorType.TRUECOLOR}),
    ],
)
async def test_each_page_keeps_to_its_depth(opened: Opened, depth: Depth, allowed: set[ColorType]) -> None:
    async with opened(depth=depth, size=(120, 36)) as seen:
        for key in "12345h":
            await seen.press(key)
            assert colours(seen) == allowed or colours(seen) < allowed, key
            assert colours(seen) or not allowed or key == "h"


async def test_no_color_reaches_dialogues_and_the_filter(opened: Opened) -> None:
    async with opened(depth="mono", size=(120, 36)) as seen:
        await seen.press("slash", "x")
        assert colours(seen) == set()
        await seen.press("escape", "colon")
        assert colours(seen) == set()


@pytest.mark.parametrize(
    ("environ", "depth"),
    [
        ({"NO_COLOR": "1", "COLORTERM": "truecolor"}, "mono"),
        ({"NO_COLOR": "", "COLORTERM": "truecolor"}, "truecolor"),
        ({"COLORTERM": "24bit", "TERM": "screen"}, "truecolor"),
        ({"TERM": "xterm-256color"}, "256"),
        ({"TERM": "tmux-256color"}, "256"),
        ({"TERM": "xterm"}, "16"),
        ({"TERM": "linux"}, "16"),
        ({"TERM": "vt100"}, "mono"),
        ({}, "16"),
    ],
)
def test_depth_by_what_the_terminal_says(environ: dict[str, str], depth: Depth) -> None:
    assert detect_depth(environ) == depth


async def test_severity_is_the_only_colour_of_a_row(opened: Opened) -> None:
    """Healthy rows are uncoloured, apart from the sparkline."""
    async with opened(busy(), depth="256") as seen:
        strips = seen.app.screen._compositor.render_strips()
        healthy = next(strip for strip in strips if "llama3-8b-ft" in strip.text)
        numbers = {style.color.number for text, style, _ in healthy if style and style.color and text.strip()}
        assert numbers <= {67}
        bad = next(strip for strip in strips if "overhead-bound" in strip.text)
        assert 221 in {style.color.number for _, style, _ in bad if style and style.color}


async def test_hostile_names_are_shown_as_text_never_as_markup(opened: Opened) -> None:
    feed = busy()
    feed.jobs[1].name = "[red]evil[/red]\x1b]0;x\x07"
    async with opened(feed, size=(120, 36)) as seen:
        assert "[red]evil[/red]?]0;x?" in seen.text
        assert "[red]evil[/red]" in await seen.press("2")
