"""The keys, all of which the help page lists, and those that the bottom line of a page names."""

from __future__ import annotations

from collections.abc import Iterable

from textual.binding import Binding

GLOBAL = [
    Binding("question_mark,h,f1", "page('help')", "help"),
    Binding("slash,f4", "filter", "filter"),
    Binding("enter", "open", "open; in a replay, go to an alert"),
    Binding("escape", "back", "back, clear the filter"),
    Binding("less_than_sign", "sort(-1)", "sort by column before"),
    Binding("greater_than_sign,f6", "sort(1)", "sort by next column"),
    Binding("r", "reverse", "reverse the order"),
    Binding("space,Z", "pause", "pause the view"),
    Binding("left", "wind(-30)", "replay: 30 s back"),
    Binding("right", "wind(30)", "replay: 30 s on"),
    Binding("shift+left", "wind(-600)", "replay: 10 min back"),
    Binding("shift+right", "wind(600)", "replay: 10 min on"),
    Binding("R", "record", "record, or end it"),
    Binding("z", "zoom", "zoom the panel"),
    Binding("left_curly_bracket", "window(-1)", "shorter time window"),
    Binding("right_curly_bracket", "window(1)", "longer time window"),
    Binding("left_square_bracket", "job(-1)", "previous job"),
    Binding("right_square_bracket", "job(1)", "next job"),
    Binding("up,k", "move(-1)", "up"),
    Binding("down,j", "move(1)", "down"),
    Binding("pageup", "leap(-1)", "a page up"),
    Binding("pagedown", "leap(1)", "a page down"),
    Binding("home", "move(-1000000)", "first"),
    Binding("end", "move(1000000)", "last"),
    Binding("1", "page('fleet')", "fleet"),
    Binding("2", "page('job')", "job"),
    Binding("3", "page('moe')", "experts"),
    Binding("4", "page('gpus')", "GPUs"),
    Binding("5,A", "page('alerts')", "alerts"),
    Binding("tab", "app.focus_next", "next panel"),
    Binding("shift+tab", "app.focus_previous", "previous panel"),
    Binding("plus,equals_sign", "rate(1)", "look more often"),
    Binding("minus", "rate(-1)", "look less often"),
    Binding("a", "acknowledge", "acknowledge an alert"),
    Binding("y", "copy", "copy panel or page"),
    Binding("e", "export", "export JSON, SVG, text"),
    Binding("m", "mouse", "mouse on or off"),
    Binding("t", "depth", "colour depth"),
    Binding("g", "glyphs", "glyphs"),
    Binding("colon,ctrl+p", "command_palette", "command palette"),
    Binding("ctrl+l", "redraw", "draw everything again"),
    Binding("ctrl+z", "suspend_process", "to the shell, fg is back"),
    Binding("q,f10,ctrl+c,ctrl+q", "quit", "quit"),
]


MOVEMENT = ("move", "leap", "wind", "app.focus", "command_palette", "open", "back")
"""Actions that make no sense from the command palette."""

_HELP, _QUIT = ("?", "help"), ("q", "quit")
HINTS: dict[str, list[tuple[str, str]]] = {
    "fleet": [
        _HELP,
        ("/", "filter"),
        ("< >", "sort"),
        ("enter", "open"),
        ("space", "pause"),
        ("z", "zoom"),
        ("+ -", "rate"),
        _QUIT,
    ],
    "job": [_HELP, ("esc", "back"), ("[ ]", "job"), ("{ }", "window"), ("tab z", "zoom"), ("3", "experts"), _QUIT],
    "moe": [_HELP, ("esc", "back"), ("[ ]", "job"), ("up down", "scroll"), _QUIT],
    "gpus": [_HELP, ("esc", "back"), ("up down", "scroll"), _QUIT],
    "alerts": [_HELP, ("esc", "back"), ("up down", "choose"), ("a", "acknowledge"), _QUIT],
    "help": [("esc", "back"), ("up down", "scroll"), _QUIT],
}


_NAMES = {
    "question_mark": "?",
    "slash": "/",
    "escape": "esc",
    "less_than_sign": "<",
    "greater_than_sign": ">",
    "left_curly_bracket": "{",
    "right_curly_bracket": "}",
    "left_square_bracket": "[",
    "right_square_bracket": "]",
    "pageup": "pgup",
    "pagedown": "pgdn",
    "plus": "+",
    "equals_sign": "=",
    "minus": "-",
    "colon": ":",
}


def key_name(key: str) -> str:
    """A key as people write it: f10 -> F10, ctrl+c -> ^c."""
    if key in _NAMES:
        return _NAMES[key]
    if key.startswith("ctrl+"):
        return "^" + key.removeprefix("ctrl+")
    return key.upper() if key[0] == "f" and key[1:].isdigit() else key


def listed(bindings: Iterable[Binding]) -> list[tuple[str, str]]:
    """All keys of all bindings, for the help page."""
    return [
        (" ".join(key_name(key.strip()) for key in binding.key.split(",")), binding.description) for binding in bindings
    ]
