"""Random draws of a gate, repeated from the generator's state as it was when the gate was called, on a generator of our
own: the run's random state is only read.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bsmon_agent.reductions import capturing


def state_before(module: nn.Module) -> Tensor | None:
    """The state of the default generator of the module's device; reading it does not make a GPU wait."""
    device = next(iter(module.parameters())).device
    if device.type == "cpu":
        return torch.get_rng_state()
    if device.type != "cuda" or capturing():
        return None
    return torch.cuda.default_generators[device.index or 0].get_state()


class Replay:
    """Draws again, in the order of the original draws."""

    def __init__(self, state: Tensor, device: torch.device) -> None:
        self._generator = torch.Generator(device)
        self._generator.set_state(state)

    def uniform(self, like: Tensor) -> Tensor:
        """What ``torch.zeros_like(like).uniform_(0, 1)`` was."""
        return torch.zeros_like(like).uniform_(0.0, 1.0, generator=self._generator)
