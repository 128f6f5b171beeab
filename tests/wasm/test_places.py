"""What a tool sees of the interpreter around it: a native jail's places, and nothing of the build."""

import re

from engine.wire import messages
from tests import wasm_guest

LOOK = """
import gc, sys, types
from engine import tool

@tool(effect="read", description="One of a test.")
def places() -> list[str]:
    found = set()
    for one in gc.get_objects() + list(sys.modules.values()):
        if isinstance(one, types.FunctionType):
            found.add(one.__code__.co_filename)
        if isinstance(one, types.ModuleType):
            spec = getattr(one, "__spec__", None)
            found.update(str(place) for place in (getattr(one, "__file__", None), getattr(spec, "origin", None)) if place)
            found.update(map(str, getattr(one, "__path__", None) or ()))
    return sorted(found)

@tool(effect="read", description="One of a test.")
def interpreter() -> list[object]:
    import os
    said = [sys.executable, sys.argv, sys.orig_argv, sys.prefix, sys.exec_prefix, sys.path, dict(os.environ)]
    return [*said, sys.dont_write_bytecode, list(vars(sys.modules["__main__"]))[:2]]

@tool(effect="read", description="One of a test.")
def fails() -> None:
    try:
        open("/nowhere")
    except OSError as error:
        raise LookupError("none") from error

@tool(effect="read", description="One of a test.")
def left_over() -> list[str]:
    return [name for name in sys.modules if name.split(".")[0] in ("sample", "stockade", "build", "steady")]
"""
SEEN = re.compile(r"/(?:python/lib/python3\.14|guest|bundle)(?:/|$)|built-in$|frozen$|<(?:frozen [\w.]+|string|template)>$|<.*>$")


def ask(guest: wasm_guest.Guest, tool: str) -> object:
    """The tool's value."""
    last = guest.call({"tools.py": LOOK}, tool, {}, environment={"A": "b"}).last
    assert isinstance(last, messages.Result), last
    return last.value


def test_every_place_is_one_of_a_native_jail(guest: wasm_guest.Guest) -> None:
    """No function, module, spec or path says where the image was made."""
    places = ask(guest, "places")
    assert isinstance(places, list)
    assert [place for place in places if not SEEN.match(place)] == []
    assert {"/guest/guest/main.py", "/guest/python_wasm/shim.py", "/python/lib/python3.14/json/__init__.py", "/bundle/tools.py"} <= set(
        places
    )


def test_the_interpreter_says_what_a_native_child_says(guest: wasm_guest.Guest) -> None:
    """Paths, arguments and an environment of what Init brings."""
    environment = {"LANG": "C.UTF-8", "TZ": "UTC", "A": "b", "HOME": "/home", "TMPDIR": "/home"}
    path = ["/python/lib/python3.14", "/bundle", "/packages"]
    assert ask(guest, "interpreter") == ["", [""], [], "/python", "/python", path, environment, True, ["__name__", "__doc__"]]


def test_the_rehearsal_left_nothing(guest: wasm_guest.Guest) -> None:
    """Neither its tool nor the builder's modules."""
    assert ask(guest, "left_over") == []


def test_a_trace_shows_the_tools_frames_alone(guest: wasm_guest.Guest) -> None:
    """The same text as a native worker's: the functions that stand in for ``open`` and its like are not in it."""
    err = guest.call({"tools.py": LOOK}, "fails", {}).err.decode()
    assert re.findall(r'File "([^"]+)", line (\d+), in (\w+)\n    (.*)', err) == [
        ("/bundle/tools.py", "26", "fails", 'open("/nowhere")'),
        ("/bundle/tools.py", "28", "fails", 'raise LookupError("none") from error'),
    ]
