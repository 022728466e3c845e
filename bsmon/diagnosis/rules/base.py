"""What a rule is: one row of the table of verdicts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from string import Formatter
from typing import Literal

from bsmon.diagnosis.signals import Features, unknown
from bsmon.model import Severity

Axis = Literal["time", "memory", "statistics", "experts"]
UNDECIDED = 0.5  # confidence at most, as long as the deciding signal is missing


@dataclass(frozen=True)
class Rule:
    """A verdict. It is entered when ``signal`` reaches ``enter`` and left when it falls below ``leave``.

    ``evidence`` and ``headline`` are templates over the signals; one that names an unknown signal is left out.
    """

    name: str
    label: str  # one of the contract's labels
    axis: Axis
    signal: str  # an attribute of Features
    enter: float
    leave: float
    source: str  # of the thresholds
    headline: str
    evidence: tuple[str, ...]
    advice: str
    check: str  # what would refute it
    confidence: float
    deciding: tuple[str, ...] = ()  # keys of SIGNALS; while one of them is missing: UNDECIDED at most
    recovers: str | None = None  # the signal that is the share of step time to win
    gain: str = ""  # a template: what the advice would bring, where that is not step time
    severity: Severity | None = "warn"
    critical: float = math.inf  # the signal's value from which the severity is crit
    urgent: bool = False  # comes before any loss of time
    instant: bool = False  # needs no second window to be entered

    @cached_property
    def read(self) -> attrgetter[float | bool | None]:
        return attrgetter(self.signal)

    @cached_property
    def templates(self) -> tuple[tuple[str, frozenset[str]], ...]:
        return tuple((text, _fields(text)) for text in (self.headline, *self.evidence))

    def gained(self, features: Features) -> str | None:
        """What the advice would bring, if all that it rests on is known."""
        fields = _fields(self.gain)
        return self.gain.format(**_known(features, fields)) if self.gain and _all(features, fields) else None


@dataclass(frozen=True)
class Finding:
    """A rule that holds, with the numbers of the moment."""

    rule: Rule
    value: float
    confidence: float
    recoverable: float  # share of the step
    headline: str
    evidence: tuple[str, ...]
    missing: tuple[str, ...]

    @property
    def severity(self) -> Severity | None:
        return "crit" if self.value >= self.rule.critical else self.rule.severity


def _fields(template: str) -> frozenset[str]:
    return frozenset(name for _, name, _, _ in Formatter().parse(template) if name)


def value_of(rule: Rule, features: Features) -> float | None:
    """The rule's signal, None when it is unknown or no number."""
    value = rule.read(features)
    return None if value is None or math.isnan(value) else float(value)


def find(rule: Rule, features: Features, value: float) -> Finding:
    """The finding of a rule whose signal has this value."""
    missing = tuple(unknown(features, rule.deciding))
    known = [text.format(**_known(features, fields)) for text, fields in rule.templates if _all(features, fields)]
    share = getattr(features, rule.recovers) if rule.recovers else None
    return Finding(
        rule=rule,
        value=value,
        confidence=min(rule.confidence, UNDECIDED) if missing else rule.confidence,
        recoverable=min(max(share or 0.0, 0.0), 0.99),
        headline=known[0] if known else rule.name,
        evidence=tuple(known[1:]),
        missing=missing,
    )


def _all(features: Features, names: frozenset[str]) -> bool:
    return all(getattr(features, name) is not None for name in names)


def _known(features: Features, names: frozenset[str]) -> dict[str, object]:
    return {name: getattr(features, name) for name in names}


def judge(rules: tuple[Rule, ...], features: Features) -> list[Finding]:
    """Every rule that holds at its upper threshold, without regard to the past."""
    values = ((rule, value_of(rule, features)) for rule in rules)
    return [find(rule, features, value) for rule, value in values if value is not None and value >= rule.enter]
