"""What componentize-py imports first: it makes the interpreter one that needs no file any more, then loads the guest.

Its job: the order of the steps while an image is pre-initialised.
Not its job: what each step does; anything at run time (``shim.py``).
Laws:
1. Nothing in a finished image names a folder of the build (tests/wasm/test_places.py).
"""

import sys
from typing import Any

import wit_world.imports.host  # type: ignore[import-not-found]  # noqa: F401 - while the path leads to what componentize-py made

from python_wasm import library, probing

ROOT = "/0"  # where componentize-py shows the assembled folder


def _shim() -> Any:
    library.collect(ROOT)
    library.install()
    for name in ("python_wasm.library", "python_wasm.probing", "python_wasm"):
        del sys.modules[name]  # from here on these come out of the library, and say so
    from python_wasm import shim

    shim.prepare(ROOT, library.handed_over())
    return shim.WitWorld


if probing.wanted(ROOT):
    probing.tell(ROOT)
    WitWorld: Any = object  # of an image that is thrown away
else:
    WitWorld = _shim()
sys.modules[__name__].__file__ = f"/guest/{__name__}.py"
