"""Finds the routers of a model: adapters by class, then what transformers publishes, then names with a bank of
experts beside them, then plain gates. What ``declare`` named comes before all.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from typing import Any

from torch import nn

from bsmon_agent.routers.adapters.declared import DECLARED, declared
from bsmon_agent.routers.adapters.generic import GATE, GENERIC
from bsmon_agent.routers.adapters.recorded import RECORDED
from bsmon_agent.routers.registry import Site, adapter_of, kind
from bsmon_agent.routers.structure import EXPERTS, bank_size, number

NAMED = re.compile(
    r"(Router|Gating|TopK\w*Gate|Topk\w*Gate|MoE\w*Gate|Moe\w*Gate|Top2?Gate|GShardGate|SwitchGate|NaiveGate|^Gate)$"
)
OTHERS = re.compile(r"RouterMLP|ForgetGate|ResidualGate|MessageGate|DensityRouter|Indexer|Output$|Layer$")
GATES = frozenset({"gate", "router", "wg", "gating", "w_g", "w_gate", "gate_proj_experts", "router_gate", "to_gates"})
WRAPPERS = re.compile(r"\b(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module|module)\.")

Tree = dict[str, nn.Module]


def find(root: nn.Module, named: bool = False) -> list[Site]:
    """Every router in the module, itself included, in the order of its modules.

    ``named``: the module itself is one if its name says so, even without a number of experts. A candidate of a later
    rule is left out if it contains one that is already taken or lies inside one; of two by the same rule the deeper
    one counts.
    """
    tree: Tree = dict(root.named_modules())
    taken: dict[str, Site] = {}
    for rule in (_declared, _adapted, _recorded, partial(_named, certain=named), _gates):
        candidates = {site.name: site for site in rule(root, tree) if not _related(site.name, taken)}
        taken |= {
            name: site for name, site in candidates.items() if not any(_inside(other, name) for other in candidates)
        }
    sites = [taken[name] for name in tree if name in taken]
    for site in sites:
        site.name = numbered(clean(site.name), site.module) or site.router
    return sites


def clean(name: str) -> str:
    """A module's name without what wrappers (DDP, FSDP, checkpointing, compile) put into it."""
    return WRAPPERS.sub("", f"{name}.").rstrip(".")


def numbered(name: str, module: nn.Module) -> str:
    """A pipeline stage names its layers from 0; a router that knows its number in the whole model bears that one."""
    number = getattr(module, "layer_number", None)
    if not isinstance(number, int) or isinstance(number, bool):
        return name
    return re.sub(r"\.\d+\.", f".{number - 1}.", f".{name}", count=1).lstrip(".")


def _parent(name: str, tree: Tree) -> nn.Module | None:
    if not name:
        return None
    parent = tree[name.rpartition(".")[0]]
    return parent if parent is not tree[name] else None


def _inside(inner: str, outer: str) -> bool:
    return inner != outer and (not outer or inner.startswith(f"{outer}."))


def _related(name: str, taken: dict[str, Site]) -> bool:
    return any(name == other or _inside(name, other) or _inside(other, name) for other in taken)


def _declared(root: nn.Module, tree: Tree) -> Iterator[Site]:
    for name, module in tree.items():
        how = declared(module)
        if how is not None:
            yield Site(name, module, _parent(name, tree), DECLARED, "derived", detail=how)


def _adapted(root: nn.Module, tree: Tree) -> Iterator[Site]:
    for name, module in tree.items():
        found = adapter_of(module)
        if found is not None:
            yield Site(name, module, _parent(name, tree), found, found.tag)


def _recorded(root: nn.Module, tree: Tree) -> Iterator[Site]:
    """Instances of the classes whose output transformers models publish as router logits."""
    recorders: dict[type, int] = {}
    for module in tree.values():
        published: Any = getattr(type(module), "_can_record_outputs", None)
        recorder = published.get("router_logits") if isinstance(published, dict) else None
        for one in recorder if isinstance(recorder, (list, tuple)) else [recorder]:
            target = getattr(one, "target_class", None)
            if isinstance(target, type):
                recorders[target] = int(getattr(one, "index", 0) or 0)
    for name, module in tree.items():
        place = next((recorders[cls] for cls in type(module).__mro__ if cls in recorders), None)
        if place is not None:
            yield Site(name, module, _parent(name, tree), RECORDED, "logits-only", detail=place)


def _named(root: nn.Module, tree: Tree, certain: bool) -> Iterator[Site]:
    for name, module in tree.items():
        called = kind(module)
        if not NAMED.search(called) or OTHERS.search(called) or isinstance(module, nn.Linear):
            continue
        parent = _parent(name, tree)
        if parent is None:
            anchored = certain or number(module, names=EXPERTS) is not None
        else:
            anchored = bank_size(parent) is not None
        if anchored:
            yield Site(name, module, parent, GENERIC, "derived")


def _gates(root: nn.Module, tree: Tree) -> Iterator[Site]:
    """A Linear beside a bank of as many experts as it has outputs."""
    for name, module in tree.items():
        if not isinstance(module, nn.Linear) or name.rpartition(".")[2] not in GATES:
            continue
        parent = _parent(name, tree)
        if parent is not None and bank_size(parent) == module.out_features:
            yield Site(name, module, parent, GATE, "logits-only")
