"""Tries which modules of the standard library an image can import, in a pre-initialisation that is thrown away.

Its job: one list of what came, one of what did not.
Not its job: the image that is kept: what is imported here would stay in it.
Laws:
1. The lists are what was tried, and a tool finds the same (tests/wasm/test_build.py).
"""

import importlib
import json
import os
import platform
import sys

from python_wasm import library

_PLACE = "probe.json"
_WITH_EFFECTS = frozenset(("antigravity", "this", "idlelib", "turtledemo", "__phello__"))  # one opens a browser, one prints


def wanted(root: str) -> bool:
    """Whether this is such a pre-initialisation: an empty file is there to be filled."""
    return os.path.exists(f"{root}/{_PLACE}")


def tell(root: str) -> None:
    """Write what was found, as JSON. What a library leaves out counts as missing."""
    found: dict[str, list[str]] = {"modules": [], "missing": []}
    tried = sys.stdlib_module_names - _WITH_EFFECTS - {name.removesuffix(".py") for name in library.LEFT_OUT}
    for name in sorted(tried):
        found["modules" if _comes(name) else "missing"].append(name)
    found["missing"] += sorted(sys.stdlib_module_names - tried)
    with open(f"{root}/{_PLACE}", "w", encoding="utf-8") as file:
        json.dump({**found, "python": platform.python_version()}, file)


def _comes(name: str) -> bool:
    try:
        importlib.import_module(name)
        return True
    except BaseException:
        return False
