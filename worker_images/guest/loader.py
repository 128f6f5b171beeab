"""Imports the tool's source: the only place that executes it.

Its job: import the entry of a bundle, find the tools it declares.
Not its job: which files there are (staged by the host), what a declaration may say (``engine.authoring``).
Laws:
1. The standard library and the guest come first on the path: nothing staged can take their names (tests/security/test_staging.py).
2. Nothing is written beside the source: it is read-only, and holds no byte code (tests/security/test_promise_fresh.py).
"""

import importlib
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from engine.authoring.tool import Tool


def import_entry(entry: str, root: str, layers: list[str]) -> ModuleType:
    """The entry module, imported from the bundle at ``root`` with the granted layers behind it."""
    sys.path += [root, *layers]
    sys.dont_write_bytecode = True
    importlib.invalidate_caches()
    return importlib.import_module(entry)


def tools_of(module: ModuleType) -> list[Tool[..., Any]]:
    """The tools in the module's namespace, then those of its loaded submodules, each once, in order of definition."""
    found: list[Tool[..., Any]] = []
    for namespace in _namespaces(module):
        for value in list(vars(namespace).values()):
            if isinstance(value, Tool) and not any(value is known for known in found):
                found.append(value)
    return found


def _namespaces(module: ModuleType) -> Iterator[ModuleType]:
    yield module
    prefix = module.__name__ + "."
    for name in sorted(sys.modules):
        if name.startswith(prefix) and isinstance(sys.modules[name], ModuleType):
            yield sys.modules[name]
