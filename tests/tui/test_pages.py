"""Every page at every size: what must be there is there, and nothing is wider than the terminal."""

from __future__ import annotations

import pytest
from feed import Feed, busy, drop_alert, empty, fleet, job
from rich.cells import cell_len
from seen import Opened

from bsmon.model import Regime

SIZES = [(80, 24), (120, 36), (200, 60), (60, 15), (300, 80)]
PAGES = {"1": "JOB", "2": "tokens/s", "3": "experts", "4": "GPUs of node1", "5": "alerts", "question_mark": "Keys"}


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
async def test_every_page_fits(opened: Opened, size: tuple[int, int]) -> None:
    async with opened(size=size) as seen:
        for key, word in PAGES.items():
            text = await seen.press(key)
            assert word in text, key
            assert len(seen.lines) <= size[1]
            assert all(cell_len(line) <= size[0] for line in seen.lines)
            assert "q quit" in seen.lines[-1]


class TestFleet:
    async def test_the_first_look_tells_which_is_worst_why_and_what_to_try(self, opened: Opened) -> None:
        async with opened() as seen:
            first_job = seen.lines[3]
            assert first_job.startswith(" > moe-30b-sw3")
            assert "X input-bound" in first_job
            why = next(line for line in seen.lines if line.startswith(" why"))
            assert "data wait is 44%" in why
            advice = next(line for line in seen.lines if line.startswith(" try"))
            assert "DataLoader workers" in advice
            assert "X 1 crit" in seen.lines[0]
            assert "! 2 warn" in seen.lines[0]
            assert "tokens/s" in seen.text

    async def test_all_states_have_a_mark_and_a_word(self, opened: Opened) -> None:
        async with opened() as seen:
            for words in ("? lost", "? stale", ". finished", "~ noise-limited", "! drop-rate", "  compute-bound"):
                assert words in seen.text

    async def test_the_alert_line_names_job_and_reason(self, opened: Opened) -> None:
        async with opened() as seen:
            assert "moe-7b-a1b 3.1% of the assignments are dropped" in seen.lines[-2]
            assert "no alert stands; 2 jobs worth a look" in await seen.press("a")
            for job in seen.feed.jobs:
                job.regime = Regime(label="compute_bound")
            seen.feed.advance()
            assert "worth a look" not in await seen.settle()

    async def test_small_terminals_keep_what_matters(self, opened: Opened) -> None:
        async with opened(size=(59, 14)) as seen:
            assert seen.lines[1].lstrip().startswith("JOB")
            assert "why" not in seen.text
            text = await seen.resize(29, 5)
            assert text.strip() == "8 jobs 1 crit 2 warn"
            assert "DROP%" in await seen.resize(80, 24)

    async def test_wide_terminals_show_fleet_and_job_side_by_side(self, opened: Opened) -> None:
        async with opened(size=(200, 60)) as seen:
            row = next(line for line in seen.lines if "gpt2-xl-ref" in line)
            assert "data wait" in seen.text
            assert row.index("gpt2-xl-ref") < 60
            head = next(line for line in seen.lines if "JOB" in line)
            assert "moe-30b-sw3  node2:8" in head

    async def test_nothing_to_see_shows_the_ways_in(self, opened: Opened) -> None:
        async with opened(empty()) as seen:
            for words in (
                "No training is seen yet",
                "bsmon run train.py",
                "bsmon demo",
                "bsmon doctor",
                "/run/user/1000",
            ):
                assert words in seen.text
            assert "why" not in seen.text

    async def test_until_all_places_were_looked_at_it_is_connecting(self, opened: Opened) -> None:
        feed = empty()
        feed.settled = False
        async with opened(feed) as seen:
            assert "connecting" in seen.text
            assert "No training" not in seen.text

    async def test_jobs_come_and_go(self, opened: Opened) -> None:
        feed = empty()
        async with opened(feed) as seen:
            feed.jobs.append(job("newcomer"))
            feed.advance()
            assert "newcomer" in await seen.settle()
            feed.jobs.clear()
            feed.advance()
            assert "No training is seen yet" in await seen.settle()

    async def test_two_hundred_jobs_scroll_with_the_selection_in_sight(self, opened: Opened) -> None:
        feed = Feed([job(f"run-{n:03}") for n in range(200)], [])
        async with opened(feed) as seen:
            assert "200 jobs" in seen.text
            text = await seen.press("end")
            assert " > run-199" in text
            text = await seen.press("home")
            assert " > run-000" in text


class TestJob:
    async def test_everything_known_of_a_job(self, opened: Opened) -> None:
        async with opened(size=(120, 36)) as seen:
            text = await seen.press("enter")
            for words in (
                "check    replay one cached batch",
                "missing  NVML",
                "8 micro × 4 accumulation × 2 DP = 64 samples, 65.5k tokens",
                "agent     21us a step",
                "0.9x to 1.4x",
                "data wait",
                "410ms",
                "dropped tokens",
                "hot e5 2.9x",
                "dead e3 e11",
                "loss",
                "GPU",
                "58%",
                "if balanced",
            ):
                assert words in text, words

    async def test_a_dense_job_has_no_expert_panel(self, opened: Opened) -> None:
        async with opened(Feed([job("dense")], []), size=(120, 36)) as seen:
            text = await seen.press("2")
            assert "expert load" not in text
            assert "dropped tokens" not in text
            assert "loss" in text

    async def test_without_a_gpu_one_line_says_why(self, opened: Opened) -> None:
        async with opened(Feed([job("cpu", gpus=[])], []), size=(120, 36)) as seen:
            assert "n/a no NVIDIA driver: libnvidia-ml.so.1" in await seen.press("2")

    async def test_an_alert_draws_its_limit(self, opened: Opened) -> None:
        feed = Feed([fleet()[2]], [drop_alert()])
        async with opened(feed, size=(120, 36)) as seen:
            assert "╌ limit ╌" in await seen.press("2")

    async def test_the_next_job_by_bracket(self, opened: Opened) -> None:
        async with opened(size=(120, 36)) as seen:
            await seen.press("2")
            assert " gpt2-xl-ref " in (await seen.press("right_square_bracket")).splitlines()[2]
            assert " moe-30b-sw3 " in (await seen.press("left_square_bracket")).splitlines()[2]

    async def test_a_gap_in_the_data_is_a_gap_in_the_chart(self, opened: Opened) -> None:
        feed = busy()
        feed.gap = (feed.time - 400, feed.time - 200)
        async with opened(feed, size=(120, 36)) as seen:
            lines = (await seen.press("2")).splitlines()
            start = next(index for index, line in enumerate(lines) if line.startswith(" tokens/s ─"))
            plot = [line[6:58] for line in lines[start + 1 : start + 6]]
            columns = [any(line.ljust(60)[x] not in " ╌" for line in plot) for x in range(52)]
            assert not any(columns[20:32])
            assert any(columns[:15])
            assert any(columns[40:50])

    async def test_slow_steps_give_stairs_not_gaps(self, opened: Opened) -> None:
        from bsmon.model import StepTime

        asked: list[int] = []
        feed = Feed([job("slow", step_time_s=StepTime(30.0, 31.0))], [])
        inner = feed.series
        feed.series = lambda *a: (asked.append(a[4]), inner(*a))[1]  # type: ignore[method-assign]
        async with opened(feed, size=(120, 36)) as seen:
            await seen.press("2")
            assert asked
            assert max(asked) <= 5  # ten minutes in buckets of at least four steps
