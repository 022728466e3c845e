"""The parts that panels are made of."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.cells import cell_len

from bsmon.draw import axis, bars, cells, chart, heat, numbers, spark, table
from bsmon.draw.look import GLYPHS, Look

BRAILLE, BLOCK, ASCII = GLYPHS["braille"], GLYPHS["block"], GLYPHS["ascii"]
FINITE = st.floats(allow_nan=False, allow_infinity=False, min_value=-1e18, max_value=1e18)
VALUES = st.lists(st.one_of(st.none(), FINITE, st.just(math.nan), st.just(math.inf)), max_size=60)


class TestCells:
    @pytest.mark.parametrize(
        ("hostile", "shown"),
        [
            ("plain-name_1.0", "plain-name_1.0"),
            ("[red]x[/red]", "[red]x[/red]"),
            ("\x1b[31mred\x1b[0m", "?[31mred?[0m"),
            ("a\nb\tc\x00", "a?b?c?"),
            ("\u202eevil", "?evil"),
            ("שלום", "????"),
            ("e\u0301", "e?"),
            ("\U0001f600ok", "?ok"),
            ("\u200b", "?"),
            ("模型", "模型"),
        ],
    )
    def test_hostile_text_is_made_harmless(self, hostile: str, shown: str) -> None:
        assert cells.clean(hostile) == shown

    @given(st.text(max_size=40), st.integers(0, 30))
    def test_fit_is_exact_for_any_text(self, text: str, width: int) -> None:
        for align in ("left", "right", "center"):
            assert cell_len(cells.fit(cells.clean(text), width, align)) == width

    @given(st.text(max_size=30), st.text(max_size=30), st.integers(0, 40))
    def test_spread_and_pad_are_exact(self, left: str, right: str, width: int) -> None:
        row = cells.spread([(cells.clean(left), "")], [(cells.clean(right), "")], width)
        assert cells.width_of(row) == width
        assert cells.width_of(cells.pad(row, 17)) == 17

    @given(st.text(max_size=120), st.integers(1, 30), st.integers(1, 4))
    def test_wrapped_lines_fit(self, text: str, width: int, limit: int) -> None:
        lines = cells.wrap(cells.clean(text), width, limit)
        assert len(lines) <= limit
        assert all(cell_len(line) <= width for line in lines)

    def test_what_is_cut_says_so(self) -> None:
        assert cells.wrap("one two three four", 9, 1) == ["one two …"]
        assert cells.fit("abcdef", 4, ellipsis="~") == "abc~"


class TestNumbers:
    @pytest.mark.parametrize(
        ("value", "text"),
        [
            (0, "0"),
            (2.3171, "2.32"),
            (0.01234, "0.0123"),
            (93_840.0, "93.8k"),
            (1e-12, "1e-12"),
            (1e18, "1e+18"),
            (-0.5, "-0.5"),
            (None, "-"),
            (math.nan, "-"),
            (math.inf, "-"),
        ],
    )
    def test_compact(self, value: float | None, text: str) -> None:
        assert numbers.compact(value) == text

    @given(st.floats(min_value=-1e18, max_value=1e18))
    @example(-0.0078125)
    def test_compact_is_narrow(self, value: float) -> None:
        assert len(numbers.compact(value)) <= 7

    def test_learning_rates_and_spans(self) -> None:
        assert numbers.rate(3e-4) == "3e-4"
        assert numbers.rate(1.25e-5) == "1.3e-5"
        assert [numbers.span(s) for s in (30, 600, 3600, 5400, 86400)] == ["30s", "10m", "1h", "1.5h", "1d"]
        assert numbers.multiple(2.24) == "2.2x"
        assert numbers.multiple(1e6) == "1.0Mx"


class TestAxis:
    @given(FINITE, FINITE, st.booleans())
    def test_scale_holds_the_data(self, one: float, other: float, zero: bool) -> None:
        low, high = axis.nice_scale(min(one, other), max(one, other), zero)
        assert low <= min(one, other)
        assert high >= max(one, other)
        assert high > low

    def test_scale_keeps_still_until_data_leaves_it_or_uses_under_half(self) -> None:
        first = axis.hold(None, [0.0, 95.0])
        assert axis.hold(first, [10.0, 80.0]) == first
        assert axis.hold(first, [10.0, 130.0]) != first
        assert axis.hold(first, [40.0, 60.0]) != first

    def test_no_data_keeps_the_scale(self) -> None:
        assert axis.hold((1.0, 2.0), []) == (1.0, 2.0)
        assert axis.hold(None, []) == (0.0, 1.0)

    @pytest.mark.parametrize(
        ("scale", "names"),
        [
            ((0, 300e3), ["0", "100k", "200k", "300k"]),
            ((0, 0.04), ["0", "0.01", "0.02", "0.03", "0.04"]),
            ((0.8, 1.0), ["0.80", "0.85", "0.90", "0.95", "1.00"]),
            ((2.25, 2.5), ["2.3", "2.4", "2.5"]),
        ],
    )
    def test_ticks_are_round_and_labelled_alike(self, scale: tuple[float, float], names: list[str]) -> None:
        assert axis.labels(axis.ticks(scale, 4)) == names

    def test_percent_labels(self) -> None:
        assert axis.labels([0, 0.02, 0.04], percent=True) == ["0", "2%", "4%"]


class TestChart:
    def test_a_rising_line_in_braille(self) -> None:
        assert chart.braille([0, 1, 2, 3], 2, 1, (0, 4)) == ["⡠⠊"]

    def test_a_gap_stays_a_gap_in_every_glyph_set(self) -> None:
        values = [5.0] * 10 + [None] * 10 + [5.0] * 10
        for glyphs in GLYPHS.values():
            rows = chart.plot(values, 15, 4, (0, 10), glyphs)
            assert all(row[5:10].strip() == "" for row in rows), glyphs.name
            assert any(row[:5].strip() for row in rows)
            assert any(row[10:].strip() for row in rows)

    def test_the_line_is_not_joined_over_a_gap(self) -> None:
        rows = chart.braille([0.0, None, 9.9], 2, 4, (0, 10))
        assert "".join(rows).replace(" ", "") == "⠈⣀"

    def test_few_values_become_stairs_without_gaps(self) -> None:
        assert chart.columns_of([1.0, 2.0], 6) == [1.0, 1.0, 1.0, 2.0, 2.0, 2.0]

    def test_many_values_take_the_mean_of_what_is_known(self) -> None:
        assert chart.columns_of([1.0, 3.0, None, 5.0, None, None], 3) == [2.0, 5.0, None]

    @given(VALUES, st.integers(1, 90), st.integers(1, 20), st.sampled_from(list(GLYPHS.values())))
    def test_any_values_at_any_size_give_exact_rows(self, values, width, height, glyphs) -> None:
        known = [value for value in values if value is not None and math.isfinite(value)]
        scale = axis.hold(None, known)
        limits = [chart.Limit(sum(scale) / 2, "limit")]
        rows = chart.chart(values, width, height, scale, glyphs, limits, ends=("-10m", "now"))
        assert len(rows) == height
        assert all(cells.width_of(row) == width for row in rows)

    def test_ascii_charts_are_ascii(self) -> None:
        rows = chart.chart([1, 5, None, 2], 40, 8, (0, 6), ASCII, [chart.Limit(3, "limit")], ends=("-10m", "now"))
        assert cells.plain(rows).isascii()

    def test_a_limit_is_dashed_named_and_behind_the_line(self) -> None:
        rows = chart.chart([1.0] * 30 + [9.0] * 30, 40, 9, (0, 10), BRAILLE, [chart.Limit(9.0, "limit")])
        row = next(row for row in rows if "╌" in cells.plain([row]))
        assert " limit " in cells.plain([row])
        assert any("limit" in text for text, style in row if style == "limit")


class TestSparkAndBars:
    def test_a_steady_series_stands_at_two_thirds_and_a_fall_shows(self) -> None:
        assert spark.spark([5.0] * 4, 4, BRAILLE) == "▅▅▅▅"
        assert spark.spark([240.0, 240.0, 139.0, 139.0], 4, BRAILLE) == "▇▇▄▄"

    def test_gaps_zero_and_nothing(self) -> None:
        assert spark.spark([1.0, None, 1.0], 3, BRAILLE)[1] == " "
        assert spark.spark([0.0, 0.0], 2, BRAILLE) == "▁▁"
        assert spark.spark([], 3, BRAILLE) == "   "
        assert spark.spark([math.nan, math.inf], 2, BRAILLE) == "  "

    def test_bar_in_eighths(self) -> None:
        assert bars.bar(0.5, 4, BRAILLE) == "██  "
        assert bars.bar(0.53125, 4, BRAILLE) == "██▏ "
        assert bars.bar(2.0, 3, ASCII) == "###"
        assert bars.bar(None, 3, BRAILLE) == "   "

    @given(st.lists(st.floats(0, 1), min_size=1, max_size=8), st.integers(1, 60))
    def test_parts_of_a_whole_fill_the_bar(self, shares: list[float], width: int) -> None:
        whole = sum(shares)
        if whole <= 0:
            return
        parts = [share / whole for share in shares]
        row = bars.stacked([("x", part, "other") for part in parts], width, BRAILLE)
        assert cells.width_of(row) == width
        assert all(start + len(bar) <= width for start, bar in bars.waterfall(parts, width, BRAILLE))

    def test_waterfall_begins_where_the_one_above_ends(self) -> None:
        assert bars.waterfall([0.5, 0.25, 0.25], 8, ASCII) == [(0, "####"), (4, "##"), (6, "##")]


class TestHeat:
    def test_levels_are_half_doublings_around_uniform(self) -> None:
        assert [heat.quantise(ratio) for ratio in (0, 0.25, 0.5, 1, 2, 4, 100)] == [0, 0, 2, 4, 6, 8, 8]

    def test_a_cell_leaves_its_level_only_when_clearly_past_the_border(self) -> None:
        past = 2 ** ((0.5 + 0.2) / 2)  # 0.2 of a level past the border between levels 4 and 5
        assert heat.quantise(past) == 5
        assert heat.quantise(past, previous=4) == 4
        assert heat.quantise(2 ** (0.9 / 2), previous=4) == 5

    def test_crowded_strips_keep_what_stands_out(self) -> None:
        levels = [4] * 64
        levels[17] = 8
        row = heat.strip(levels, 16, Look())
        assert "heat8" in {style for _, style in row}
        assert cells.width_of(row) == 16

    def test_without_colours_a_ramp_tells_levels_apart(self) -> None:
        row = heat.strip([0, 4, 8], 3, Look(ASCII, colours=False))
        text = cells.plain([row])
        assert len(set(text + " ")) == 3
        assert text.isascii()


class TestTable:
    COLUMNS = (
        table.Column("a", "A", 5, "left", 0, 9),
        table.Column("b", "B", 5, rank=2),
        table.Column("c", "C", 5, rank=1),
    )

    def test_the_least_important_column_goes_first(self) -> None:
        assert [column.key for column, _ in table.layout(self.COLUMNS, 19)] == ["a", "b", "c"]
        assert [column.key for column, _ in table.layout(self.COLUMNS, 18)] == ["a", "c"]
        assert [column.key for column, _ in table.layout(self.COLUMNS, 6)] == ["a"]

    def test_flexible_columns_take_the_rest(self) -> None:
        assert {column.key: width for column, width in table.layout(self.COLUMNS, 40)} == {"a": 9, "b": 5, "c": 5}

    def test_the_sorted_title_is_underlined(self) -> None:
        row = table.heading(table.layout(self.COLUMNS, 40), "b")
        assert [text for text, style in row if "underline" in style] == ["B"]
