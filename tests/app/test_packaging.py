"""What is built is what is installed: both wheels, in environments of their own, from a copy of the sources."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = [pytest.mark.real, pytest.mark.timeout(400)]
ROOT = Path(__file__).parents[2]
IGNORED = shutil.ignore_patterns(".git", ".venv*", "__pycache__", "*.egg-info", "dist", ".*_cache", "tests")


def run(*command: object, ok: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0 or not ok, f"{command}\n{done.stdout}\n{done.stderr}"
    return done


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("build")
    source = Path(shutil.copytree(ROOT, place / "source", ignore=IGNORED))
    for part in (source / "agent", source):
        run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", place / "dist", part)
    return {wheel.name.split("-")[0]: wheel for wheel in (place / "dist").glob("*.whl")}


def environment(place: Path, *wheels: Path) -> Path:
    """A fresh environment with these wheels and what they ask for; its Python."""
    run(sys.executable, "-m", "venv", place)
    python = place / "bin" / "python"
    done = run(python, "-m", "pip", "--disable-pip-version-check", "install", "-q", "--retries", "1", *wheels, ok=False)
    if "No matching distribution" in done.stderr and "connection" in done.stderr.lower():
        pytest.skip("no package index can be reached")
    assert done.returncode == 0, done.stderr
    return python


def names(wheel: Path) -> list[str]:
    return zipfile.ZipFile(wheel).namelist()


def test_wheels_hold_the_packages_and_nothing_else(wheels: dict[str, Path]) -> None:
    assert set(wheels) == {"bsmon", "bsmon_agent"}
    for name, wheel in wheels.items():
        held = names(wheel)
        assert {path.split("/")[0] for path in held} == {name, f"{name}-0.1.0.dist-info"}
        assert f"{name}/py.typed" in held
    assert "bsmon/tui/bsmon.tcss" in names(wheels["bsmon"])
    on_disk = {str(path.relative_to(ROOT)) for path in (ROOT / "bsmon").rglob("*.py")}
    assert on_disk <= set(names(wheels["bsmon"]))


def test_the_agent_installs_alone(wheels: dict[str, Path], tmp_path: Path) -> None:
    python = environment(tmp_path / "agent", wheels["bsmon_agent"])
    listed = json.loads(run(python, "-m", "pip", "--disable-pip-version-check", "list", "--format=json").stdout)
    installed = {package["name"].lower().replace("_", "-") for package in listed}
    assert installed - {"pip", "setuptools"} == {"bsmon-agent", "msgpack", "pyzmq"}
    script = tmp_path / "script.py"
    script.write_text("import bsmon_agent, sys\nbsmon_agent.attach()\nprint('torch' in sys.modules)\nsys.exit(7)\n")
    done = run(python, "-m", "bsmon_agent.launch", script, ok=False)
    assert (done.returncode, done.stdout) == (7, "False\n"), done.stderr


def test_the_app_works_where_it_was_installed(wheels: dict[str, Path], tmp_path: Path) -> None:
    environment(tmp_path / "app", *wheels.values())
    bsmon = tmp_path / "app" / "bin" / "bsmon"
    assert run(bsmon, "--version").stdout == "bsmon 0.1.0\n"
    found = json.loads(run(bsmon, "doctor", "--json", ok=False).stdout)
    assert not [one for one in found["findings"] if one["area"] == "packages" and one["state"] != "ok"]
    demo = run(bsmon, "demo", ok=False)
    assert demo.returncode == 69 and "pip install 'bsmon[demo]'" in demo.stderr
