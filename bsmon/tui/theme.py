"""From the palette's inks to what the terminal is sent."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from rich.color import Color as RichColour
from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.filter import LineFilter

from bsmon.draw.palette import Colour, Depth, ink


def detect_depth(environ: Mapping[str, str]) -> Depth:
    """The colours the terminal says it has. ``NO_COLOR`` (no-color.org) means none, unless it is empty."""
    if environ.get("NO_COLOR"):
        return "mono"
    if environ.get("COLORTERM", "").lower() in ("truecolor", "24bit"):
        return "truecolor"
    term = environ.get("TERM", "")
    if "direct" in term:
        return "truecolor"
    if "256" in term:
        return "256"
    return "mono" if term.startswith("vt") else "16"


def _colour(colour: Colour) -> RichColour | None:
    if colour is None:
        return None
    return RichColour.from_ansi(colour) if isinstance(colour, int) else RichColour.parse(colour)


@lru_cache(2048)
def style_of(depth: Depth, name: str) -> Style:
    """The Rich style of a style name at a depth. What an ink leaves open is not sent at all."""
    own = ink(depth, name)
    return Style(
        color=_colour(own.fore),
        bgcolor=_colour(own.back),
        bold=own.bold or None,
        dim=own.dim or None,
        reverse=own.reverse or None,
        underline=own.underline or None,
    )


@lru_cache(2048)
def _colourless(style: Style) -> Style:
    """The style's attributes alone; what differed only by its background is reversed, so that it still shows."""
    shown = style.bgcolor is not None and not style.bgcolor.is_default
    return Style(
        bold=style.bold,
        dim=style.dim,
        italic=style.italic,
        underline=style.underline,
        reverse=True if shown or style.reverse else None,
    )


class Colourless(LineFilter):
    """No colour at all. Textual's own filter still sends grey, and fails on a segment without a style."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [
            Segment(text, None if style is None else _colourless(style), control) for text, style, control in segments
        ]
