"""What can be read off a module without running it: its name, its parameters, where it lives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

_WRAPPERS = ("_orig_mod", "module")  # of torch.compile; of DDP, DataParallel, FSDP
_PARALLEL = ("DistributedDataParallel", "FullyShardedDataParallel")


def layers_of(root: nn.Module) -> Iterator[nn.Module]:
    """The module and what it wraps, from the outside in."""
    while True:
        yield root
        inside = [child for name, child in root.named_children() if name in _WRAPPERS]
        if len(inside) != 1 or len(list(root.children())) != 1 or any(True for _ in root.parameters(recurse=False)):
            return
        root = inside[0]


def name(root: nn.Module) -> str:
    """The class of what the user wrote."""
    return type(list(layers_of(root))[-1]).__name__


def data_parallel(root: nn.Module) -> int | None:
    """Over how many processes the batch is spread, where a wrapper of torch's says so."""
    for module in layers_of(root):
        if type(module).__name__ in _PARALLEL:
            group = getattr(module, "process_group", None)
            return group.size() if group is not None else None
    return None


def parameters(root: nn.Module) -> dict[str, int]:
    """Counts for a hello's ``model``; a sharded tensor says its full size."""
    sizes = [(parameter.numel(), parameter.requires_grad) for parameter in root.parameters()]
    return {"parameters": sum(size for size, _ in sizes), "trainable": sum(size for size, grad in sizes if grad)}


def active(root: nn.Module, routers: list[dict[str, Any]]) -> int | None:
    """Parameters that a token meets: of the routed experts only k of E. None where they can't be told apart."""
    met = shares(root, routers)
    return None if met is None else round(sum(p.numel() * met.get(id(p), 1.0) for p in root.parameters()))


def shares(root: nn.Module, routers: list[dict[str, Any]]) -> dict[int, float] | None:
    """By the identity of each routed expert's parameter the share of the tokens that meet it, k / E."""
    modules = dict(root.named_modules())
    found: dict[int, float] = {}
    for router in routers:
        experts, chosen = router.get("experts"), router.get("top_k")
        if not experts or not chosen:
            return None
        routed = [id(p) for p in _routed(modules, router["name"], experts) if id(p) not in found]
        if not routed:
            return None
        found.update(dict.fromkeys(routed, chosen / experts))
    return found


def _routed(modules: dict[str, nn.Module], router: str, experts: int) -> list[nn.Parameter]:
    """The parameters of a router's experts: E like modules beside it, or tensors whose first dimension is E."""
    block_name = router
    while block_name:
        block_name = block_name.rpartition(".")[0]
        block = modules.get(block_name)
        if block is None:
            return []
        found = [p for child, module in block.named_children() if child != router for p in _experts(module, experts)]
        found += [p for p in block.parameters(recurse=False) if p.dim() == 3 and p.shape[0] == experts]
        if found:
            return found
    return []


def _experts(module: nn.Module, experts: int) -> list[nn.Parameter]:
    children = list(module.children())
    if len(children) == experts and len({type(child) for child in children}) == 1:
        return list(module.parameters())
    stacked = [p for p in module.parameters(recurse=False) if p.dim() >= 2 and p.shape[0] == experts]
    if any(p.dim() == 3 for p in stacked):
        return list(module.parameters(recurse=False))
    return [p for child in children for p in _experts(child, experts)]


def device(root: nn.Module) -> dict[str, Any]:
    """Where the first parameter lives, as in a hello. Asks no device to do anything."""
    place = next((parameter.device for parameter in root.parameters()), torch.device("cpu"))
    if place.type != "cuda":
        return {"type": place.type}
    index = torch.cuda.current_device() if place.index is None else place.index
    about = torch.cuda.get_device_properties(index)
    uuid = getattr(about, "uuid", None)
    known = {"type": "cuda", "index": index, "name": about.name, "uuid": f"GPU-{uuid}" if uuid else None}
    return {key: value for key, value in known.items() if value is not None}
