"""The gradient noise scale: measured steps in, a number with an interval, a state and a verdict out.

Only gradients taken at the same weights are compared: parts of one step. Successive gradients, or an optimizer's
moments, look right at fixed weights and are confidently wrong in training, where E[g_t . g_t+1] = |G|^2 (1 - lr/lr*).
"""

from bsmon.estimators.noise.estimate import RING, estimate, verdict
from bsmon.estimators.noise.interval import MINIMUM
from bsmon.estimators.noise.pairs import Pair, mismatch, pair
from bsmon.estimators.noise.window import join_ranks, window
from bsmon.estimators.noise.words import CAVEATS, Change, change, meaning, standing, trade

__all__ = [
    "CAVEATS",
    "MINIMUM",
    "RING",
    "Change",
    "Pair",
    "change",
    "estimate",
    "join_ranks",
    "meaning",
    "mismatch",
    "pair",
    "standing",
    "trade",
    "verdict",
    "window",
]
