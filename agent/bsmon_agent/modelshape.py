"""What a count of FLOPs needs to know of a model (``matmul`` and what follows it in the app's ``ModelInfo``).

Read off modules, their parameters and their config; nothing is run. What can't be told is left out, with the reason.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from bsmon_agent import attention, modelinfo

MOSTLY_CONVOLUTION = 0.05  # of the parameters
WIDEST = 1.1  # an output projection may be padded to so many times the vocabulary

EXPERTS = re.compile(r"MoE|Moe|MOE|Experts?$|(^|\.)experts?(\.|$)")  # in a class's or a module's name

FLAT = "FSDP has flattened its parameters; fully_shard (FSDP2) keeps their shapes"
CONVOLUTIONS = "it convolves: a weight is used at many places, and a token is not what it computes on"
NO_ROUTER = "it has experts, but no router was found that says how many of them a token meets"
NO_SHARES = "which parameters the experts own could not be told"
TIED = "whether its embedding is its output projection too can't be told from its modules"


def read(root: nn.Module, routers: list[dict[str, Any]]) -> tuple[dict[str, int], str | None]:
    """``shape``, of any module whatever: its config is the user's own code, which may raise."""
    try:
        return shape(root, routers)
    except Exception as error:
        return {}, f"the model could not be read: {type(error).__name__}: {error}"


def precision(root: nn.Module) -> dict[str, Any]:
    """``compute_dtype`` and ``devices`` for a hello's ``model``. To be asked in a forward."""
    try:
        known = {"compute_dtype": compute_dtype(root), "devices": devices(root)}
    except Exception:
        return {}
    return {name: value for name, value in known.items() if value is not None}


def shape(root: nn.Module, routers: list[dict[str, Any]]) -> tuple[dict[str, int], str | None]:
    """Counts for a hello's ``model``; without those of the parameters if there is a reason."""
    named = dict(root.named_modules())
    modules = list(named.values())
    found = attention.shape(modules, named)
    reason = attention.not_per_token(modules) or _unsuited(named, routers)
    shares = modelinfo.shares(root, routers) if reason is None else {}
    if shares is None:
        return found, NO_SHARES
    lookups = _lookups(modules)
    if reason is None and _may_be_output(modules, lookups):
        reason = TIED
    if reason is not None:
        return found, reason
    kept = [p for key, p in _parameters(modules).items() if key not in lookups]
    counts = _counts(kept, _before_all_trained(modules, lookups), shares)
    again = _recomputed(modules)
    if again:
        inside = {id(p) for module in again for p in module.parameters()}
        counts["matmul_recomputed"] = _met([p for p in kept if id(p) in inside], shares)
        layers = found.get("attention_layers", 0)
        counts["recomputed_layers"] = layers if len(again) == 1 else min(layers, len(again))
    return {**found, **counts}, None


def _unsuited(named: dict[str, nn.Module], routers: list[dict[str, Any]]) -> str | None:
    modules = list(named.values())
    if any(type(module).__name__ == "FullyShardedDataParallel" for module in modules):
        return FLAT
    convolving = [module for module in modules if isinstance(module, nn.modules.conv._ConvNd)]
    convolved = sum(map(elements, _parameters(convolving).values()))
    if convolved > MOSTLY_CONVOLUTION * sum(map(elements, _parameters(modules).values())):
        return CONVOLUTIONS
    names = (name for path, module in named.items() for name in (path, type(module).__name__))
    if not routers and any(map(EXPERTS.search, names)):
        return NO_ROUTER
    return None


# ---------------------------------------------------------------- parameters


def _parameters(modules: Sequence[nn.Module]) -> dict[int, nn.Parameter]:
    """Each once, by its identity, in the order of registration."""
    return {id(p): p for module in modules for p in module._parameters.values() if p is not None}


def elements(parameter: nn.Parameter) -> int:
    """Of the whole tensor: also where DeepSpeed has taken it apart, or bitsandbytes packed it."""
    packed = getattr(getattr(parameter, "quant_state", None), "shape", None)
    return math.prod(packed) if packed else int(getattr(parameter, "ds_numel", 0) or parameter.numel())


def _embeddings(modules: list[nn.Module]) -> dict[int, nn.Parameter]:
    tables = [m for m in modules if isinstance(m, nn.Embedding) or type(m).__name__.endswith("Embedding")]
    weights = [module._parameters.get("weight") for module in tables]
    return {id(weight): weight for weight in weights if weight is not None and weight.dim() == 2}


def _lookups(modules: list[nn.Module]) -> dict[int, nn.Parameter]:
    """Embeddings that no other module shares: one tied to the output projection counts once, as that."""
    tables = _embeddings(modules)
    for module in modules:
        if not isinstance(module, nn.Embedding) and not type(module).__name__.endswith("Embedding"):
            for parameter in module._parameters.values():
                tables.pop(id(parameter), None)
    return tables


def _may_be_output(modules: list[nn.Module], lookups: dict[int, nn.Parameter]) -> bool:
    """Is there a vocabulary without an output projection among the modules? It may be used by a function then.

    A transformers model says itself whether it has one.
    """
    if not lookups or len(lookups) < len(_embeddings(modules)) or any(map(_knows_its_output, modules)):
        return False
    rows = max(table.shape[0] for table in lookups.values())
    others = [p for m in modules for p in m._parameters.values() if p is not None and id(p) not in lookups]
    return not any(p.dim() == 2 and rows <= p.shape[0] <= WIDEST * rows for p in others)


def _knows_its_output(module: nn.Module) -> bool:
    return callable(getattr(type(module), "get_output_embeddings", None))


def _met(parameters: Iterable[nn.Parameter], shares: dict[int, float]) -> int:
    """How many of these elements one token meets."""
    return round(sum(elements(p) * shares.get(id(p), 1.0) for p in parameters))


def _counts(kept: list[nn.Parameter], before: set[int], shares: dict[int, float]) -> dict[str, int]:
    return {
        "matmul": _met(kept, shares),
        "matmul_frozen": _met((p for p in kept if not p.requires_grad and id(p) not in before), shares),
        "matmul_forward_only": _met((p for p in kept if id(p) in before), shares),
    }


def _before_all_trained(modules: list[nn.Module], lookups: dict[int, nn.Parameter]) -> set[int]:
    """Frozen parameters that no backward goes through: registered, and so used, before the first that is trained.

    A trained embedding is at the input and an output projection at the end, wherever they were registered.
    """
    before: set[int] = set()
    if any(p.requires_grad for p in lookups.values()):
        return before
    for key, parameter in _parameters(modules).items():
        if parameter.requires_grad:
            break
        before.add(key)
    return before - (_embeddings(modules).keys() - lookups.keys())


# ---------------------------------------------------------------- checkpointing, dtype, devices


def _recomputed(modules: list[nn.Module]) -> list[nn.Module]:
    """The outermost modules whose forward runs again in the backward; none where only some operations do."""
    found: list[nn.Module] = []
    inside: set[int] = set()
    for module in modules:
        if id(module) not in inside and _checkpointed(module):
            found.append(module)
            inside.update(map(id, module.modules()))
    return found


def _checkpointed(module: nn.Module) -> bool:
    """By transformers' flag, or torch's wrapper."""
    if type(module).__name__ == "CheckpointWrapper":
        keywords = getattr(getattr(module, "checkpoint_fn", None), "keywords", {})
        return "context_fn" not in keywords
    return module.__dict__.get("gradient_checkpointing") is True


def devices(root: nn.Module) -> int:
    """Devices that this process computes on: more than one under DataParallel, or with the layers spread out."""
    replicas = [len(m.device_ids) for m in modelinfo.layers_of(root) if isinstance(m, nn.DataParallel)]
    places = {p.device for p in _parameters(list(root.modules())).values() if p.device.type not in ("cpu", "meta")}
    return max([1, len(places), *replicas])


def compute_dtype(root: nn.Module) -> str | None:
    """Of the matrix products: by autocast, a mixed-precision policy, or the parameters. To be asked in a forward."""
    modules = list(root.modules())
    names = {type(module).__name__ for module in modules}
    if any("Float8" in name for name in names):
        return "float8"
    if any(type(module).__module__.startswith("transformer_engine") for module in modules):
        return None  # in 8 or 16 bits, as a context around each layer says
    kind = next((p.device.type for p in root.parameters()), "cpu")
    dtype = next(_policies(root, kind), None) or _of_most(modules)
    if dtype == "float32" and kind == "cuda" and torch.get_float32_matmul_precision() != "highest":
        return "tf32"
    return dtype


def _policies(root: nn.Module, kind: str) -> Iterator[str]:
    if torch.is_autocast_enabled(kind):
        yield _name(torch.get_autocast_dtype(kind))
    for module in modelinfo.layers_of(root):
        if "_original_forward" in module.__dict__:  # accelerate, which casts inside the forward that it put in place
            state = getattr(sys.modules.get("accelerate.state"), "AcceleratorState", None)
            chosen = getattr(state, "_shared_state", {}).get("_mixed_precision")
            yield from {"bf16": ["bfloat16"], "fp16": ["float16"]}.get(str(chosen), [])
        state_of: Any = getattr(module, "_get_fsdp_state", None)
        if state_of is not None:  # fully_shard
            cast = getattr(getattr(state_of(), "_mp_policy", None), "param_dtype", None)
            yield from [_name(cast)] if cast is not None else []


def _of_most(modules: list[nn.Module]) -> str | None:
    """The dtype of most of the parameters."""
    sizes: dict[str, int] = {}
    for parameter in _parameters(modules).values():
        packed = getattr(parameter, "quant_state", None)
        dtype = getattr(packed, "dtype", None) or parameter.dtype
        sizes[_name(dtype)] = sizes.get(_name(dtype), 0) + elements(parameter)
    return max(sizes, key=lambda name: sizes[name], default=None)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
