"""Expert load: a strip a layer, with the hot and the dead experts named."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from bsmon.draw.cells import Row, clean, crop, fit, pad
from bsmon.draw.header import heading
from bsmon.draw.heat import legend, quantise, ratios, strip
from bsmon.draw.look import Look
from bsmon.draw.numbers import multiple
from bsmon.draw.trend import absent
from bsmon.model import Job, Moe, MoeLayer
from bsmon.units import percent, si

HOT = 2.0
"""Twice the uniform share: an expert worth naming."""

Steady = Callable[[str, int, float], int]
"""(layer, expert, ratio) -> level, with a memory of the level it had: see ``LevelMemory``."""


class LevelMemory:
    """The levels that were drawn, so that a cell does not flicker between two colours."""

    def __init__(self) -> None:
        self._levels: dict[tuple[str, int], int] = {}

    def __call__(self, layer: str, expert: int, ratio: float) -> int:
        level = quantise(ratio, self._levels.get((layer, expert)))
        self._levels[layer, expert] = level
        return level

    def forget(self) -> None:
        self._levels.clear()


def counts_of(layer: MoeLayer) -> list[int] | None:
    """What the router chose; where the library hides that, what was kept."""
    return layer.tokens_per_expert or layer.kept_per_expert


def unevenness(layer: MoeLayer) -> float:
    return layer.load_cv if layer.load_cv is not None else -1.0


def chosen(layers: Sequence[MoeLayer], room: int) -> list[MoeLayer]:
    """The most uneven layers that fit, in the order of the model."""
    worst = sorted(range(len(layers)), key=lambda index: -unevenness(layers[index]))[: max(0, room)]
    return [layers[index] for index in sorted(worst)]


def remark(layer: MoeLayer) -> str:
    """Hot and dead experts by number."""
    counts = counts_of(layer)
    if counts is None:
        return layer.reason or "no counts"
    loads = ratios(counts)
    parts = []
    hottest = max(range(len(loads)), key=loads.__getitem__, default=None)
    if hottest is not None and loads[hottest] >= HOT:
        parts.append(f"hot e{hottest} {multiple(loads[hottest])}")
    dead = layer.dead_experts or []
    if dead:
        parts.append(
            "dead " + " ".join(f"e{index}" for index in dead[:3]) + (f" +{len(dead) - 3}" if len(dead) > 3 else "")
        )
    return "  ".join(parts)


def labels(layers: Sequence[MoeLayer]) -> dict[str, str]:
    """Short names that tell layers apart: ``model.layers.3.mlp.gate`` -> ``L3``, or ``L3 mlp.gate`` beside others."""
    split = {layer.name: _split(clean(layer.name)) for layer in layers}
    alike = len({rest for _, rest in split.values()}) == 1
    return {
        name: f"L{number}" + ("" if alike or not rest else f" {rest}") if number else rest
        for name, (number, rest) in split.items()
    }


def _split(name: str) -> tuple[str, str]:
    """The first number in a dotted name, and what follows it; without a number, the whole name."""
    parts = name.split(".")
    place = next((index for index, part in enumerate(parts) if part.isdigit()), None)
    return ("", name) if place is None else (parts[place], ".".join(parts[place + 1 :]))


def layer_row(layer: MoeLayer, name: str, label: int, aside: int, width: int, look: Look, steady: Steady) -> Row:
    """Name, strip, variation, and what stands out, in the last ``aside`` cells."""
    row: Row = [(" " + fit(name, label - 1, ellipsis=look.glyphs.ellipsis) + " ", "dim")]
    counts = counts_of(layer)
    if counts is None:
        return [*row, (fit(clean(layer.reason or "no counts"), width - label - 1), "dim")]
    cv = f" cv {layer.load_cv:.2f}" if layer.load_cv is not None else " cv -"
    note = remark(layer)
    room = max(4, width - label - 1 - len(cv) - aside)
    levels = [steady(layer.name, index, ratio) for index, ratio in enumerate(ratios(counts))]
    cells = strip(levels, room, look)
    style = "warn" if note else "dim"
    return crop([*row, *cells, (cv, "dim"), (fit(f"  {note}", aside, ellipsis=look.glyphs.ellipsis), style)], width)


def _label_width(names: Iterable[str], most: int) -> int:
    return min(max(4, most), max((len(name) for name in names), default=0) + 1)


def balance(moe: Moe) -> Row:
    """The sum of all layers, for a heading."""
    if moe.load_cv is None:
        return []
    steps = max((layer.sampled_steps for layer in moe.layers), default=0)
    spread = f" max/mean {multiple(moe.max_over_mean)}"
    return [(f"cv {moe.load_cv:.2f}", ""), (spread, "dim"), (f" over {steps} steps", "dim")]


def experts(job: Job, width: int, height: int, look: Look, steady: Steady, focused: bool = False) -> list[Row]:
    """Strips for as many layers as fit, the most uneven ones first to stay, and the legend."""
    moe = job.moe
    layers = moe.layers if moe else []
    rows = [heading("expert load", balance(moe) if moe else [], width, look, focused)]
    if not layers:
        return [*rows, *absent(job.unavailable.get("moe", "no router was found"), width, look)][:height]
    shown = chosen(layers, height - 2)
    names = labels(layers)
    label = _label_width(names.values(), width // 5)
    aside = min(max((len(remark(layer)) + 2 for layer in shown if remark(layer)), default=0), (width - label) // 3)
    rows += [layer_row(layer, names[layer.name], label, aside, width, look, steady) for layer in shown]
    hidden = f"  the {len(shown)} most uneven of {len(layers)} layers" if len(shown) < len(layers) else ""
    return [*rows, crop([(" ", ""), *legend(look), (hidden, "dim")], width)][:height]


def layer_heading(width: int, label: int) -> Row:
    return pad(
        [
            (fit(" LAYER", label + 1), "column"),
            (_figures("DROP%", "EXPECT%", "CV", "MAX/MEAN", "DEAD", "TOKENS", "STEPS"), "column"),
        ],
        width,
    )


def _figures(*texts: str) -> str:
    return "".join(f"{text:>{width}}" for text, width in zip(texts, (7, 9, 7, 10, 6, 9, 7), strict=True))


_FIGURES_WIDTH = 7 + 9 + 7 + 10 + 6 + 9 + 7


def layers_table(job: Job, width: int, look: Look, steady: Steady) -> list[Row]:
    """Every router of the job: figures, and its strip where there is room."""
    layers = job.moe.layers if job.moe else []
    if not layers:
        return absent(job.unavailable.get("moe", "no router was found in this model"), width, look)
    names = labels(layers)
    label = max(6, _label_width(names.values(), 30))
    rows = [layer_heading(width, label)]
    for layer in layers:
        rows += _layer_lines(layer, names[layer.name], label, width, look, steady)
    return rows


def _layer_lines(layer: MoeLayer, name: str, label: int, width: int, look: Look, steady: Steady) -> list[Row]:
    figures = _figures(
        percent(layer.dropped_rate),
        percent(layer.expected_drop),
        f"{layer.load_cv:.2f}" if layer.load_cv is not None else "-",
        multiple(layer.max_over_mean),
        str(len(layer.dead_experts)) if layer.dead_experts is not None else "-",
        si(layer.assignments),
        str(layer.sampled_steps),
    )
    counts = counts_of(layer)
    beside = width - label - 1 - _FIGURES_WIDTH - 2
    row: Row = [(" " + fit(name, label, ellipsis=look.glyphs.ellipsis), ""), (figures, "")]
    if counts is None:
        return [crop([*row, ("  " + clean(layer.reason or layer.tag), "dim")], width)]
    levels = [steady(layer.name, index, ratio) for index, ratio in enumerate(ratios(counts))]
    note = remark(layer)
    if beside >= 16 + len(note):
        return [crop([*row, ("  ", ""), *strip(levels, beside - len(note) - 2, look), (f"  {note}", "warn")], width)]
    below: Row = [(" " * (label + 1), ""), *strip(levels, width - label - len(note) - 4, look), (f"  {note}", "warn")]
    return [crop(row, width), crop(below, width)]
