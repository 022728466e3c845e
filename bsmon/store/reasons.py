"""Why a value of a job is not known, by its path below the job."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import msgspec

from bsmon.model import Hello, Job

RATES = ("tokens_per_s", "samples_per_s", "eta_s")
PER_JOB = (*RATES[:2], "batch.data_parallel", "batch.global_samples", "batch.global_tokens")

GROUPS = ("step_time_s", "phases_s", "batch", "model", "mfu", "memory", "overhead")

# What can be said where nothing more exact is known. A path stands for all below it.
DEFAULTS = {
    "ranks": "not reported by that process",
    "step": "no step yet",
    "loss": "no backward() was seen in the last steps",
    "grad_norm": "not measured in the last steps",
    "learning_rate": "the optimizer names none",
    "optimizer": "not reported by the agent",
    "step_time_s": "needs two steps",
    "tokens_per_s": "no token count was found in the inputs; say it with bsmon_agent.tokens(n)",
    "samples_per_s": "no batch dimension was found in the inputs",
    "token_source": "no token count was found in the inputs; say it with bsmon_agent.tokens(n)",
    "loss_source": "no backward() was seen",
    "grad_norm_source": "not measured",
    "phases_s.data_wait": "no data loader was seen",
    "phases_s.communication": "no collective was seen",
    "phases_s": "not measured",
    "batch.global_tokens": "no token count was found in the inputs",
    "batch.padding_share": "no attention mask was found in the inputs",
    "batch.sequence_length": "the inputs have no sequence dimension that is known",
    "batch": "no batch dimension was found in the inputs",
    "model.active_parameters": "not counted for this model",
    "model.flops_per_token": "needs the FLOPs of the model: not counted",
    "model.convention": "needs the FLOPs of the model: not counted",
    "model": "the trained model was not found; give it with attach(model=…)",
    "mfu": "needs the FLOPs of the model and the device's peak",
    "noise.phi_high": "the signal cannot be told from zero: there is no upper end",
    "noise": "not measured",
    "moe.layers": "this router does not tell",
    "moe": "no router was found in the model",
    "eta_s": "the number of steps is not known; give it with attach(total_steps=…)",
    "total_steps": "not known; give it with attach(total_steps=…)",
    "exit_code": "the run has not ended",
    "memory.activations_per_micro": "needs the peak at two sizes of the micro-batch",
    "memory.largest_micro_batch": "needs the peak at two sizes of the micro-batch",
    "memory": "not reported by the agent",
    "gpus": "this GPU or its driver does not give it",
    "regime": "nothing to say about this yet",
    "overhead": "not measured yet",
    "age_s": "it was never heard",
    "started": "not reported by the agent",
}


class Reasons:
    """Collects what is said about one job's missing values. The most exact reason for a path wins."""

    def __init__(self, hello: Hello, gpus: str | None) -> None:
        self._told = dict(hello.unavailable)  # by the agent, which knows best why it can't measure
        self._said: dict[str, str] = {}
        self._about_all: str | None = None
        self._gpus = gpus
        self._on_cpu = hello.device.type == "cpu"

    def say(self, path: str, reason: str) -> None:
        """A reason found while the view was made; the path "" stands for all that comes from steps."""
        if path:
            self._said[path] = reason
        else:
            self._about_all = reason

    def told(self, path: str) -> str:
        """What was said of this path so far."""
        return self._said.get(path) or self._told.get(path) or DEFAULTS.get(path) or "not known"

    def say_rates(self, reason: str) -> None:
        self._said.update(dict.fromkeys(RATES, reason))

    def say_parallel(self, world_size: int) -> None:
        reason = f"which of the {world_size} processes train on different data is not known"
        self._said.update(dict.fromkeys(PER_JOB, reason))

    def of(self, job: Job) -> dict[str, str]:
        """A reason for every value of the job that is None, for groups of which nothing is known, for empty lists."""
        gaps = [path for path in missing(job) if not path.startswith("regime")]
        found = {path: self._why(path) for path in gaps}
        for group in GROUPS:
            inside = [path for path in gaps if path.startswith(group + ".")]
            if inside and len(inside) == len(getattr(job, group).__struct_fields__):
                found[group] = self._why(group)
        if not job.gpus and self._gpus:
            found["gpus"] = self._gpus
        return found | {path: reason for path, reason in self._said.items() if path.startswith("user.")}

    def _why(self, path: str) -> str:
        if path.endswith(".reason"):
            return "nothing is missing that it would explain"
        prefixes = list(_prefixes(path))
        for table in (self._said, self._told):
            for prefix in prefixes:
                if prefix in table:
                    return table[prefix]
        if self._about_all is not None and not path.startswith(("mfu", "model", "total_steps", "exit_code", "memory")):
            return self._about_all
        if self._on_cpu and path in ("memory.allocated", "memory.reserved", "memory.peak", "memory.device_total"):
            return "it trains on the CPU, which has no allocator of its own to ask"
        return next((DEFAULTS[prefix] for prefix in prefixes if prefix in DEFAULTS), "not known")


def _prefixes(path: str) -> Iterator[str]:
    """The path itself, then what lies above it: "a.b.c", "a.b", "a"."""
    while path:
        yield path
        path = path.rpartition(".")[0]


def missing(value: Any, path: str = "") -> Iterator[str]:
    """Paths of every None, NaN or infinity in a view; list items by their index."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        yield path
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            if name != "unavailable":
                yield from missing(getattr(value, name), f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        for index, item in enumerate(value if value and not isinstance(value[0], (int, str)) else ()):
            yield from missing(item, f"{path}.{index}")
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from missing(item, f"{path}.{name}")
