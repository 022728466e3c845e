"""The table of verdicts: one row each, with the source of its thresholds. A new verdict is a new row and a fixture."""

from __future__ import annotations

from bsmon.diagnosis.rules.base import UNDECIDED, Axis, Finding, Rule, find, judge, value_of
from bsmon.diagnosis.rules.experts import EXPERTS
from bsmon.diagnosis.rules.limits import LIMITS
from bsmon.diagnosis.rules.memory import MEMORY
from bsmon.diagnosis.rules.statistics import STATISTICS
from bsmon.diagnosis.rules.waiting import WAITING

RULES: tuple[Rule, ...] = WAITING + LIMITS + MEMORY + STATISTICS + EXPERTS

__all__ = ["RULES", "UNDECIDED", "Axis", "Finding", "Rule", "find", "judge", "value_of"]
