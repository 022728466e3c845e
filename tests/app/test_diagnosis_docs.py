"""The table in docs/verdicts.md is the table in the code."""

from __future__ import annotations

from pathlib import Path

from bsmon.diagnosis.alert_rules import ALERT_RULES
from bsmon.diagnosis.rules import RULES

TEXT = (Path(__file__).parents[2] / "docs/verdicts.md").read_text()


def test_every_rule_is_in_the_docs_as_it_is() -> None:
    rows = {f"| {r.name} | `{r.label}` | `{r.signal}` | {r.enter:g} | {r.leave:g} | {r.source} |" for r in RULES}
    written = {line for line in TEXT.splitlines() if line.count("`") == 4 and line.count("|") == 7}
    assert written == rows


def test_every_alert_is_in_the_docs() -> None:
    for rule in ALERT_RULES:
        assert f"| `{rule.name}` | {rule.severity} |" in TEXT
