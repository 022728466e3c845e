"""What happened in the training thread: written down in a few microseconds, read when some steps are over.

Code that runs once a step finds its memory gone from the processor's caches, and costs ten times what it costs in a
loop. So the hooks only append an event, and all the reading is done for many steps at a time.

An event is ``(kind, time, payload)``, times in nanoseconds of ``perf_counter_ns``.
"""

from __future__ import annotations

from collections import deque
from typing import Any

Event = tuple[int, int, Any]
Stepped = tuple[int, Any, bool]  # number of the optimizer, what the step probe saw, were the gradients thrown away?

FORWARD = 1  # the root is called with gradients enabled; payload: what the batch probe saw
RETURNED = 2  # and returned
BACKWARD = 3  # an outermost backward() starts; payload: what the loss probe saw
BACKWARD_ENDED = 4  # payload: True if it raised
EVALUATION = 5  # an optimizer step evaluates its closure; payload: for the how-manieth time
STEP = 6  # an outermost optimizer step starts to update
STEPPED = 7  # an optimizer step ended, or gradients were thrown away; payload: a ``Stepped``
CLEARED = 8  # zero_grad of the model or its optimizer, after a backward without a step; payload: a ``Stepped``
DATA = 9  # a DataLoader delivered; payload: nanoseconds that took
CLIPPED = 10  # clip_grad_norm_ returned; payload: what the norm probe saw
TOKENS = 11  # bsmon_agent.tokens(); payload: the number
LOGGED = 12  # bsmon_agent.log(); payload: the mapping

LONGEST = 1 << 14  # events that are kept; the oldest go first


def blank() -> deque[Event]:
    return deque(maxlen=LONGEST)


def evaluated_once(events: list[Event]) -> list[Event]:
    """A step's events without those of a closure's second and later evaluations (LBFGS)."""
    if all(kind != EVALUATION for kind, _, _ in events):
        return events
    kept: list[Event] = []
    again = False
    for event in events:
        kind, _, payload = event
        if kind == EVALUATION:
            again = payload > 1
        elif kind == STEPPED:
            again = False
        if not again:
            kept.append(event)
    return kept
