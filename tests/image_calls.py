"""One call of a tool in an image, without any jail: a program of its own that loads the compiled code and talks to the guest in frames.

``python -m tests.image_calls CODE TOOL ARGUMENTS`` with the tool's source on stdin; prints the message that answered, as JSON.
"""

import json
import subprocess
import sys
from typing import Any

from engine.images.image import Image
from tests.kit import PROJECT


def call(image: Image, source: str, tool: str, arguments: dict[str, Any]) -> Any:
    """What the guest answered: the number of its message, and the message's fields."""
    code = image.open_code()
    with open(code.descriptor, "rb"):
        done = subprocess.run(
            [sys.executable, "-m", "tests.image_calls", str(code.descriptor), tool, json.dumps(arguments)],
            input=source,
            capture_output=True,
            text=True,
            cwd=PROJECT,
            env={"PYTHONPATH": str(PROJECT / "worker_images")},
            pass_fds=[code.descriptor],
            timeout=120,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def main(descriptor: str, tool: str, arguments: str) -> None:
    """Be the host of one guest."""
    import wasmtime
    from wasmtime.component import Component, Linker, Variant

    from guest import wire
    from wasm import configuration

    frames = [[wire.INIT, "sha256:0", "/bundle", "tool", [], tool, None, {}, {}], [wire.CALL, tool, json.loads(arguments), "call"]]
    heard: list[list[Any]] = []

    def emit(_: object, kind: int, data: str) -> None:
        if kind == 3:
            heard.append(wire.unpack(data.encode("latin-1")[4:]))
        else:
            sys.stderr.write(data)

    def ask(_: object, request: str) -> object:
        if request == "poll":
            return Variant("ok", "")
        return Variant("ok", wire.pack(frames[0][0], frames.pop(0)[1:])[4:].decode("latin-1")) if frames else Variant("err", "closed")

    engine = wasmtime.Engine(configuration.make())
    component, linker = Component.deserialize_file(engine, f"/proc/self/fd/{descriptor}"), Linker(engine)
    linker.add_wasip2()
    with linker.root() as root, root.add_instance("stockade:worker/host") as host:
        host.add_func("emit", emit)
        host.add_func("call", ask)
    store = wasmtime.Store(engine)
    store.set_wasi(wasmtime.WasiConfig())
    instance = linker.instantiate(store, component)
    for name, request in (("load", {"files": {"tool.py": sys.stdin.read()}, "layers": {}}), ("call", {"home": "/tmp"})):
        exported = instance.get_func(store, name)
        assert exported is not None
        said = exported(store, json.dumps(request))
        exported.post_return(store)
        assert said == "", said
    sys.stdout.write(json.dumps(heard[-1]) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
