"""What the gradients of a model can't tell, and why; and how many processes share them."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm

AVERAGING_HOOKS = ("allreduce_hook", "fp16_compress_hook", "bf16_compress_hook")  # torch's own: they keep the mean


def refusal(root: Any, leaves: Sequence[torch.Tensor], wrapper: Any) -> str | None:
    """Why the noise of this model can't be measured, or None."""
    if not leaves:
        return "no parameter of an optimizer takes a gradient"
    return _parameters(leaves) or _modules(() if root is None else root.modules()) or _averaging(wrapper)


def _parameters(leaves: Iterable[torch.Tensor]) -> str | None:
    for kind in {type(leaf) for leaf in leaves}:
        if kind.__name__ == "DTensor":
            return "the parameters are sharded (FSDP2 or tensor parallelism): local gradients are not seen"
        if kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
            return f"parameters of type {kind.__name__}"
    return None


def _modules(modules: Iterable[Any]) -> str | None:
    for module in modules:
        if isinstance(module, _BatchNorm) and module.training:
            return "BatchNorm: a sample's gradient depends on the rest of its micro-batch"
        if type(module).__name__ == "FullyShardedDataParallel":
            return "the parameters are sharded (FSDP): local gradients are not seen"
    return None


def _averaging(wrapper: Any) -> str | None:
    for hook in getattr(wrapper, "_comm_hooks", ()):
        name = getattr(hook[0], "__name__", str(hook[0]))
        if name not in AVERAGING_HOOKS:
            return f"gradients are averaged by a hook of unknown scale ({name})"
    return None


def compiled(root: Any) -> bool:
    """Is any part of the model compiled, so that hooks on its modules don't fire?"""
    return any(
        getattr(module, "_compiled_call_impl", None) is not None or type(module).__name__ == "OptimizedModule"
        for module in root.modules()
    )


def data_parallel_wrapper(root: Any) -> Any:
    """The DistributedDataParallel that averages this model's gradients within the backward pass, or None."""
    loaded = sys.modules.get("torch.nn.parallel.distributed")
    kind = getattr(loaded, "DistributedDataParallel", None)
    if kind is None or root is None or not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return None
    around = getattr(kind, "_active_ddp_module", None)
    return next((module for module in root.modules() if isinstance(module, kind)), around)


def group_size(wrapper: Any) -> int:
    """Processes whose gradients are averaged."""
    return 1 if wrapper is None else int(torch.distributed.get_world_size(wrapper.process_group))
