"""What each key does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from feed import fleet
from seen import Opened, Seen

from bsmon.draw.help import LEGEND
from bsmon.model import Regime
from bsmon.tui import keys


def chosen(seen: Seen) -> str:
    """The name in the selected row."""
    return next(line for line in seen.lines if line.startswith(" > ")).split()[1]


def order(seen: Seen) -> list[str]:
    names = {job.name[:10] for job in seen.feed.jobs}
    first = [line[3:].split()[0][:10] for line in seen.lines[3:12] if line[3:].split()]
    return [name for name in first if name in names]


class TestSelection:
    async def test_arrows_and_vi_keys(self, opened: Opened) -> None:
        async with opened() as seen:
            first = chosen(seen)
            await seen.press("down")
            second = chosen(seen)
            assert second != first
            await seen.press("k")
            assert chosen(seen) == first
            await seen.press("j", "up")
            assert chosen(seen) == first

    async def test_home_end_and_pages(self, opened: Opened) -> None:
        async with opened() as seen:
            first = chosen(seen)
            await seen.press("end")
            assert chosen(seen) == "moe-dbg-top1"
            await seen.press("home")
            assert chosen(seen) == first
            await seen.press("pagedown")
            assert chosen(seen) == "moe-dbg-top1"
            await seen.press("pageup")
            assert chosen(seen) == first

    async def test_the_selection_sticks_to_the_job_when_rows_change_places(self, opened: Opened) -> None:
        async with opened() as seen:
            await seen.press("down", "down")
            name = chosen(seen)
            place = order(seen).index(name)
            for job in seen.feed.jobs:
                if job.name != name:
                    job.regime = Regime(label="input_bound", severity="crit")
            seen.feed.alerts.clear()
            seen.feed.advance()
            await seen.settle()
            assert chosen(seen) == name
            assert order(seen).index(name) != place

    async def test_enter_opens_and_escape_goes_back(self, opened: Opened) -> None:
        async with opened() as seen:
            await seen.press("down", "enter")
            assert "JOB" not in seen.lines[2]
            assert "gpt2-xl-ref" in seen.lines[2]
            await seen.press("escape")
            assert "JOB" in seen.lines[2]


class TestOrder:
    async def test_the_worst_comes_first_until_another_column_is_asked_for(self, opened: Opened) -> None:
        async with opened() as seen:
            assert order(seen)[0] == "moe-30b-sw"
            await seen.press("less_than_sign")
            seen.app.board.choose(sort="name")
            await seen.settle()
            assert order(seen) == sorted(order(seen))
            await seen.press("r")
            assert order(seen) == sorted(order(seen), reverse=True)

    async def test_sorting_goes_round(self, opened: Opened) -> None:
        async with opened() as seen:
            assert seen.app.board.choices.sort == "verdict"
            await seen.press("greater_than_sign")
            assert seen.app.board.choices.sort != "verdict"
            await seen.press("less_than_sign")
            assert seen.app.board.choices.sort == "verdict"


class TestFilter:
    @pytest.mark.parametrize(
        ("text", "left"),
        [
            ("moe", {"moe-30b-sw", "moe-7b-a1b", "moe-dbg-to"}),
            ("host:node2", {"moe-30b-sw", "t5-base-ct"}),
            ("verdict:input", {"moe-30b-sw"}),
            (">warn", {"moe-30b-sw", "gpt2-xl-re", "moe-7b-a1b"}),
            (">crit", {"moe-30b-sw"}),
            ("moe >warn", {"moe-30b-sw", "moe-7b-a1b"}),
        ],
    )
    async def test_filter_language(self, opened: Opened, text: str, left: set[str]) -> None:
        async with opened() as seen:
            await seen.press("slash", *[{":": "colon", ">": "greater_than_sign", " ": "space"}.get(c, c) for c in text])
            assert set(order(seen)) == left
            assert f"{len(left)} job" in seen.lines[0]
            assert "of 8" in seen.lines[0]

    async def test_enter_keeps_the_filter_and_escape_clears_it(self, opened: Opened) -> None:
        async with opened() as seen:
            await seen.press("slash", "v", "i", "t", "enter")
            assert order(seen) == ["vit-l-ema"]
            await seen.press("j")
            assert order(seen) == ["vit-l-ema"]
            await seen.press("escape")
            assert len(order(seen)) == 8

    async def test_letters_typed_into_the_filter_are_no_commands(self, opened: Opened) -> None:
        async with opened() as seen:
            await seen.press("slash", "q", "z", "t")
            assert seen.app.is_running
            assert "none of 8 jobs matches qzt" in seen.text
            await seen.press("escape")
            assert len(order(seen)) == 8


class TestTime:
    async def test_pause_stands_still_while_recording_goes_on(self, opened: Opened) -> None:
        async with opened() as seen:
            await seen.press("space")
            seen.feed.jobs[1] = fleet()[1]
            seen.feed.jobs[1].step = 99_999
            seen.feed.advance(132)
            text = await seen.settle()
            assert "PAUSED, 132 s behind, still recording" in text
            assert "99,999" not in text
            text = await seen.press("Z")
            assert "99,999" in text
            assert "LIVE" in text

    async def test_time_windows(self, opened: Opened) -> None:
        async with opened() as seen:
            assert "-10m" in seen.text
            assert "-30m" in await seen.press("right_curly_bracket")
            text = await seen.press("left_curly_bracket", "left_curly_bracket")
            assert "-5m" in text

    async def test_rates(self, opened: Opened) -> None:
        async with opened() as seen:
            assert " 4 Hz" in seen.lines[0]
            assert " 5 Hz" in (await seen.press("plus")).splitlines()[0]
            assert " 2 Hz" in (await seen.press("minus", "minus")).splitlines()[0]

    async def test_it_draws_less_where_nobody_looks(self, opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
        async with opened() as seen:
            drawn: list[bool] = []
            monkeypatch.setattr(seen.app, "look_again", lambda at_once=True: drawn.append(at_once))

            def beats() -> int:
                drawn.clear()
                for _ in range(10):
                    seen.feed.advance(0.1)
                    seen.app.beat()
                return len(drawn)

            assert beats() == 10
            seen.app.app_focus = False
            assert beats() <= 2
            assert seen.feed.ticks >= 20  # the monitor goes on all the same


class TestPanels:
    async def test_tab_chooses_a_panel_and_zoom_shows_it_alone(self, opened: Opened) -> None:
        async with opened(size=(120, 36)) as seen:
            await seen.press("2", "tab", "tab")
            focused = seen.app.page.focused
            assert type(focused).__name__ == "NoiseScale"
            text = await seen.press("z")
            assert "noise scale" in text
            assert "step time" not in text
            assert "step time" in await seen.press("z")
            await seen.press("z")
            assert "step time" in await seen.press("escape")

    async def test_acknowledging_keeps_the_alert_in_the_list(self, opened: Opened) -> None:
        async with opened(size=(120, 36)) as seen:
            text = await seen.press("A")
            assert "raised" in text
            text = await seen.press("a")
            assert "acknowledged" in text
            assert "no alert stands" in text

    async def test_copy_gives_the_page_or_the_focused_panel(self, opened: Opened) -> None:
        async with opened(size=(120, 36)) as seen:
            await seen.press("y")
            assert "moe-30b-sw3" in seen.app.clipboard
            await seen.press("2", "tab", "y")
            assert seen.app.clipboard.startswith(" tokens/s")
            assert "gpt2" not in seen.app.clipboard

    async def test_export_writes_three_files(
        self, opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        async with opened() as seen:
            await seen.press("e")
        written = {path.suffix: path.read_text() for path in tmp_path.iterdir()}
        assert set(written) == {".json", ".svg", ".txt"}
        assert json.loads(written[".json"])["jobs"][1]["name"] == "moe-30b-sw3"
        assert "moe-30b-sw3" in written[".txt"]
        assert written[".svg"].startswith("<svg")

    async def test_export_where_nothing_can_be_written_says_so(
        self, opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        gone = tmp_path / "gone"
        gone.mkdir()
        monkeypatch.chdir(gone)
        gone.rmdir()
        monkeypatch.setattr(Path, "cwd", lambda: gone)
        async with opened() as seen:
            await seen.press("e")
            await seen.pilot.pause(0.2)
            assert "nothing was written" in seen.text


class TestLook:
    async def test_colour_depths_go_round(self, opened: Opened) -> None:
        async with opened(depth="truecolor") as seen:
            depths = []
            for _ in range(4):
                await seen.press("t")
                depths.append(seen.app.depth)
            assert depths == ["256", "16", "mono", "truecolor"]

    async def test_glyphs_go_round(self, opened: Opened) -> None:
        async with opened() as seen:
            await seen.press("g", "g")
            assert seen.app.board.choices.look.glyphs.name == "ascii"
            lines = [line for line in seen.lines if "glyphs:" not in line]
            assert "\n".join(lines).isascii()

    async def test_the_palette_opens(self, opened: Opened) -> None:
        async with opened() as seen:
            await seen.press("colon")
            assert type(seen.app.screen).__name__ == "CommandPalette"
            await seen.press("escape")
            assert seen.app.screen is seen.app.page


@pytest.mark.parametrize("key", ["q", "f10", "ctrl+c"])
async def test_ways_to_leave(opened: Opened, key: str) -> None:
    async with opened() as seen:
        await seen.pilot.press(key)
        await seen.pilot.pause()
        assert seen.app.return_value == 0


async def test_help_lists_every_binding(opened: Opened) -> None:
    async with opened(size=(120, 80)) as seen:
        text = await seen.press("h")
        for binding in keys.GLOBAL:
            assert binding.description in text


async def test_help_is_whole_where_it_is_narrow(opened: Opened) -> None:
    async with opened(size=(80, 100)) as seen:
        words = " ".join((await seen.press("h")).split())
        for _, _, meaning in LEGEND:
            assert meaning in words


def test_hints_name_only_keys_that_are_bound() -> None:
    bound = {name for shown, _ in keys.listed(keys.GLOBAL) for name in shown.split()}
    for page, hints in keys.HINTS.items():
        for shown, _ in hints:
            assert set(shown.split()) <= bound, (page, shown)
