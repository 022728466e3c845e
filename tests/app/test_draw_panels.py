"""Panels: what they say, that they fit any width, and that hostile or missing values break nothing."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[1] / "tui"))

from feed import START, drop_alert, fleet, gpu, job, layer

from bsmon.draw import alerts, empty, experts, facts, gpus, header, help, marks, noise, phases, verdict
from bsmon.draw import fleet as fleet_draw
from bsmon.draw.cells import Row, plain, width_of
from bsmon.draw.look import GLYPHS, Look
from bsmon.draw.palette import PALETTES
from bsmon.draw.table import layout
from bsmon.model import Batch, Gpu, Job, MemoryView, Moe, MoeLayer, Noise, Overhead, Phases, Regime, StepTime

LOOK = Look()
PLAIN = Look(GLYPHS["ascii"], colours=False)
HOSTILE = "[bold]x[/] \x1b[31mred\x07 \u202eשלום \U0001f600 " + "y" * 500
NUMBERS = st.one_of(st.none(), st.sampled_from([math.nan, math.inf, -math.inf, 0.0, 1e-12, 1e18, 2.317, -1.0]))
COUNTS = st.one_of(st.none(), st.integers(0, 10**18))


def rows_of(one: Job, width: int, height: int, look: Look) -> list[list[Row]]:
    """Everything that is drawn of a job."""
    state = marks.standing(one, [drop_alert()])
    memory = experts.LevelMemory()
    placed = layout(fleet_draw.columns_for([one]), max(1, width - 4))
    return [
        [fleet_draw.job_row(one, state, placed, width, look, [1.0, None, 2.0], True)],
        verdict.brief(one, state, START, width, look),
        verdict.full(one, state, START, width, height, look),
        phases.phases(one, width, height, look),
        experts.experts(one, width, height, look, memory),
        experts.layers_table(one, width, look, memory),
        gpus.gpus(one, None, width, height, look),
        facts.facts(one, 3600.0, width, height, look),
        [header.heading("noise scale", noise.value(one), width, look)],
        [header.header([one], [state], 3, 4.0, 132.0, START, width)],
        [header.one_line([one], [state], width)],
        [header.alert_line(drop_alert(), 2, one.name, width, look)],
        alerts.table([drop_alert()], {"id-moe-7b-a1b": one.name}, 0, width, look),
    ]


@st.composite
def odd_jobs(draw: Callable[..., object]) -> Job:
    number = lambda: draw(NUMBERS)  # noqa: E731
    count = lambda: draw(COUNTS)  # noqa: E731
    odd_layer = MoeLayer(
        name=HOSTILE,
        router="top2",
        experts=8,
        load_cv=number(),
        dropped_rate=number(),
        max_over_mean=number(),
        assignments=count(),
        tokens_per_expert=draw(st.one_of(st.none(), st.lists(st.integers(0, 10**15), min_size=1, max_size=300))),
        dead_experts=draw(st.one_of(st.none(), st.just(list(range(9))))),
        reason=HOSTILE,
    )
    return job(
        HOSTILE,
        host=HOSTILE,
        step=count(),
        loss=number(),
        grad_norm=number(),
        learning_rate=number(),
        tokens_per_s=number(),
        age_s=number(),
        eta_s=number(),
        world_size=draw(st.sampled_from([1, 64])),
        step_time_s=StepTime(number(), number()),
        phases_s=Phases(number(), number(), None, number(), number(), number()),
        noise=Noise(state="number", phi=number(), phi_low=number(), phi_high=number(), b_noise_sequences=number()),
        batch=Batch(count(), count(), count(), count(), count(), 1024, number()),
        memory=MemoryView(allocated=count(), peak=count(), device_total=count()),
        overhead=Overhead(number(), number(), number()),
        moe=draw(st.sampled_from([None, Moe(), Moe([odd_layer, layer(1)], number(), number(), number())])),
        gpus=[Gpu("u", 0, HOSTILE, number(), count(), count(), number(), number(), number(), number(), [HOSTILE])],
        regime=Regime(label=HOSTILE, severity="crit", evidence=[HOSTILE], advice=[HOSTILE], missing=[HOSTILE]),
        user={HOSTILE: 1.0},
        unavailable={"batch": HOSTILE},
        state=draw(st.sampled_from(["starting", "pending", "live", "stale", "lost", "finished"])),
    )


@settings(max_examples=60, deadline=None)
@given(odd_jobs(), st.integers(20, 200), st.integers(1, 40), st.sampled_from([LOOK, PLAIN]))
def test_no_job_breaks_or_overflows_a_panel(one: Job, width: int, height: int, look: Look) -> None:
    for panel in rows_of(one, width, height, look):
        for row in panel:
            text = plain([row])
            assert width_of(row) <= width, text
            assert "\x1b" not in text
            assert "\u202e" not in text
            for _, style in row:
                assert all(name in PALETTES["256"] for name in style.split("+")), style


def test_panels_keep_to_their_height() -> None:
    for one in fleet():
        for height in range(1, 12):
            assert len(phases.phases(one, 60, height, LOOK)) <= height
            assert len(experts.experts(one, 60, height, LOOK, experts.LevelMemory())) <= height
            assert len(facts.facts(one, 1.0, 60, height, LOOK)) <= height
            assert len(verdict.full(one, marks.standing(one), START, 60, height, LOOK)) <= height


def test_ascii_means_ascii() -> None:
    for one in fleet():
        for panel in rows_of(one, 100, 20, PLAIN):
            assert plain(panel).isascii(), plain(panel)


class TestStanding:
    @pytest.mark.parametrize(
        ("changes", "mark", "word"),
        [
            ({"state": "lost"}, "?", "lost"),
            ({"state": "stale"}, "?", "stale"),
            ({"state": "finished", "exit_code": 0}, ".", "finished"),
            ({"state": "finished", "exit_code": 137}, "X", "exit 137"),
            ({"state": "starting"}, " ", "starting"),
            ({"regime": Regime(label="input_bound", severity="crit")}, "X", "input-bound"),
            ({"regime": Regime(label="compute_bound")}, " ", "compute-bound"),
            ({"regime": Regime()}, " ", "measuring"),
        ],
    )
    def test_mark_and_word_tell_without_colour(self, changes: dict[str, object], mark: str, word: str) -> None:
        state = marks.standing(job("a", **changes))
        assert (state.mark, state.word) == (mark, word)

    def test_an_old_failure_makes_room_for_what_still_trains(self) -> None:
        fresh, old = (
            job("a", state="finished", exit_code=1, age_s=60.0),
            job("b", state="finished", exit_code=1, age_s=6e3),
        )
        warned = job("c", regime=Regime(label="unknown", severity="warn"))
        assert marks.standing(fresh).order < marks.standing(warned).order < marks.standing(old).order
        assert marks.standing(old).order < marks.standing(job("healthy")).order

    def test_a_worse_alert_takes_the_place_of_the_verdict(self) -> None:
        one = job("moe-7b-a1b")
        assert marks.standing(one, [drop_alert()]).word == "drop-rate"
        worse = job("moe-7b-a1b", regime=Regime(label="input_bound", severity="crit"))
        assert marks.standing(worse, [drop_alert()]).word == "input-bound"
        dealt_with = drop_alert()
        dealt_with.state = "acknowledged"
        assert marks.standing(one, [dealt_with]).word == "compute-bound"

    def test_the_alert_line_takes_the_newest_of_the_worst(self) -> None:
        old, new, note = drop_alert(), drop_alert(), drop_alert()
        new.since, new.id = old.since + 10, "new"
        note.since, note.severity = old.since + 20, "note"
        assert marks.worst_alert([old, note, new]) is new


class TestFleetRow:
    def row(self, one: Job, width: int = 100) -> str:
        state = marks.standing(one)
        placed = layout(fleet_draw.columns_for(fleet()), width - 4)
        return plain([fleet_draw.job_row(one, state, placed, width, LOOK, [1.0] * 10, False)])

    def test_columns_that_tell_nothing_are_left_out(self) -> None:
        keys = [column.key for column in fleet_draw.columns_for([job("a", noise=Noise())])]
        assert "gpu" not in keys
        assert "drop" not in keys
        assert "noise" not in keys
        assert "gpu" in [column.key for column in fleet_draw.columns_for([job("a", gpus=[gpu(0)])])]

    def test_lost_jobs_show_dashes_for_rates_and_keep_their_last_values(self) -> None:
        text = self.row(job("t5", state="lost", age_s=252.0), 140)
        assert "139k" not in text
        assert "2.32" in text
        assert "4m12" in text

    def test_a_lower_bound_and_a_measurement_under_way_are_not_numbers(self) -> None:
        assert ">11x" in self.row(job("a", noise=Noise(state="lower_bound", phi=11.0)))
        assert " .. " in self.row(job("a", noise=Noise(state="measuring", phi=3.0)))


class TestJobPanels:
    def test_the_batch_line_multiplies_out(self) -> None:
        assert facts.batch_line(job("a"), LOOK) == "8 micro × 4 accumulation × 2 DP = 64 samples, 65.5k tokens"

    def test_hot_and_dead_experts_are_named(self) -> None:
        assert experts.remark(layer(2, hot=5)) == "hot e5 2.9x"
        assert experts.remark(layer(3, dead=(3, 11))) == "dead e3 e11"
        assert experts.remark(layer(1)) == ""

    def test_layers_are_told_apart_by_what_differs(self) -> None:
        assert list(experts.labels([layer(0), layer(1)]).values()) == ["L0", "L1"]
        other = layer(1)
        other.name = "model.layers.1.other.gate"
        assert list(experts.labels([layer(0), other]).values()) == ["L0 mlp.gate", "L1 other.gate"]

    def test_where_few_layers_fit_the_most_uneven_stay_in_the_order_of_the_model(self) -> None:
        layers = [layer(0), layer(1), layer(2, hot=5), layer(3, dead=(3,))]
        assert [one.name for one in experts.chosen(layers, 2)] == [layers[2].name, layers[3].name]

    def test_phases_are_named_with_time_and_share(self) -> None:
        text = plain(phases.phases(fleet()[1], 60, 8, LOOK))
        assert "data wait" in text
        assert "410ms" in text
        assert " 44%" in text

    def test_low_panels_put_the_phases_in_one_bar(self) -> None:
        rows = phases.phases(fleet()[1], 60, 4, LOOK)
        assert {style for _, style in rows[1]} >= {"data_wait", "backward"}
        assert "data wait" in plain(rows)

    def test_what_cannot_be_known_says_why(self) -> None:
        bare = job("a", phases_s=Phases(), gpus=[], unavailable={"phases_s": "no hook fired", "gpus": "no driver"})
        assert "n/a no hook fired" in plain(phases.phases(bare, 60, 8, LOOK))
        assert "n/a no driver" in plain(gpus.gpus(bare, None, 60, 4, LOOK))
        assert "n/a no libnvidia" in plain(gpus.gpus(job("b"), "no libnvidia-ml.so.1", 60, 4, LOOK))

    def test_noise_gives_its_interval_or_what_it_waits_for(self) -> None:
        assert plain([noise.value(job("a"))]) == "1.1x (0.9x to 1.4x) of the batch"
        waiting = job("a", noise=Noise(state="measuring", steps_measured=12, steps_to_quarter=180))
        assert "180 more" in noise.reading(waiting)

    def test_the_verdict_gives_why_try_and_check(self) -> None:
        one = fleet()[1]
        text = plain(verdict.full(one, marks.standing(one), START, 120, 8, LOOK))
        for word in ("why", "44%", "try", "DataLoader", "+71%", "check", "replay", "missing", "NVML"):
            assert word in text


def test_the_first_look_shows_the_ways_in_and_where_was_looked() -> None:
    text = plain(empty.empty(["/tmp/bsmon-0: empty"], True, 80, 22, LOOK))
    for word in ("bsmon run", "bsmon_agent.attach()", "bsmon demo", "/tmp/bsmon-0: empty", "bsmon doctor"):
        assert word in text
    assert "connecting" in plain(empty.empty([], False, 80, 22, LOOK))


def test_help_lists_keys_marks_and_filters() -> None:
    text = plain(help.help_page([("q", "quit"), ("?", "help")], 80, LOOK))
    for word in ("quit", "X crit", "GNS/B", "verdict:input"):
        assert word in text


def test_the_paused_header_says_that_recording_goes_on() -> None:
    one = job("a")
    row = header.header([one], [marks.standing(one)], 0, 4.0, 132.0, START, 100)
    assert "PAUSED, 132 s behind, still recording" in plain([row])
