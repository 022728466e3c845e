"""What can be told of a router and its experts from how they are built: numbers of experts, the bank beside a gate."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from torch import nn

EXPERTS = (
    "num_experts",
    "n_routed_experts",
    "num_local_experts",
    "n_experts",
    "num_moe_experts",
    "moe_num_experts",
    "tot_expert",
    "num_gates",
    "n_exp",
    "n_expert",
    "num_total_experts",
    "total_experts",
    "E",
)
CHOICES = (
    "top_k",
    "topk",
    "num_experts_per_tok",
    "num_experts_per_token",
    "moe_router_topk",
    "moe_top_k",
    "moe_topk",
    "moe_k",
    "top_k_experts",
    "n_activated_experts",
    "n_expert_per_token",
    "experts_per_token",
    "top_n",
    "k",
    "K",
)
SPELLED = tuple(name for name in CHOICES if "expert" in name or "moe" in name or name == "topk")
"""In a configuration a bare ``top_k`` may be that of text generation."""
FACTORS = ("capacity_factor", "moe_capacity_factor", "moe_expert_capacity_factor", "capacity_factor_train")
CAPACITIES = ("expert_capacity", "capacity")
CONFIGS = ("config", "args", "cfg", "ffn_config", "moe_config")

BANK = re.compile(r"expert", re.IGNORECASE)
SHARED = re.compile(r"shared|dense|common", re.IGNORECASE)


@dataclass
class Facts:
    """What a router says of itself. ``classes``: width of its scores where that is more than its experts."""

    experts: int | None = None
    top_k: int | None = None
    capacity_factor: float | None = None
    capacity: int | None = None
    dropless: bool | None = None
    classes: int | None = None


def number(*owners: Any, names: tuple[str, ...], kind: type[int] | type[float] = int) -> Any:
    """The first of these attributes that is a positive number, on the first owner that has one."""
    for owner in owners:
        for name in names if owner is not None else ():
            value = _attribute(owner, name)
            if isinstance(value, (int, kind)) and not isinstance(value, bool) and value > 0:
                return kind(value)
    return None


def _attribute(owner: Any, name: str) -> Any:
    """Without ``getattr`` on modules, whose misses are slow."""
    if isinstance(owner, nn.Module):
        return vars(owner).get(name, getattr(type(owner), name, None))
    return getattr(owner, name, None)


def configs(*owners: Any) -> list[Any]:
    """The configuration objects of these modules."""
    found = [_attribute(owner, name) for owner in owners for name in CONFIGS]
    return [config for config in found if config is not None]


def facts_of(module: nn.Module, parent: nn.Module | None) -> Facts:
    """What the usual attribute names tell; the router's own word counts for more than its parent's."""
    settings = configs(module, parent)
    owners = [module, parent, *settings]
    facts = Facts(
        experts=number(*owners, names=EXPERTS) or width(module),
        top_k=number(module, parent, names=CHOICES) or number(*settings, names=SPELLED),
        capacity_factor=number(*owners, names=FACTORS, kind=float),
        capacity=number(module, parent, names=CAPACITIES),
    )
    if facts.experts is None and parent is not None:
        facts.experts = bank_size(parent)
    return facts


def width(module: nn.Module) -> int | None:
    """Rows of the router's weight, its own or that of a Linear in it: its experts."""
    weight = getattr(module, "weight", None)
    if getattr(weight, "ndim", 0) == 2 and weight is not None:
        return int(weight.shape[0]) or None
    linears = [child for child in module.modules() if isinstance(child, nn.Linear)]
    return linears[-1].out_features if linears else None


def bank_of(parent: nn.Module) -> nn.Module | None:
    """The experts among the children of a block: named or typed after experts, not shared ones, two or more."""
    for name, child in parent.named_children():
        if SHARED.search(name) or not (BANK.search(name) or BANK.search(type(child).__name__)):
            continue
        if size_of(child) is not None:
            return child
    return None


def bank_size(parent: nn.Module) -> int | None:
    """How many experts a block owns; its own 3-D parameters count as a bank too."""
    bank = bank_of(parent)
    return size_of(bank) if bank is not None else _stacked(parent)


def size_of(bank: nn.Module) -> int | None:
    """Experts in a bank: entries of a list or dict, leading size of 3-D parameters, or what it says of itself."""
    if isinstance(bank, (nn.ModuleList, nn.ModuleDict)):
        return len(bank) if len(bank) >= 2 else None
    stacked = _stacked(bank)
    if stacked is not None:
        return stacked
    for child in bank.children():
        if isinstance(child, (nn.ModuleList, nn.ModuleDict)) and len(child) >= 2:
            return len(child)
    own = number(bank, names=EXPERTS)
    inner = [size for child in bank.children() if (size := size_of(child)) is not None]
    return own or (inner[0] if inner else None)


def _stacked(module: nn.Module) -> int | None:
    for parameter in module.parameters(recurse=False):
        if parameter.ndim == 3 and parameter.shape[0] >= 2:
            return int(parameter.shape[0])
    return None
