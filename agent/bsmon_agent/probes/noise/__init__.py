"""Gradient noise: what is measured in the training process. What it means is worked out by the app."""

from bsmon_agent.probes.noise.probe import NoiseProbe

__all__ = ["NoiseProbe"]
