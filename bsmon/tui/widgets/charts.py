"""Charts of one metric of the selected job."""

from __future__ import annotations

from typing import ClassVar

from bsmon.draw.axis import Scale
from bsmon.draw.cells import Row
from bsmon.draw.chart import Limit
from bsmon.draw.noise import reading
from bsmon.draw.noise import value as noise_value
from bsmon.draw.numbers import compact
from bsmon.draw.trend import known, scale_for, trend
from bsmon.model import Job
from bsmon.tui.board import View
from bsmon.tui.layout import Want
from bsmon.tui.widgets.panel import JobPanel
from bsmon.units import percent, si


class Chart(JobPanel):
    """Subclasses say which metric, its title, its present value, and its limits."""

    metric: ClassVar[str]
    title: ClassVar[str]
    from_zero: ClassVar[bool] = False
    percent: ClassVar[bool] = False
    rank: ClassVar[int] = 0

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id)
        self._scale: Scale | None = None
        self._had_data = True
        self._scale_of: tuple[str, float] | None = None

    def value(self, job: Job) -> Row:
        """What the heading says at the right."""
        return []

    def limits(self, view: View, job: Job) -> list[Limit]:
        return []

    def reason(self, job: Job) -> str:
        return job.unavailable.get(self.metric, "")

    def reason_label(self, job: Job) -> str:
        return "n/a"

    def silent(self, job: Job) -> bool:
        """Whether there is no value, and a reason to tell instead."""
        drawn = self._scale_of is not None and self._scale_of[0] == job.id
        return drawn and not self._had_data and bool(self.reason(job))

    def draw(self, view: View) -> list[Row]:
        job = view.job
        if job is None:
            return []
        width, height = self.size
        seconds = view.window_of(job)
        values = view.series(job, self.metric, seconds, max(8, (width - 7) * 2))
        self._had_data = bool(known(values))
        limits = self.limits(view, job)
        previous = self._scale if self._scale_of == (job.id, seconds) else None
        self._scale = scale_for(previous, values, limits, self.from_zero)
        self._scale_of = (job.id, seconds)
        return trend(
            self.title,
            self.value(job),
            values,
            self._scale,
            seconds,
            width,
            height,
            view.look,
            limits,
            self.percent,
            self.reason(job),
            self.reason_label(job),
            self.has_focus,
            "dim" if job.state in ("stale", "lost", "finished") else "series",
        )

    def wants(self, view: View) -> Want:
        if view.job is None or not self.relevant(view):
            return Want(0, 0, self.rank)
        if self.silent(view.job):
            return Want(2, 3, self.rank)
        return Want(4, 10, self.rank, grows=True)


class Tokens(Chart):
    metric, title, from_zero = "tokens_per_s", "tokens/s", True

    def value(self, job: Job) -> Row:
        unknown = job.tokens_per_s is None or job.state in ("lost", "finished")
        source = f" from {job.token_source}" if job.token_source else ""
        return [("-", "dim")] if unknown else [(si(job.tokens_per_s), ""), (source, "dim")]


class Loss(Chart):
    metric, title, rank = "loss", "loss", 3

    def value(self, job: Job) -> Row:
        return [(compact(job.loss, 4), "")] if job.loss is not None else [("n/a", "dim")]


class GradNorm(Chart):
    metric, title, rank = "grad_norm", "gradient norm", 6

    def value(self, job: Job) -> Row:
        return [(compact(job.grad_norm), "")] if job.grad_norm is not None else [("n/a", "dim")]


class NoiseScale(Chart):
    """The noise scale in batches: the batch itself is the line at 1."""

    metric, title, from_zero, rank = "phi", "noise scale", True, 2

    def value(self, job: Job) -> Row:
        return noise_value(job)

    def limits(self, view: View, job: Job) -> list[Limit]:
        return [Limit(1.0, "batch", "dim")]

    def reason(self, job: Job) -> str:
        return reading(job)

    def reason_label(self, job: Job) -> str:
        return "" if job.noise.state == "measuring" else "n/a"


class Drops(Chart):
    """The share of assignments without room; the limit is the alert's, else what balanced sampling would drop."""

    metric, title, from_zero, percent, rank = "drop_rate", "dropped tokens", True, True, 2

    def relevant(self, view: View) -> bool:
        return view.job is not None and view.job.moe is not None

    def value(self, job: Job) -> Row:
        rate = job.moe.dropped_rate if job.moe else None
        return [(f"{percent(rate, 2)}%", "")] if rate is not None else [("n/a", "dim")]

    def limits(self, view: View, job: Job) -> list[Limit]:
        alerts = [alert for alert in view.alerts_of(job) if alert.rule.startswith("drop") and alert.limit is not None]
        if alerts and alerts[0].limit is not None:
            return [Limit(alerts[0].limit, "limit")]
        expected = (
            [layer.expected_drop for layer in job.moe.layers if layer.expected_drop is not None] if job.moe else []
        )
        return [Limit(sum(expected) / len(expected), "if balanced", "dim")] if expected else []

    def reason(self, job: Job) -> str:
        return job.unavailable.get("moe.dropped_rate", "no assignment was counted yet")
