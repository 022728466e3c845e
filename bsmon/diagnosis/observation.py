"""``bsmon diagnose``: one written observation, judged by the same table of rules as a live job.

What can't be decided is not guessed: the label is None, and ``missing`` names what would decide. Rules see values,
never which fields a report happens to bring; ``id`` is passed through, nothing else of a case is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from bsmon.diagnosis.observed import Observed
from bsmon.diagnosis.rules import RULES, UNDECIDED, Finding, judge
from bsmon.diagnosis.signals import Features, unknown
from bsmon.diagnosis.verdict import ALIKE, rank
from bsmon.diagnosis.written import features_of_observation

DENIED = ({"compute_bound", "memory_limited"}, {"compute_bound", "throttled"})
DECIDING = (
    *("step_s", "data_wait", "gpu_idle", "communication", "lateness", "elasticity", "flops"),
    *("tensor_active", "clock_loss", "memory_used", "loss", "noise_low", "drop_rate"),
)


class Verdict(Struct, frozen=True):
    """The answer to one observation, in the contract's words."""

    id: Any
    label: str | None
    confidence: float | None
    evidence: list[str]
    missing: list[str]
    advice: list[str]
    ignored: list[str]


def diagnose(case: Mapping[str, Any]) -> Verdict:
    """The label for one observation, or an abstention that names what is missing."""
    seen = Observed(case.get("observed", {}), case.get("contrast"))
    features = features_of_observation(seen)
    findings = sorted(judge(RULES, features), key=rank, reverse=True)
    decided = _decided(findings)
    return Verdict(
        id=case.get("id"),
        label=decided.rule.label if decided else None,
        confidence=decided.confidence if decided else None,
        evidence=[line for finding in findings for line in finding.evidence],
        missing=list(decided.missing) if decided else _deciding(features, findings),
        advice=[decided.rule.advice] if decided else [],
        ignored=seen.ignored,
    )


def _decided(findings: Sequence[Finding]) -> Finding | None:
    """The first finding that names a cause and is no guess by its own rule, unless another one is as good."""
    named = [f for f in findings if f.rule.label != "unknown" and f.rule.confidence > UNDECIDED]
    rivals = [finding for finding in named[1:] if finding.rule.label != named[0].rule.label]
    return named[0] if named and not any(_rivals(named[0], finding) for finding in rivals) else None


def _rivals(first: Finding, second: Finding) -> bool:
    """Whether two findings claim the same step. What costs nothing (a busy GPU) denies what only might."""
    if first.rule.urgent and not second.rule.urgent:
        return False
    if first.recoverable:
        return second.recoverable >= ALIKE * first.recoverable
    labels = {first.rule.label, second.rule.label}
    return first.severity == second.severity or labels in DENIED


def _deciding(features: Features, findings: Sequence[Finding]) -> list[str]:
    """What would decide: shares of the step where causes compete, else every signal that is not known."""
    labels = list(dict.fromkeys(f.rule.label for f in findings if f.rule.confidence > UNDECIDED))
    if len(labels) > 1:
        return [f"a breakdown of the step time that tells {', '.join(labels)} apart"]
    return unknown(features, DECIDING) or ["a profile of some steps"]
