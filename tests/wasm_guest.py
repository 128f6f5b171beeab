"""A guest of the WebAssembly image in this process: no jail and no engine, only frames in and frames out.

``image`` is this machine's, built once; ``Guest`` instantiates it anew for each call, as a worker's child does.
"""

import dataclasses
import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from engine.images.builder import Means, builder_for
from engine.images.cache import Cache
from engine.images.image import Image
from engine.wire import messages
from tests import kinds, machine
from tests.images import Heard
from tests.kit import PROJECT
from wasm import configuration

IMAGES = PROJECT / "worker_images"
MEMORY = 128 << 20
_STACK = 4 << 20  # this process has a stack of 8 MiB
Sent = messages.FromWorker


def spec(out: Path, **more: Any) -> dict[str, Any]:
    """What the builder is told."""
    return {"out": str(out), "guest": str(IMAGES), "engine": str(PROJECT / "engine"), "packages": [], "prepared": None, **more}


def staged(place: Path, *, below: str = "") -> dict[str, str]:
    """A file, or the files of a folder, as a worker is given them: one character a byte."""
    paths = (
        [place] if place.is_file() else [path for path in sorted(place.rglob("*")) if path.is_file() and "__pycache__" not in path.parts]
    )
    root = place.parent if place.is_file() else place
    return {f"{below}/{path.relative_to(root)}".lstrip("/"): path.read_bytes().decode("latin-1") for path in paths}


def image() -> Image:
    """The image of this checkout on this machine; a skip that says *unproven* where it is not built."""
    kinds.require_image()
    found = machine.image()
    assert isinstance(found, Image)
    return found


@contextmanager
def code() -> Iterator[Path]:
    """A path to its compiled code, checked."""
    opened = image().open_code()
    with open(opened.descriptor, "rb"):
        yield Path(f"/proc/self/fd/{opened.descriptor}")


def build(told: Mapping[str, Any]) -> dict[str, Any]:
    """Run the builder; gives the facts that it wrote."""
    pins, out, cache = IMAGES / "python_wasm/requirements.txt", Path(told["out"]), Cache(folder=machine.IMAGE_DIR)
    environment = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    with cache.writing(lambda: None):
        python = builder_for(pins.read_bytes(), (3, 11), cache, Means(environment=environment), Heard()).python
    written = out.with_suffix(".spec.json")
    written.write_text(json.dumps(told))
    program = [str(python), str(IMAGES / "python_wasm/build.py"), str(written)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=600, env={"PYTHONHASHSEED": "0"}, check=False)
    assert done.returncode == 0, done.stderr
    facts: dict[str, Any] = json.loads(Path(f"{out}.json").read_bytes())
    return facts


def compiled(component: Path) -> Path:
    """The code of a component that is no image of the cache's, beside it."""
    import wasmtime
    import wasmtime.component as parts

    place = component.with_suffix(".code")
    engine = wasmtime.Engine(configuration.make())
    place.write_bytes(parts.Component.from_file(engine, str(component)).serialize())
    return place


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answer:
    """All that one life of a guest gave: its messages in order, its outputs, what its exports returned, a trap's text."""

    messages: list[Sent]
    out: bytes
    err: bytes
    returned: list[str]
    trap: str | None

    @property
    def last(self) -> Sent:
        """The terminal frame, when there is one."""
        return self.messages[-1]


class Guest:
    """The image, compiled once per process."""

    def __init__(self, code: Path) -> None:
        """``code`` is what was compiled of it, with the settings of workers."""
        import wasmtime
        import wasmtime.component as parts

        self._wasmtime, self._parts = wasmtime, parts
        self._engine = wasmtime.Engine(configuration.make(_STACK))
        self._component = parts.Component.deserialize_file(self._engine, str(code))
        self._linker = parts.Linker(self._engine)
        self._linker.add_wasip2()
        with self._linker.root() as root, root.add_instance("stockade:worker/host") as host:
            host.add_func("emit", lambda _store, kind, data: self._emit(kind, data))
            host.add_func("call", lambda _store, request: self._call(request))

    def _emit(self, kind: int, data: str) -> None:
        self._taken[kind] += data.encode("latin-1")

    def _call(self, request: str) -> Any:
        if request == "poll":
            return self._parts.Variant("ok", "")  # what is sent comes when it is waited for
        return self._parts.Variant("ok", self._frames.pop(0).decode("latin-1")) if self._frames else self._parts.Variant("err", "closed")

    def call(
        self,
        files: Mapping[str, str],
        tool: str,
        arguments: Mapping[str, Any],
        *,
        entry: str = "tools",
        layers: Mapping[str, Mapping[str, str]] | None = None,
        environment: Mapping[str, str] | None = None,
        memory: int = MEMORY,
        replies: Sequence[messages.ToWorker] = (),
    ) -> Answer:
        """One call of a tool in a new instance. ``files`` hold one character a byte."""
        asked = messages.Call(tool=tool, arguments=dict(arguments), call="call")
        return self.live(files, [_init(entry, layers or {}, environment or {}), asked, *replies], layers=layers, memory=memory)

    def live(
        self,
        files: Mapping[str, str],
        sent: Sequence[messages.ToWorker],
        *,
        layers: Mapping[str, Mapping[str, str]] | None = None,
        memory: int = MEMORY,
    ) -> Answer:
        """One life in a new instance, with these messages to read."""
        self._frames = [messages.encode(message) for message in sent]
        self._taken = {1: bytearray(), 2: bytearray(), 3: bytearray()}
        store = self._wasmtime.Store(self._engine)
        store.set_wasi(self._wasmtime.WasiConfig())
        store.set_limits(memory_size=memory)
        instance = self._linker.instantiate(store, self._component)
        returned: list[str] = []
        trap = None
        try:
            for name, request in (("load", {"files": files, "layers": layers or {}}), ("call", {"home": "/home"})):
                function: Any = instance.get_func(store, name)
                returned.append(function(store, json.dumps(request)))
                function.post_return(store)
        except (self._wasmtime.WasmtimeError, self._wasmtime.ExitTrap) as error:
            trap = str(error)
        return Answer(
            messages=_messages(bytes(self._taken[3])), out=bytes(self._taken[1]), err=bytes(self._taken[2]), returned=returned, trap=trap
        )


def _init(entry: str, layers: Mapping[str, Any], environment: Mapping[str, str]) -> messages.Init:
    return messages.Init(
        bundle="sha256:none",
        root="/bundle",
        entry=entry,
        layers=[f"/layers/{name}" for name in layers],
        tool=None,
        declaration=None,
        environment={"LANG": "C.UTF-8", "TZ": "UTC", **environment},
        bounds={},
    )


def _messages(data: bytes) -> list[Sent]:
    """The whole frames among the bytes, each judged as the engine would."""
    found: list[Sent] = []
    while data:
        length = int.from_bytes(data[:4], "big")
        payload, data = data[4 : 4 + length], data[4 + length :]
        found.append(messages.decode(memoryview(payload), messages.FROM_WORKER[payload[1]]))
    return found
