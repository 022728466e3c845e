"""One file an adapter family. Importing them registers them; the order is that in which they are tried."""

from bsmon_agent.routers.adapters import (
    deepspeed,
    fairscale,
    lucid,
    nllb,
    st_moe,
    switch,
    torchtitan,
    transformers_odd,
    transformers_triple,
)

__all__ = [
    "deepspeed",
    "fairscale",
    "lucid",
    "nllb",
    "st_moe",
    "switch",
    "torchtitan",
    "transformers_odd",
    "transformers_triple",
]
