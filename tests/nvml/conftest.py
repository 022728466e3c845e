"""A scripted ``libnvidia-ml.so.1`` that the real nvidia-ml-py loads, in processes of their own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SOURCE = Path(__file__).with_name("libnvidia-ml.c")

# Reads as many samples as it is told, a line of JSON each; between two it waits for a line on stdin.
READER = """
import json, sys
from msgspec import to_builtins
from bsmon.sources.nvml import Nvml
nvml = Nvml()
for _ in sys.stdin:
    print(json.dumps(to_builtins(nvml.sample())), flush=True)
"""


def build(folder: Path, *flags: str) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler for the scripted NVML (apt-get install gcc)")
    library = folder / "libnvidia-ml.so.1"
    subprocess.run([compiler, "-Wall", "-Werror", "-shared", "-fPIC", *flags, "-o", library, SOURCE], check=True)
    return folder


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture(scope="session")
def old_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml-old"), "-DOLD_DRIVER")


class Host:
    """A process that reads the scripted GPUs; ``script`` may change what they say between two samples."""

    def __init__(self, folder: Path | None, scenario: Path) -> None:
        self.scenario = scenario
        environment = {**os.environ, "NVML_SCENARIO": str(scenario), "LD_LIBRARY_PATH": str(folder or "")}
        self.process = subprocess.Popen(
            [sys.executable, "-c", READER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def script(self, text: str) -> None:
        new = self.scenario.with_suffix(".new")
        new.write_text(text)
        new.replace(self.scenario)

    def sample(self) -> dict[str, Any]:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())  # type: ignore[no-any-return]


@pytest.fixture
def host(tmp_path: Path) -> Any:
    started: list[Host] = []

    def start(folder: Path | None, scenario: str = "") -> Host:
        path = tmp_path / "scenario"
        path.write_text(scenario)
        started.append(Host(folder, path))
        return started[-1]

    yield start
    for one in started:
        one.process.communicate(timeout=10)


StartHost = Callable[..., Host]
