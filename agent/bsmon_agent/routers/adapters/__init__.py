"""One file an adapter family. Importing them registers them."""

from bsmon_agent.routers.adapters import (
    deepspeed,
    dropless,
    fairscale,
    fastmoe,
    lucid,
    megablocks,
    megatron,
    nllb,
    olmo,
    st_moe,
    switch,
    torchtitan,
    transformers_odd,
    transformers_triple,
    tutel,
)

__all__ = [
    "deepspeed",
    "dropless",
    "fairscale",
    "fastmoe",
    "lucid",
    "megablocks",
    "megatron",
    "nllb",
    "olmo",
    "st_moe",
    "switch",
    "torchtitan",
    "transformers_odd",
    "transformers_triple",
    "tutel",
]
