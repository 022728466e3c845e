"""Waits for a module to be imported by the program itself, so that we never import torch for anyone."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import threading
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


def when_imported(name: str, then: Callable[[], object]) -> None:
    """Call ``then`` now if the top-level module ``name`` is imported already, else right after its import.

    ``then`` must not raise. Nothing is imported by this call, and no loader is replaced.
    """
    module = sys.modules.get(name)
    if module is None:
        sys.meta_path.insert(0, _Finder(name, then))
    elif getattr(module.__spec__, "_initializing", False):
        threading.Thread(target=_wait, args=(name, then), name="bsmon-import", daemon=True).start()
    else:
        then()


def _wait(name: str, then: Callable[[], object]) -> None:
    """For an import that is under way: asking for the module again blocks until it is complete."""
    importlib.import_module(name)
    then()


class _Finder:
    """Stands first in ``sys.meta_path`` until its module is executed; the real finders find it.

    Looking for a spec is not yet an import (``find_spec`` is how libraries ask whether torch is there).
    """

    def __init__(self, name: str, then: Callable[[], object]) -> None:
        self.name = name
        self.then = then
        self.asking = threading.local()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self.name or getattr(self.asking, "now", False):
            return None
        self.asking.now = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self.asking.now = False
        if spec is not None and spec.loader is not None:
            self._call_after(spec.loader)
        return spec

    def _call_after(self, loader: object) -> None:
        """An attribute of this one loader object hides its method, and is gone when the import is done."""
        original = loader.exec_module  # type: ignore[attr-defined]

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module  # type: ignore[attr-defined]
            original(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                self.then()

        loader.exec_module = exec_module  # type: ignore[attr-defined]
