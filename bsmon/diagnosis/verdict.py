"""From findings to what is said: the headline, one finding an axis, what is missing, what to try."""

from __future__ import annotations

from collections.abc import Sequence

from bsmon.diagnosis.features import MIN_STEPS
from bsmon.diagnosis.rules import Axis, Finding
from bsmon.diagnosis.signals import Features, unknown
from bsmon.model import Regime

SEVERITIES = (None, "note", "warn", "crit")
ALIKE = 0.75  # two causes of which the lesser wins this much of the greater are "mixed"


def rank(finding: Finding) -> tuple[bool, bool, float, int, float]:
    """Most pressing last: what is urgent, causes before symptoms, the seconds to win, severity, confidence."""
    return (
        finding.rule.urgent or (finding.rule.instant and finding.severity == "crit"),
        finding.rule.label != "unknown",
        finding.recoverable,
        SEVERITIES.index(finding.severity),
        finding.confidence,
    )


def measuring(features: Features) -> Regime:
    """Too few steps to say anything."""
    return Regime(headline=f"measuring: {features.steps} of {MIN_STEPS} steady steps", missing=["more steps"])


def regime(findings: Sequence[Finding], features: Features) -> Regime:
    """The verdict for these findings; none of them: nothing stands out."""
    ordered = _telling(sorted(findings, key=rank, reverse=True))
    if not ordered:
        return _quiet(features)
    first = ordered[0]
    mixed = _equals(first, ordered[1:])
    said = Regime(
        headline=first.headline,
        label=first.rule.label,
        confidence=first.confidence,
        severity=first.severity,
        evidence=_evidence(ordered),
        missing=list(first.missing),
        advice=list(dict.fromkeys(finding.rule.advice for finding in ordered)),
        gain=_gain(first, features),
        check=first.rule.check,
    )
    if mixed:
        said.label = "mixed"
        said.headline = "; ".join(finding.headline for finding in (first, *mixed))
    said.time, said.memory = _on(ordered, "time"), _on(ordered, "memory")
    said.statistics, said.experts = _on(ordered, "statistics"), _on(ordered, "experts")
    said.statistics = said.statistics or _efficient(features)
    return said


def _telling(ordered: Sequence[Finding]) -> list[Finding]:
    """Without the symptoms that say less than what comes before them on the same axis."""
    kept: list[Finding] = []
    for finding in ordered:
        if finding.rule.label != "unknown" or finding.rule.axis not in (each.rule.axis for each in kept):
            kept.append(finding)
    return kept


def _evidence(ordered: Sequence[Finding]) -> list[str]:
    """All of the first, the gist of the others."""
    gist = [finding.evidence[0] for finding in ordered[1:] if finding.evidence]
    return list(dict.fromkeys((*ordered[0].evidence, *gist)))


def _equals(first: Finding, others: Sequence[Finding]) -> list[Finding]:
    """Other causes that cost about as much time as the first."""
    if not first.recoverable or first.rule.urgent:
        return []
    return [
        finding
        for finding in others
        if finding.rule.label not in (first.rule.label, "unknown") and finding.recoverable >= ALIKE * first.recoverable
    ]


def _on(ordered: Sequence[Finding], axis: Axis) -> str | None:
    """The most pressing label of an axis."""
    return next((finding.rule.label for finding in ordered if finding.rule.axis == axis), None)


def _efficient(features: Features) -> str | None:
    """The gradient noise interval lies inside [0.5, 4]: the batch fits."""
    low, high = features.noise_low, features.noise_high
    return "efficient" if low is not None and high is not None and low >= 0.5 and high <= 4 else None


def _gain(finding: Finding, features: Features) -> str | None:
    """What removing the whole cause would bring."""
    foreseen = finding.rule.gained(features)
    if foreseen is not None:
        return foreseen
    share = finding.recoverable
    if share < 0.01:
        return None
    saved = f", {share * features.step_s:.3g} s a step" if features.step_s else ""
    return f"up to +{share / (1 - share):.0%} throughput{saved}"


def _quiet(features: Features) -> Regime:
    """No rule holds. Says what can't be seen from here, so that silence isn't taken for praise."""
    missing = unseen(features)
    where = "on the CPU: forward and backward" if features.on_cpu else "forward and backward"
    work = (features.forward or 0.0) + (features.backward or 0.0)
    return Regime(
        headline="nothing stands out" + (f"; can't tell overhead from compute without {missing[0]}" if missing else ""),
        label="unknown",
        statistics=_efficient(features),
        confidence=0.5 if missing else 0.8,
        evidence=[f"{where} {work:.0%} of the step"] if work else [],
        missing=missing,
    )


def unseen(features: Features) -> list[str]:
    """The unknown signals that would tell compute from the rest, for where this job runs, the most telling first."""
    first = "elasticity" if features.on_cpu else "gpu_idle"
    return unknown(
        features,
        (first, "data_wait", "flops", "tensor_active", "clock_loss", "cpu_time", "communication", "lateness"),
    )
