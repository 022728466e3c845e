"""How many attention layers a model has and how wide they are, from its config or from the modules themselves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

CONFIGS = ("config", "cfg", "model_config", "model_args", "args", "params", "hparams")
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
HEAD_SIZES = ("head_dim", "head_size", "kv_channels", "dim_head", "d_head", "d_kv")
WIDTHS = ("hidden_size", "n_embd", "d_model", "dim", "embed_dim", "hidden_dim")
KINDS = ("layer_types", "layers_block_type")  # of each layer

QUERIES = ("q_proj", "wq", "Wq", "to_q", "query", "linear_q", "q_lin", "q")
FUSED = ("qkv", "c_attn", "qkv_proj", "Wqkv", "to_qkv", "in_proj", "query_key_value", "wqkv")

TWO_SEQUENCES = "it has an encoder and a decoder, each with tokens of its own"
OTHER_INPUTS = "it computes on more than tokens"
LAYERS_SHARED = "its layers share parameters, which a token meets more than once"


def shape(modules: list[nn.Module], named: Mapping[str, nn.Module]) -> dict[str, int]:
    """``attention_layers``, ``attention_width``, and the window of those that have one; empty where it is not known."""
    config = _config(modules)
    return (_of_config(config) if config is not None else {}) or _of_modules(named)


def not_per_token(modules: list[nn.Module]) -> str | None:
    """Why one forward's FLOPs are not the parameters' times the tokens, as far as the config says."""
    for config in filter(None, map(_settings, modules)):
        if _get(config, "is_encoder_decoder") is True:
            return TWO_SEQUENCES
        if any(_get(config, name) is not None for name in ("vision_config", "audio_config")):
            return OTHER_INPUTS
        groups, layers = _number(config, ("num_hidden_groups",)), _number(config, LAYERS)
        if groups is not None and layers is not None and groups < layers:
            return LAYERS_SHARED
    if any(isinstance(module, nn.TransformerDecoderLayer) for module in modules):
        return TWO_SEQUENCES
    return None


# ---------------------------------------------------------------- config


def _config(modules: list[nn.Module]) -> Any:
    """The outermost one that tells layers and heads."""
    for config in filter(None, map(_settings, modules)):
        if _number(config, LAYERS) and _number(config, HEADS):
            return config
    return None


def _settings(module: nn.Module) -> Any:
    return next((module.__dict__[name] for name in CONFIGS if module.__dict__.get(name) is not None), None)


def _get(config: Any, name: str) -> Any:
    return config.get(name) if isinstance(config, Mapping) else getattr(config, name, None)


def _number(config: Any, names: tuple[str, ...]) -> int | None:
    values = (_get(config, name) for name in names)
    return next((value for value in values if type(value) is int and value > 0), None)


def _of_config(config: Any) -> dict[str, int]:
    layers, width = _number(config, LAYERS), _config_width(config)
    if layers is None or width is None:
        return {}
    kinds = next((kinds for name in KINDS if isinstance(kinds := _get(config, name), (list, tuple))), None)
    attending = [str(kind) for kind in kinds or () if "attention" in str(kind) and "linear" not in str(kind)]
    found = {"attention_layers": layers if kinds is None else len(attending), "attention_width": width}
    window = _number(config, ("sliding_window", "attention_chunk_size"))
    if window is not None and _get(config, "use_sliding_window") is not False:
        local = [kind for kind in attending if "sliding" in kind or "chunk" in kind]
        found["attention_window"] = window
        found["windowed_layers"] = layers if kinds is None else len(local)
    return found


def _config_width(config: Any) -> int | None:
    """Heads x head size; where queries and values differ in size (multi-head latent attention), of their mean."""
    heads = _number(config, HEADS)
    if heads is None:
        return None
    plain, rotated = _number(config, ("qk_nope_head_dim",)), _number(config, ("qk_rope_head_dim",))
    values = _number(config, ("v_head_dim",))
    if plain and rotated and values:
        return heads * (plain + rotated + values) // 2
    size = _number(config, HEAD_SIZES)
    return heads * size if size else _number(config, WIDTHS)


# ---------------------------------------------------------------- modules


def _of_modules(named: Mapping[str, nn.Module]) -> dict[str, int]:
    """From modules that look like attention, nothing if one of them can't be read or looks at something else."""
    widths: list[int | None] = []
    inside: tuple[str, ...] = ()
    for name, module in named.items():
        if not name.startswith(inside or ("\0",)) and _attends(module):
            inside = (*inside, f"{name}.")
            widths.append(None if "cross" in name.lower() else _module_width(module))
    known = [width for width in widths if width]
    if not known or len(known) < len(widths):
        return {}
    return {"attention_layers": len(known), "attention_width": round(sum(known) / len(known))}


def _attends(module: nn.Module) -> bool:
    name = type(module).__name__.lower()
    return ("attention" in name or "attn" in name) and not isinstance(module, (nn.ModuleList, nn.Identity))


def _module_width(module: nn.Module) -> int | None:
    if isinstance(module, nn.MultiheadAttention):
        return int(module.embed_dim)
    children = dict(module.named_children())
    for name in QUERIES:
        if isinstance(linear := children.get(name), nn.Linear):
            return linear.out_features
    for name in FUSED:
        linear = children.get(name)
        if isinstance(linear, nn.Linear) and linear.out_features == 3 * linear.in_features:
            return linear.in_features
    heads, size = _number(module.__dict__, (*HEADS, "heads")), _number(module.__dict__, HEAD_SIZES)
    return heads * size if heads and size else None
