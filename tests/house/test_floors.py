"""Floors: who may import whom, in one table.

A file imports from rows above its own and from its own folder, never sideways, never from below, never from the package root.
The jailed side and the host side do not import each other, except for the authoring files that the guest carries as ``engine``.
"""

import sys
from pathlib import Path

import pytest

from tests.house.reading import PROJECT, Import, Source, imports, sources, within, write

# Each row is a floor, lowest first; "name/" is a folder, "name.py" a file of engine/ itself.
FLOORS: tuple[tuple[str, ...], ...] = (
    ("errors.py", "outcome.py", "limits.py", "places.py", "events.py"),
    ("authoring/",),  # the guest carries these and errors.py, nothing else
    ("declaration.py", "checking.py", "matching.py", "misfits.py", "spelling.py", "encodings.py"),
    ("policy/",),
    ("staging/",),
    ("wire/",),
    ("jail/",),
    ("worker/", "images/"),
    ("supervision/", "egress/", "results/"),
    (
        *("call.py", "leaving.py", "outward.py", "secrecy.py", "concluding.py", "streaming.py", "underway.py"),
        *("loading.py", "preparing.py", "describing.py", "state.py", "launchers.py", "host.py"),
    ),
    ("runtime/",),
    ("cells/",),
    ("attack/", "batch/"),
    ("faces/", "adapters/", "fleet/"),
    ("__main__.py",),
)
FIRST_WITH_TRIO = "worker/"
# decisions below it stay pure, so that they can be tested without a clock or a loop

STANDARD = sys.stdlib_module_names | {"_sha2", "annotationlib"}  # the last two came with 3.12 and 3.14
CARRIED = ("engine.errors", "engine.authoring")
STANDARD_ONLY = {"errors.py", "outcome.py", "limits.py", "places.py", "events.py", "authoring/"}

# folder below worker_images -> what it may import besides the standard library and its own files
JAILED: dict[str, tuple[str, ...]] = {
    "enter": ("guest",),  # loaded before any jail is made, so that every child finds it
    "guest": CARRIED,
    "checker": ("enter", "engine"),  # a process of the host's own, which locks itself as jails do: it runs the engine's checks
    "attacks": ("engine",),  # staged like any tool, so `engine` is the authoring package there
    "demo": ("engine",),  # likewise
    "selfcheck": ("engine",),  # likewise
    "rehearsal": ("engine",),  # imported as one, in the launcher, before any order
    "wasm": ("wasmtime", "msgpack", "enter", "guest"),  # a launcher like the native one, with another runtime
    "packages": ("packaging", "pyodide_build", "pyodide_lock"),  # runs in an environment of the image builder's, never in a jail
    "publish": ("enter", "wasm", "build", "componentize_py"),  # a builder's program that locks itself; ``build`` is python_wasm's
    "python_wasm": ("guest", *CARRIED, "wit_world", "componentize_py"),  # the last two are the builder's, and what it makes
}


def unit(name: str) -> str:
    """The table's word for a file of engine/: its folder, or the file itself."""
    inside = name.removeprefix("engine/")
    return inside.split("/")[0] + "/" if "/" in inside else inside


def floor_of(word: str) -> int | None:
    """The row a folder or file stands in; None when the table does not know it."""
    return next((row for row, words in enumerate(FLOORS) if word in words), None)


def _target_unit(found: Import) -> str | None:
    """The table's word for what an import of engine reaches; None for the root itself or a name of it."""
    parts = found.full.split(".")
    for word in (parts[1] + "/", parts[1] + ".py") if len(parts) > 1 else ():
        if floor_of(word) is not None:
            return word
    return None


def _host_problem(source: Source, found: Import) -> str | None:
    own = unit(source.name)
    floor, top = floor_of(own), found.target.split(".")[0]
    if floor is None:
        return "has no floor: give it a row in the table"
    if top in {"worker_images", *JAILED}:
        return f"imports {found.full}: the host side never imports the jailed side"
    if top == "trio" and floor < (floor_of(FIRST_WITH_TRIO) or 0):
        return f"imports trio below the floor of {FIRST_WITH_TRIO}"
    if own in STANDARD_ONLY and top != "engine" and top not in STANDARD:
        return f"imports {found.full}: this floor is standard library only"
    if own == "authoring/" and top == "engine" and not any(within(found.full, carried) for carried in CARRIED):
        return f"imports {found.full}: the guest does not carry it"
    return _engine_problem(own, floor, found) if top == "engine" else None


def _engine_problem(own: str, floor: int, found: Import) -> str | None:
    target = _target_unit(found)
    if target is None:
        return f"imports {found.full}: the package root, or something without a floor"
    other = floor_of(target)
    assert other is not None
    if other > floor:
        return f"imports {found.full}: up"
    if other == floor and target != own and (target.endswith("/") or own.endswith("/")):
        return f"imports {found.full}: sideways"
    return None


def _jailed_problem(source: Source, found: Import) -> str | None:
    folder = source.name.split("/")[1]
    if folder not in JAILED:
        return "is in a folder that the table does not know"
    top = found.target.split(".")[0]
    if top in STANDARD or top == folder or any(within(found.full, allowed) for allowed in JAILED[folder]):
        return None
    return f"imports {found.full}: {folder} may not import it"


def floor_problems(root: Path) -> list[str]:
    """One line for each import of the tree that breaks the rules, and for each file that has no floor."""
    problems = []
    for source in sources(root, "engine"):
        if source.name != "engine/__init__.py":  # the root's lazy names may reach any floor; nobody inside imports the root
            if floor_of(unit(source.name)) is None:
                problems.append(f"{source.name} has no floor: give it a row in the table")
            else:
                problems += [f"{source.name}:{found.line} {text}" for found in imports(source) if (text := _host_problem(source, found))]
    for source in sources(root, "worker_images"):
        problems += [f"{source.name}:{found.line} {text}" for found in imports(source) if (text := _jailed_problem(source, found))]
    return problems


def test_every_file_keeps_to_its_floor() -> None:
    """No file of the project imports upwards, sideways, from the package root or across the wall."""
    assert not (found := floor_problems(PROJECT)), "\n".join(found)


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("engine/policy/a.py", "from engine.worker import native", "engine/policy/a.py:1 imports engine.worker.native: up"),
        ("engine/policy/a.py", "def f():\n    from ..call import x", "engine/policy/a.py:2 imports engine.call.x: up"),
        ("engine/egress/a.py", "import engine.results.redact as r", "engine/egress/a.py:1 imports engine.results.redact: sideways"),
        (
            "engine/call.py",
            "from engine import tool",
            "engine/call.py:1 imports engine.tool: the package root, or something without a floor",
        ),
        ("engine/call.py", "import engine", "engine/call.py:1 imports engine: the package root, or something without a floor"),
        ("engine/odd.py", "", "engine/odd.py has no floor: give it a row in the table"),
        ("engine/call.py", "from guest import wire", "engine/call.py:1 imports guest.wire: the host side never imports the jailed side"),
        ("engine/jail/a.py", "import trio", "engine/jail/a.py:1 imports trio below the floor of worker/"),
        ("engine/limits.py", "import msgpack", "engine/limits.py:1 imports msgpack: this floor is standard library only"),
        (
            "engine/authoring/a.py",
            "from engine import outcome",
            "engine/authoring/a.py:1 imports engine.outcome: the guest does not carry it",
        ),
        (
            "worker_images/guest/a.py",
            "from engine import outcome",
            "worker_images/guest/a.py:1 imports engine.outcome: guest may not import it",
        ),
        (
            "worker_images/enter/a.py",
            "from attacks import files",
            "worker_images/enter/a.py:1 imports attacks.files: enter may not import it",
        ),
        ("worker_images/new/a.py", "import os", "worker_images/new/a.py:1 is in a folder that the table does not know"),
    ],
)
def test_an_import_across_floors_is_reported(tmp_path: Path, name: str, text: str, problem: str) -> None:
    """Each rule names the file, the line and what is wrong."""
    assert floor_problems(write(tmp_path, **{name: text})) == [problem]


def test_imports_that_keep_to_the_floors_are_not_reported(tmp_path: Path) -> None:
    """The control: lower floors, the own folder, files of one row beside each other, trio from the workers up."""
    tree = {
        "engine/policy/a.py": "from engine import errors, limits\nfrom engine.policy import b\nimport tomllib",
        "engine/host.py": "from engine import call\nfrom engine.egress.relay import Relay\nimport trio",
        "engine/authoring/a.py": "import _sha2\nfrom engine import errors\nfrom engine.authoring import strict",
        "worker_images/guest/main.py": "import os\nfrom engine.authoring.tool import Tool\nfrom guest import wire",
        "worker_images/enter/a.py": "from enter import kernel\nfrom guest import wire\nfrom guest.wire import decode",
    }
    assert floor_problems(write(tmp_path, **tree)) == []
