"""Severities can be told apart by colour at each depth, also with the three common colour-vision deficiencies."""

from __future__ import annotations

import math
from itertools import combinations

import pytest

from bsmon.draw.palette import DEPTHS, PALETTES, Colour, ink

# Viénot, Brettel & Mollon 1999 (protan, deutan) and Brettel 1997 in one plane (tritan), linear RGB
DEFICIENCIES = {
    "normal": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "deuteranopia": ((0.29275, 0.70725, 0.0), (0.29275, 0.70725, 0.0), (-0.02234, 0.02234, 1.0)),
    "protanopia": ((0.10889, 0.89111, 0.0), (0.10889, 0.89111, 0.0), (0.00447, -0.00447, 1.0)),
    "tritanopia": ((1.01277, 0.13548, -0.14826), (-0.01243, 0.86812, 0.14431), (0.07589, 0.80500, 0.11911)),
}
CUBE = (0, 95, 135, 175, 215, 255)
ANSI = {9: (255, 0, 0), 11: (255, 255, 0), 14: (0, 255, 255), 7: (192, 192, 192)}


def rgb(colour: Colour) -> tuple[float, float, float]:
    if isinstance(colour, str):
        return tuple(int(colour[i : i + 2], 16) for i in (1, 3, 5))  # type: ignore[return-value]
    assert isinstance(colour, int)
    if colour < 16:
        return ANSI[colour]
    if colour >= 232:
        return (8 + 10 * (colour - 232),) * 3  # type: ignore[return-value]
    place = colour - 16
    return CUBE[place // 36], CUBE[place // 6 % 6], CUBE[place % 6]


def linear(value: float) -> float:
    share = value / 255
    return share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4


def lab(colour: tuple[float, ...], deficiency: str) -> tuple[float, float, float]:
    r, g, b = (linear(value) for value in colour)
    r, g, b = (max(0.0, sum(f * v for f, v in zip(row, (r, g, b), strict=True))) for row in DEFICIENCIES[deficiency])
    x = (0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.95047
    y = 0.2126 * r + 0.7152 * g + 0.0722 * b
    z = (0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.08883
    fx, fy, fz = (t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116 for t in (x, y, z))
    return 116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)


@pytest.mark.parametrize("deficiency", DEFICIENCIES)
@pytest.mark.parametrize("depth", ["truecolor", "256", "16"])
def test_severities_are_apart(depth: str, deficiency: str) -> None:
    colours = {name: rgb(PALETTES[depth][name].fore) for name in ("note", "warn", "crit")}  # type: ignore[index]
    for one, other in combinations(colours, 2):
        distance = math.dist(lab(colours[one], deficiency), lab(colours[other], deficiency))
        assert distance >= 20, (one, other, distance)


def test_the_hand_made_indices() -> None:
    assert [PALETTES["256"][name].fore for name in ("note", "warn", "crit")] == [74, 221, 166]
    assert [PALETTES["16"][name].fore for name in ("note", "warn", "crit")] == [14, 11, 9]
    assert [PALETTES["256"][f"heat{n}"].back for n in range(9)] == [39, 32, 25, 238, 236, 238, 94, 172, 214]


def test_every_role_exists_at_every_depth_and_mono_has_no_colour() -> None:
    assert len({frozenset(PALETTES[depth]) for depth in DEPTHS}) == 1
    assert all(ink.fore is None and ink.back is None for ink in PALETTES["mono"].values())


def test_a_palette_never_asks_for_more_than_its_depth() -> None:
    assert all(isinstance(c, int) and c < 16 for i in PALETTES["16"].values() for c in i[:2] if c is not None)
    assert all(isinstance(c, int) for i in PALETTES["256"].values() for c in i[:2] if c is not None)


def test_severity_stays_visible_on_the_selection() -> None:
    merged = ink("256", "crit+selected")
    assert merged.fore == 166
    assert merged.back == 236
