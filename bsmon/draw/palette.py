"""Colours by role, chosen by hand for each colour depth: a palette made for one depth turns to mush at another.

Note, warn and crit are sky, yellow and vermillion of Okabe & Ito (2008), which stay apart under the three common
colour-vision deficiencies. The page itself is uncoloured: the terminal's own foreground and background.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

Depth: TypeAlias = Literal["truecolor", "256", "16", "mono"]
DEPTHS: tuple[Depth, ...] = ("truecolor", "256", "16", "mono")
Colour: TypeAlias = "str | int | None"


class Ink(NamedTuple):
    """One style: colours are ``#rrggbb``, an index of the 256- or 16-colour table, or None for the terminal's own."""

    fore: Colour = None
    back: Colour = None
    bold: bool = False
    dim: bool = False
    reverse: bool = False
    underline: bool = False


HEAT_LEVELS = 9
"""From a quarter of the uniform share to four times it; the middle level is uniform."""

_ATTRIBUTES = {
    "": Ink(),
    "bold": Ink(bold=True),
    "title": Ink(bold=True),
    "key": Ink(bold=True),
    "column": Ink(dim=True),
    "focus": Ink(bold=True, reverse=True),
    "series": Ink(),
    "underline": Ink(underline=True),
}

_COLOURS: dict[Depth, dict[str, Colour]] = {
    "truecolor": {
        "note": "#56b4e9",
        "warn": "#f0e442",
        "crit": "#d55e00",
        "spark": "#6f8fae",
        "dim": "#868d99",
        "rule": "#4a505a",
        "data_wait": "#cc79a7",
        "forward": "#4f9fd0",
        "backward": "#2f6ea5",
        "optimizer": "#2f9e7e",
        "communication": "#d39a2d",
        "other": "#6b717c",
    },
    "256": {
        "note": 74,
        "warn": 221,
        "crit": 166,
        "spark": 67,
        "dim": 245,
        "rule": 239,
        "data_wait": 175,
        "forward": 74,
        "backward": 25,
        "optimizer": 36,
        "communication": 172,
        "other": 242,
    },
    "16": {
        "note": 14,
        "warn": 11,
        "crit": 9,
        "spark": 6,
        "dim": None,
        "rule": None,
        "data_wait": 5,
        "forward": 6,
        "backward": 4,
        "optimizer": 2,
        "communication": 3,
        "other": 7,
    },
    "mono": {},
}

_HEAT: dict[Depth, tuple[Colour, ...]] = {
    "truecolor": (
        "#00afff",
        "#0087d0",
        "#0a5f9e",
        "#2c4458",
        "#30343a",
        "#54452a",
        "#8a5f14",
        "#c98a1c",
        "#ffb02e",
    ),
    "256": (39, 32, 25, 238, 236, 238, 94, 172, 214),
    "16": (),
    "mono": (),
}

_SELECTED: dict[Depth, Ink] = {
    "truecolor": Ink(back="#2b313b", fore="#ffffff", bold=True),
    "256": Ink(back=236, fore=231, bold=True),
    "16": Ink(reverse=True),
    "mono": Ink(reverse=True),
}

_ROLES = tuple(_COLOURS["256"])
_BOLD_ROLES = frozenset(("warn", "crit"))
_FAINT_ROLES = frozenset(("dim", "rule"))


def _inks(depth: Depth) -> dict[str, Ink]:
    inks = dict(_ATTRIBUTES)
    for role in _ROLES:
        colour = _COLOURS[depth].get(role)
        inks[role] = Ink(colour, bold=role in _BOLD_ROLES, dim=colour is None and role in _FAINT_ROLES)
    inks["column"] = Ink(_COLOURS[depth].get("dim"), dim=_COLOURS[depth].get("dim") is None)
    inks["limit"] = inks["warn"]._replace(bold=False)
    inks["selected"] = _SELECTED[depth]
    for level in range(HEAT_LEVELS):
        inks[f"heat{level}"] = Ink(back=_HEAT[depth][level]) if _HEAT[depth] else Ink()
    return inks


PALETTES: dict[Depth, dict[str, Ink]] = {depth: _inks(depth) for depth in DEPTHS}


def ink(depth: Depth, style: str) -> Ink:
    """The ink of a style name. In ``a+b`` b fills in what a leaves open, so severity stays visible on a selection."""
    names = style.split("+")
    merged = PALETTES[depth][names[0]]
    for name in names[1:]:
        merged = _over(merged, PALETTES[depth][name])
    return merged


def _over(upper: Ink, lower: Ink) -> Ink:
    return Ink(
        fore=lower.fore if upper.fore is None else upper.fore,
        back=lower.back if upper.back is None else upper.back,
        bold=upper.bold or lower.bold,
        dim=upper.dim or lower.dim,
        reverse=upper.reverse or lower.reverse,
        underline=upper.underline or lower.underline,
    )
