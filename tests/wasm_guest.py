"""A guest of the WebAssembly image in this process: no jail and no engine, only frames in and frames out.

``component`` gives the image, built once per machine; ``Guest`` instantiates it anew for each call, as a worker's child does.
"""

import dataclasses
import functools
import hashlib
import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import platformdirs
import pytest

from engine.wire import messages

PROJECT = Path(__file__).resolve().parents[1]
IMAGES = PROJECT / "worker_images"
_INPUTS = ("python_wasm/*", "guest/*.py", "rehearsal/*.py")
MEMORY = 128 << 20
Sent = messages.FromWorker


def inputs() -> list[Path]:
    """Every file that the image is made of."""
    found = [path for pattern in _INPUTS for path in IMAGES.glob(pattern) if path.is_file()]
    carried = [PROJECT / "engine/__init__.py", PROJECT / "engine/errors.py", *(PROJECT / "engine/authoring").glob("*.py")]
    return sorted([*found, *carried])


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


@functools.cache
def component() -> Path:
    """The image of these files; a skip that says so where it cannot be built."""
    key = hashlib.sha256(b"".join(path.name.encode() + b"\0" + path.read_bytes() for path in inputs())).hexdigest()[:32]
    place = cache() / f"{key}.wasm"
    if not place.exists():
        build(spec(place))
    return place


def cache() -> Path:
    """Where what takes long to make is kept between runs of the suite."""
    folder = platformdirs.user_cache_path("stockade") / "tests"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def build(told: Mapping[str, Any]) -> dict[str, Any]:
    """Run the builder; gives the facts that it wrote."""
    python = builder()
    out = Path(told["out"])
    with tempfile.TemporaryDirectory(dir=cache()) as folder:
        written, made = Path(folder) / "spec.json", Path(folder) / "made.wasm"
        written.write_text(json.dumps({**told, "out": str(made)}))
        program = [python, str(IMAGES / "python_wasm/build.py"), str(written)]
        done = subprocess.run(program, capture_output=True, text=True, timeout=600, env={"PYTHONHASHSEED": "0"}, check=False)
        assert done.returncode == 0, done.stderr
        facts: dict[str, Any] = json.loads(Path(f"{made}.json").read_bytes())
        made.rename(out)
        Path(f"{out}.json").write_text(json.dumps(facts))
    return facts


@functools.cache
def builder() -> str:
    """An interpreter with componentize-py in the pinned version; a skip where it cannot be had."""
    pins = IMAGES / "python_wasm/requirements.txt"
    folder = cache() / f"builder-{hashlib.sha256(pins.read_bytes()).hexdigest()[:16]}-{sys.version_info[0]}.{sys.version_info[1]}"
    python = folder / "bin/python"
    if not (folder / "complete").exists():
        pip = ["-m", "pip", "install", "--quiet", "--require-hashes", "--only-binary=:all:", "--no-deps", "-r", str(pins)]
        for command in ([sys.executable, "-m", "venv", str(folder)], [str(python), *pip]):
            done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
            if done.returncode:
                pytest.skip(f"unproven: the builder of the WebAssembly image cannot be had: {done.stderr.strip()[-300:]}")
        (folder / "complete").touch()
    return str(python)


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

    def __init__(self, image: Path) -> None:
        wasmtime = pytest.importorskip("wasmtime", reason="unproven: wasmtime is not installed")
        import wasmtime.component as parts

        self._wasmtime, self._parts = wasmtime, parts
        config = wasmtime.Config()
        config.wasm_component_model = True
        self._engine = wasmtime.Engine(config)
        self._component = self._compiled(image)
        self._linker = parts.Linker(self._engine)
        self._linker.add_wasip2()
        with self._linker.root() as root, root.add_instance("stockade:worker/host") as host:
            host.add_func("emit", lambda _store, kind, data: self._emit(kind, data))
            host.add_func("call", lambda _store, request: self._call(request))

    def _compiled(self, image: Path) -> Any:
        place = image.with_suffix(f".{importlib.metadata.version('wasmtime')}.cwasm")
        if not place.exists():
            with tempfile.NamedTemporaryFile(dir=place.parent, delete=False) as file:
                file.write(self._parts.Component.from_file(self._engine, str(image)).serialize())
            os.rename(file.name, place)
        return self._parts.Component.deserialize_file(self._engine, str(place))

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
