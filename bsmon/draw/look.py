"""How things are drawn: the set of glyphs, and whether colour may carry anything."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

GlyphName: TypeAlias = Literal["braille", "block", "ascii"]
GLYPH_NAMES: tuple[GlyphName, ...] = ("braille", "block", "ascii")


@dataclass(frozen=True)
class Glyphs:
    """Characters by role. ``spark`` and ``eighths`` run from least to most and leave out the blank."""

    name: GlyphName
    spark: str
    eighths: str
    rule: str
    dashes: str
    axis: str
    bar: str
    track: str
    ellipsis: str
    times: str
    swatch: str


_BLOCKS = "▁▂▃▄▅▆▇█"
_EIGHTHS = "▏▎▍▌▋▊▉█"

GLYPHS: dict[GlyphName, Glyphs] = {
    "braille": Glyphs("braille", _BLOCKS, _EIGHTHS, "─", "╌", "│", "█", "·", "…", "×", "■"),
    "block": Glyphs("block", _BLOCKS, _EIGHTHS, "─", "╌", "│", "█", "·", "…", "×", "■"),
    "ascii": Glyphs("ascii", "_.,-~=+#", "#", "-", "-", "|", "#", ".", "~", "x", "#"),
}


@dataclass(frozen=True)
class Look:
    """``colours``: backgrounds can be told apart (256 colours or more), so heat needs no ramp of characters."""

    glyphs: Glyphs = GLYPHS["braille"]
    colours: bool = True
