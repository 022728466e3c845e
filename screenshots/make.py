"""Pictures of the real screen on the real demo, as SVG, and as PNG where a converter is found.

    python screenshots/make.py [--seconds 90] [--to screenshots]

Two real trainings are started as ``bsmon demo`` starts them, the app runs on them without a terminal, and after a while
its pages are drawn at the sizes people have.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from bsmon.commands.base import watching
from bsmon.demo.start import TRAININGS, trainings, wait_until_up
from bsmon.model import Snapshot
from bsmon.services.monitor import Monitor
from bsmon.tui.app import BsmonApp

PICTURES = (
    ("small", (80, 24), ()),
    ("fleet", (120, 36), ()),
    ("job", (120, 36), ("2",)),
    ("experts", (100, 20), ("3",)),
    ("wide", (200, 60), ()),
)
SHOWN = "demo-moe"


class Own:
    """The monitor, without whatever else trains or trained on this machine."""

    def __init__(self, monitor: Monitor) -> None:
        self._monitor = monitor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._monitor, name)

    def snapshot(self) -> Snapshot:
        every = self._monitor.snapshot()
        jobs = [job for job in every.jobs if job.name in TRAININGS and job.state not in ("lost", "finished")]
        alerts = [alert for alert in every.alerts if alert.job in {job.id for job in jobs}]
        return msgspec.structs.replace(every, jobs=jobs, alerts=alerts)


async def draw(app: BsmonApp, seconds: float, folder: Path) -> None:
    """Watch for a while, then go through the pictures."""
    async with app.run_test(size=PICTURES[0][1]) as pilot:
        await asyncio.sleep(seconds)
        for name, size, keys in PICTURES:
            await pilot.resize_terminal(*size)
            await pilot.press("1", *keys)
            jobs = app.view.jobs if app.view else ()
            app.board.choose(selected=next((job.id for job in jobs if job.name == SHOWN), None))
            await asyncio.sleep(2)
            app.look_again()
            await pilot.pause()
            (folder / f"{name}.svg").write_text(app.picture(), encoding="utf-8")


def convert(picture: Path) -> bool:
    """An SVG to a PNG of twice its size, by whichever converter is here."""
    png = str(picture.with_suffix(".png"))
    for command in (
        ["rsvg-convert", "-z", "2", "-o", png, str(picture)],
        ["inkscape", "--export-dpi=192", f"--export-filename={png}", str(picture)],
        ["chromium", *_BROWSER, f"--screenshot={png}", f"--window-size={_size(picture)}", picture.resolve().as_uri()],
    ):
        if shutil.which(command[0]) and subprocess.run(command, capture_output=True, check=False).returncode == 0:
            return True
    return False


_BROWSER = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--force-device-scale-factor=2")


def _size(picture: Path) -> str:
    head = picture.read_text(encoding="utf-8").split(">", 1)[0]
    width, height = (head.split(f'{name}="')[1].split('"')[0] for name in (" width", " height"))
    return f"{round(float(width))},{round(float(height))}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Pictures of the screen on the demo.")
    parser.add_argument("--seconds", type=float, default=90.0, help="how long the trainings are watched first")
    parser.add_argument("--to", type=Path, default=Path(__file__).parent)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bs", dir="/tmp") as private:
        os.environ["BSMON_DIR"] = os.environ["XDG_STATE_HOME"] = private
        with trainings() as started:
            wait_until_up(started, print)
            with watching() as monitor:
                asyncio.run(draw(BsmonApp(Own(monitor), depth="truecolor"), options.seconds, options.to))
    for name, _, _ in PICTURES:
        picture = options.to / f"{name}.svg"
        print(picture, "and png" if convert(picture) else "(no converter for png found)")


if __name__ == "__main__":
    main()
