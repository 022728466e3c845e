"""bsmon: what limits a training run, and what to change."""

__version__ = "0.1.0"
