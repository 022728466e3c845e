"""``bsmon diagnose``: the diagnosis engine alone, on one written observation or JSON lines of them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from bsmon.commands.base import DATA, WELL, CommandError, Parser

if TYPE_CHECKING:
    from bsmon.diagnosis.observation import Verdict


def diagnose(arguments: list[str]) -> int:
    parser = Parser("bsmon diagnose", description=f"{__doc__} Fields are those of tests/data/regime_cases.jsonl.")
    parser.add_argument("file", nargs="?", default="-", metavar="FILE", help="an object or JSON lines (default: stdin)")
    parser.add_argument("--json", action="store_true", help="a JSON object a line")
    options = parser.parse_args(arguments)
    from bsmon.diagnosis import observation
    from bsmon.sources.decode import clean_text

    told = refused = 0
    for place, case in cases(read(options.file)):
        if isinstance(case, str):
            print(f"bsmon: {options.file}, line {place}: {case}", file=sys.stderr)
            refused += 1
            continue
        verdict = observation.diagnose(case)
        print(msgspec.json.encode(verdict).decode() if options.json else "\n".join(map(clean_text, text(verdict))))
        told += 1
    if not told and not refused:
        raise CommandError(f"{options.file} is empty; an observation is a JSON object with `observed` in it", DATA)
    return DATA if refused else WELL


def read(name: str) -> str:
    try:
        content = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
        return content.decode()
    except OSError as error:
        raise CommandError(f"{name}: {error.strerror}", DATA) from None
    except UnicodeDecodeError:
        raise CommandError(f"{name} is not text in UTF-8", DATA) from None


def cases(content: str) -> Iterator[tuple[int, dict[str, Any] | str]]:
    """Each observation with its line, or why it is none. One object may go over many lines."""
    whole = case(content)
    if isinstance(whole, dict):
        yield 1, whole
        return
    for number, line in enumerate(content.splitlines(), 1):
        if line.strip():
            yield number, case(line)


def case(content: str) -> dict[str, Any] | str:
    try:
        found = json.loads(content)
        json.dumps(found, ensure_ascii=False).encode()  # half a surrogate pair can be escaped, but not said again
    except (ValueError, RecursionError) as error:
        return f"not JSON ({str(error)[:100]})"
    if not isinstance(found, dict):
        return "not a JSON object"
    for part in ("observed", "contrast"):
        if not isinstance(found.get(part) or {}, dict):
            return f"`{part}` is not an object"
    return found if "observed" in found else "an object without `observed`"


def text(verdict: Verdict) -> Iterator[str]:
    sure = "" if verdict.confidence is None else f" ({verdict.confidence:.0%})"
    yield f"{verdict.id if verdict.id is not None else '-'}: {verdict.label or 'not decided'}{sure}"
    for title, lines in (("why", verdict.evidence), ("try", verdict.advice), ("missing", verdict.missing)):
        yield from (f"    {title:9}{line}" for line in lines)
    if verdict.ignored:
        yield f"    {'ignored':9}{', '.join(verdict.ignored)}"
