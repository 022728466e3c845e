"""Mixture of experts: what the routers of a job did, what balance would have shown, what another batch would drop.

``moe`` is the whole of it for a job's windows; the rest are its parts.
"""

from bsmon.estimators.routers.balance import expected_drop, expected_max_over_mean, idle_probability, null_cv
from bsmon.estimators.routers.forecast import Backtest, Forecast, backtest, dispersion, forecast
from bsmon.estimators.routers.layers import layer_view, moe, summary
from bsmon.estimators.routers.ranks import Layer, join, rank_cost

__all__ = [
    "Backtest",
    "Forecast",
    "Layer",
    "backtest",
    "dispersion",
    "expected_drop",
    "expected_max_over_mean",
    "forecast",
    "idle_probability",
    "join",
    "layer_view",
    "moe",
    "null_cv",
    "rank_cost",
    "summary",
]
