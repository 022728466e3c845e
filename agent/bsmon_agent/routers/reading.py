"""What one call of a router chose, as tensors on its device. Nothing here waits for the device, and nothing here has
a shape that depends on values, so that all of it may be traced by torch.compile.

Letters: T tokens, E experts, K choices of a token, C places of an expert.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeGuard

import torch
from torch import Tensor

LEAST = -100.0  # ln p below which p ln p is nothing, so that a logit of minus infinity is no NaN
ScoreKind = Literal["logits", "sigmoid", "shares"]


@dataclass(frozen=True)
class Ids:
    """Choices as expert numbers [T, K]. A number outside 0..E-1, or one that is not ``valid`` [T, K], is nobody."""

    ids: Tensor
    valid: Tensor | None = None

    def add_to(self, total: Tensor, rows: Tensor | None = None) -> None:
        """Add the choices per expert to ``total`` [E + 2], whose ends take nobody's; of ``rows`` [T] alone."""
        slots = self._slots(total.shape[0] - 2, rows).reshape(-1)
        total.scatter_add_(0, slots, torch.ones_like(slots))

    def _slots(self, experts: int, rows: Tensor | None = None) -> Tensor:
        """Expert numbers from 1, nobody 0 or E + 1."""
        slots = self.ids if self.ids.dtype == torch.int64 else self.ids.long()
        slots = slots.clamp(-1, experts) + 1
        if self.valid is not None:
            slots = slots * self.valid
        return slots if rows is None else slots * rows[:, None]

    def per_token(self, experts: int) -> Tensor:
        """How many experts each token has: [T]."""
        slots = self._slots(experts)
        return ((slots > 0) & (slots <= experts)).sum(-1)

    def dense(self, experts: int) -> Tensor:
        """The same as a mask [T, E]."""
        slots = self._slots(experts)
        mask = torch.zeros(slots.shape[0], experts + 2, dtype=torch.bool, device=slots.device)
        return mask.scatter_(1, slots, True)[:, 1:-1]


@dataclass(frozen=True)
class Mask:
    """Choices as a mask [T, E], non-zero where chosen."""

    mask: Tensor

    def add_to(self, total: Tensor, rows: Tensor | None = None) -> None:
        chosen = self.dense(total.shape[0] - 2)
        if rows is not None:
            chosen = chosen & rows[:, None]
        total[1:-1] += chosen.sum(0)

    def per_token(self, experts: int) -> Tensor:
        return self.dense(experts).sum(-1)

    def dense(self, experts: int) -> Tensor:
        return self.mask if self.mask.dtype == torch.bool else self.mask != 0


Choice = Ids | Mask


@dataclass(frozen=True)
class Scores:
    """What the router thought of each expert, [..., E']: logits (softmax gives the shares), sigmoid logits (their
    sigmoids over their sum), or shares already (brought to a sum of 1)."""

    values: Tensor
    kind: ScoreKind = "logits"

    def entropy(self, most: int) -> tuple[Tensor, int]:
        """Sum of -Σ p ln p, nats, over at most ``most`` tokens evenly spaced, and over how many."""
        rows = self.values.detach().reshape(-1, self.values.shape[-1])
        if rows.shape[0] > most:
            rows = rows[:: -(-rows.shape[0] // most)]
        rows = rows.float()
        if self.kind == "logits":
            logs = rows.log_softmax(-1)
            return -(logs.exp() * logs.clamp(min=LEAST)).sum(), rows.shape[0]
        rows = rows.sigmoid() if self.kind == "sigmoid" else rows
        return torch.special.entr(rows / rows.sum(-1, keepdim=True)).sum(), rows.shape[0]


@dataclass(frozen=True)
class Reading:
    """One call, read. What is None is not known, except ``kept``: None says that every choice was kept.

    ``tokens`` x ``top_k`` choices were to be made; the router's own policy left out ``skipped`` of them (a count),
    the experts' capacity cut others. ``assigned`` and ``kept`` may be counts [E] where which tokens it was is hidden.
    """

    experts: int
    top_k: int
    tokens: int
    assigned: Choice | Tensor | None
    kept: Choice | Tensor | None = None
    scores: Scores | None = None
    weights: Tensor | None = None  # looked at for NaN only
    skipped: Tensor | None = None
    used: Tensor | None = None  # [T] bool: tokens that were routed at all, where some were not
    doubt: Tensor | None = None  # a count: how often a recomputed choice contradicted what was seen
    padding: Tensor | None = None  # [T] bool, where the router itself is told what is padding
    groups: int = 1  # how often the capacity applied afresh: once a call, or once a sequence
    capacity: int | None = None
    shows_drops: bool = True  # False: what the experts drop happens out of the router's sight
    splits: bool = True  # False: whether a missing choice was left out or dropped can't be told


@dataclass(frozen=True)
class Call:
    """What a forward hook is given."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Any
    held: Any = None  # what the adapter's ``before`` answered when the call began


def local(value: Any) -> Any:
    """A DTensor's own part, detached; anything else as it is."""
    if not isinstance(value, Tensor):
        return value
    own = value.to_local() if hasattr(value, "to_local") else value
    return own.detach()


def parts(output: Any) -> tuple[Any, ...]:
    """An output as a tuple, tensors local and detached."""
    items = output if isinstance(output, (tuple, list)) else (output,)
    return tuple(local(item) for item in items)


def is_ids(value: Any) -> TypeGuard[Tensor]:
    return (
        isinstance(value, Tensor)
        and not value.is_floating_point()
        and not value.is_complex()
        and value.dtype != torch.bool
    )


def is_float(value: Any) -> TypeGuard[Tensor]:
    return isinstance(value, Tensor) and value.is_floating_point()


def rows(value: Tensor) -> Tensor:
    """[..., X] as [T, X]."""
    return value.reshape(-1, value.shape[-1])


def shape_of(value: Any) -> str:
    """For messages: ``[96, 2] int64``."""
    if isinstance(value, Tensor):
        return f"{list(value.shape)} {str(value.dtype).removeprefix('torch.')}"
    return type(value).__name__


def describe(output: Any) -> str:
    return "(" + ", ".join(shape_of(item) for item in parts(output)) + ")"
