"""A picture of the screen, alike with any font: each character has its place, dots and blocks are shapes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from rich.cells import cell_len
from rich.color import Color
from rich.segment import Segment
from rich.style import Style

_WIDTH, _HEIGHT, _SIZE, _MARGIN = 8.4, 18.0, 14, 8.0
_BACK, _FORE = "#16181d", "#d5d8de"
_FONTS = "'DejaVu Sans Mono','Menlo','Consolas',monospace"
_EIGHTHS = "▏▎▍▌▋▊▉"
_LOWER = "▁▂▃▄▅▆▇█"
_SHAPES = frozenset(_LOWER + _EIGHTHS + "─│╌")
# bit of a braille pattern -> (column, row) of its dot
_DOT_PLACES = ((0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (0, 3), (1, 3))


def picture(lines: Sequence[Iterable[Segment]], columns: int) -> str:
    """Lines of styled text as SVG, on a dark page."""
    width, height = columns * _WIDTH + 2 * _MARGIN, len(lines) * _HEIGHT + 2 * _MARGIN
    shapes = [shape for y, line in enumerate(lines) for shape in _line(line, _MARGIN + y * _HEIGHT)]
    size = f'viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}"'
    page = f'<rect width="100%" height="100%" rx="6" fill="{_BACK}"/>'
    body = "\n".join([page, *shapes])
    font = f'font-family="{_FONTS}" font-size="{_SIZE}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {font}>\n{body}\n</svg>\n'


def _line(line: Iterable[Segment], y: float) -> list[str]:
    shapes: list[str] = []
    x = _MARGIN
    for text, style, _ in line:
        own = style or Style.null()
        fore, back = _colours(own)
        length = cell_len(text) * _WIDTH
        if back != _BACK and text:
            shapes.append(f'<rect x="{x:.5g}" y="{y:g}" width="{length:.5g}" height="{_HEIGHT:g}" fill="{back}"/>')
        shapes += _text(text, x, y, fore, own)
        x += length
    return shapes


def _colours(style: Style) -> tuple[str, str]:
    fore, back = _hex(style.color, _FORE), _hex(style.bgcolor, _BACK)
    return (back, fore) if style.reverse else (fore, back)


def _hex(colour: Color | None, default: str) -> str:
    return default if colour is None or colour.is_default else colour.get_truecolor().hex


def _text(text: str, x: float, y: float, fore: str, style: Style) -> list[str]:
    """Letters in one element with a place for each; what is drawn with shapes, beside it."""
    shapes, letters, places = [], "", []
    for char in text:
        if char in _SHAPES or "\u2801" <= char <= "\u28ff":
            shapes.append(_shape(char, x, y))
        elif char != " ":
            letters += char
            places.append(f"{x:.5g}")
        x += cell_len(char) * _WIDTH
    drawn = [f'<path fill="{fore}" d="{"".join(shapes)}"/>'] if shapes else []
    if letters:
        weight = ' font-weight="bold"' if style.bold else ""
        line = ' text-decoration="underline"' if style.underline else ""
        faint = ' opacity="0.6"' if style.dim else ""
        at = f'x="{" ".join(places)}" y="{y + 0.75 * _HEIGHT:g}"'
        drawn.append(f'<text {at} fill="{fore}"{weight}{line}{faint}>{escape(letters)}</text>')
    return drawn


def _box(x: float, y: float, width: float, height: float) -> str:
    return f"M{x:.5g} {y:.5g}h{width:.4g}v{height:.4g}h{-width:.4g}z"


def _shape(char: str, x: float, y: float) -> str:
    """One cell as an SVG path: a braille pattern, a block, or a line."""
    if char in _LOWER:
        part = (_LOWER.index(char) + 1) / 8 * _HEIGHT
        return _box(x, y + _HEIGHT - part, _WIDTH, part)
    if char in _EIGHTHS:
        return _box(x, y, (_EIGHTHS.index(char) + 1) / 8 * _WIDTH, _HEIGHT)
    if char == "─":
        return _box(x, y + _HEIGHT / 2, _WIDTH, 1)
    if char == "╌":
        return _box(x + 1, y + _HEIGHT / 2, 2.6, 1) + _box(x + 5.2, y + _HEIGHT / 2, 2.6, 1)
    if char == "│":
        return _box(x + _WIDTH / 2, y, 1, _HEIGHT)
    bits = ord(char) - 0x2800
    dots = [place for bit, place in enumerate(_DOT_PLACES) if bits >> bit & 1]
    return "".join(_box(x + 1.2 + column * 4.2, y + 1.2 + row * 4.5, 2.2, 2.2) for column, row in dots)
