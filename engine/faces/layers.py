"""``stockade layer``: installed dependencies, added from pinned wheels, listed, verified, removed.

Its job: from a requirements file to a layer in the state folder, and what is there, as text and data.
Not its job: fetching (``images/fetch.py``), checking and keeping (``staging/layers.py``), granting a layer to a tool (a policy).
Laws:
1. A layer is never put where it would be gone when the command ends (tests/e2e/test_cli_layer.py).
2. Native code needs ``--native``, each time (tests/e2e/test_cli_layer.py).
"""

import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from engine.errors import EngineError, HostError
from engine.faces.printing import Answer, Printer, table
from engine.images import fetch
from engine.outcome import error_for
from engine.places import data_dir
from engine.staging import layers
from engine.staging.layers import Layer, NativeCode
from engine.state import open_state


def add(
    printer: Printer, requirements: str, name: str | None, native: NativeCode, state_dir: str | None, environment: Mapping[str, str]
) -> Answer:
    """Fetch the pinned wheels with pip, which sees only ``environment``, and make a layer. Raises refused.layer or refused.storage."""
    file = Path(requirements)
    called = name or file.stem.lower().replace("_", "-").replace(".", "-")
    with _store(state_dir) as store, tempfile.TemporaryDirectory(prefix="stockade-wheels-") as folder:
        printer.note("fetching the pinned wheels with pip ...")
        fetched = fetch.download_wheels(file, Path(folder) / "wheels", environment=environment)
        printer.note(f"checking and unpacking {len(fetched.wheels)} wheels ...")
        made = layers.add(called, fetched.wheels, fetched.pins, store, native=native)
    grant = f'grant it in a policy: [grants] layers = {{ value = ["{made.name}"], reason = "..." }}'
    return Answer(value=_data(made), text="\n".join([_row_text(made), grant, f'ask for it in a tool: @tool(..., layers=["{made.name}"])']))


def show(state_dir: str | None) -> Answer:
    """The newest layer of each name."""
    with _store(state_dir) as store:
        found = layers.list_layers(store)
    rows = [(layer.name, layer.digest[:19], layer.python, "native" if layer.native else "pure", " ".join(layer.wheels)) for layer in found]
    text = table(("layer", "digest", "python", "code", "wheels"), rows) if rows else "no layers: add one with `stockade layer add`"
    return Answer(value=[_data(layer) for layer in found], text=text)


def verify(name: str | None, state_dir: str | None) -> Answer:
    """Hash every file of one layer, or of all, again; all faults are told at once."""
    problems: list[str] = []
    with _store(state_dir) as store:
        wanted = [layers.find(name, store)] if name else list(layers.list_layers(store))
        for layer in wanted:
            try:
                layers.verify(layer, store)
            except EngineError as error:
                problems += error.lines
    if problems:
        raise error_for("refused.layer", *problems)
    return Answer(
        value=[_data(layer) for layer in wanted],
        text="\n".join(f"{layer.name}: every file is as it was added" for layer in wanted) or "no layers",
    )


def remove(name: str, state_dir: str | None) -> Answer:
    """Forget one layer and remove its content."""
    with _store(state_dir) as store:
        layers.remove(name, store)
    return Answer(value={"removed": name}, text=f"{name} is removed")


@contextlib.contextmanager
def _store(state_dir: str | None) -> Iterator[Path]:
    state = open_state(None if state_dir is None else Path(state_dir), data_dir("policies"))
    try:
        if state.ephemeral:
            raise HostError(
                "refused.storage", "this user has no state folder that can be written: name one with --state-dir, here and with run"
            )
        yield state.stores.layers
    finally:
        state.close()


def _data(layer: Layer) -> dict[str, Any]:
    return {
        "name": layer.name,
        "digest": layer.digest,
        "python": layer.python,
        "native": layer.native,
        "modules": sorted(layer.modules),
        "wheels": list(layer.wheels),
        "dropped": list(layer.dropped),
    }


def _row_text(layer: Layer) -> str:
    code = "native code for" if layer.native else "pure Python for"
    dropped = [f"  left out: {line}" for line in layer.dropped]
    return "\n".join([f"layer {layer.name}: {code} {layer.python}, {len(layer.wheels)} wheels, {layer.digest}", *dropped])
