"""Compiles a component to native code, ahead of time: ``python -I compile.py COMPONENT CODE LIMITS``; run as a program, never imported.

Its job: check that the component is the one meant, compile it with the table of settings, write the code.
Not its job: where code is kept and checked (``engine/images/compiling.py``), running any of it (``host.py``).
Laws:
1. Nothing of the component runs here: it is read and translated (tests/unit/test_image_compiling.py).
2. The bytes that are compiled are the bytes that were hashed (tests/unit/test_image_compiling.py).
"""

import hashlib
import json
import os
import resource
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from wasm import configuration  # found by the line above: an isolated interpreter does not look beside its program


def main(component: str, code: str, wanted: str) -> None:
    """Compile it."""
    import wasmtime.component

    for name, amount in json.loads(wanted)["limits"].items():
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (amount, amount))
    with open(component, "rb") as file:
        data = file.read()
    if hashlib.sha256(data).hexdigest() != json.loads(wanted)["sha256"]:
        sys.exit("the component was changed while it was compiled")
    engine = wasmtime.Engine(configuration.make())
    try:
        compiled = wasmtime.component.Component(engine, data).serialize()
    except wasmtime.WasmtimeError as error:
        sys.exit(f"it cannot be compiled: {' '.join(str(error).split())[:1000]}")
    with open(code, "xb") as file:
        file.write(compiled)


if __name__ == "__main__":
    main(*sys.argv[1:])
