"""One file an adapter family. Importing them registers them; the order is that of their tries."""

from bsmon_agent.routers.adapters import transformers_triple

__all__ = ["transformers_triple"]
