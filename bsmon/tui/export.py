"""What is on the screen, as files in the current directory."""

from __future__ import annotations

import time
from pathlib import Path

from bsmon.model import Snapshot
from bsmon.report.json import document


def write(snapshot: Snapshot, svg: str, text: str, directory: Path) -> list[Path]:
    """The snapshot as JSON, the screen as SVG and as text, under one name that says when."""
    stem = time.strftime("bsmon-%Y%m%d-%H%M%S", time.localtime(snapshot.time))
    contents = {".json": document(snapshot), ".svg": svg, ".txt": text}
    written = []
    for suffix, content in contents.items():
        path = directory / (stem + suffix)
        path.write_text(content, encoding="utf-8")
        written.append(path)
    return written
