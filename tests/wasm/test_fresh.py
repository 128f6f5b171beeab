"""Instances of one image have nothing in common that a tool could tell, but the seed of its hashes."""

from typing import Any

from engine.wire import messages
from tests import wasm_guest

SOURCE = {
    "tools.py": """
import logging, os, random, secrets, tempfile, time, uuid
from typing import Any
from engine import tool

@tool(effect="read", description="One of a test.")
def chance() -> list[str]:
    names = next(tempfile._get_candidate_names())
    return [str(random.random()), str(uuid.uuid4()), str(uuid.uuid1().node), secrets.token_hex(8), os.urandom(8).hex(), names]

@tool(effect="read", description="One of a test.")
def hashed() -> int:
    return hash("a text")

@tool(effect="read", description="One of a test.")
def clocks() -> list[Any]:
    record = logging.LogRecord("", 0, "", 0, "", (), None)
    return [time.time(), record.relativeCreated]

@tool(effect="read", description="One of a test.")
def pages() -> int:
    made = [object() for _ in range(4000)]
    return len({id(one) >> 12 for one in made})
"""
}


def ask(guest: wasm_guest.Guest, tool: str) -> Any:
    """The tool's value."""
    last = guest.call(SOURCE, tool, {}).last
    assert isinstance(last, messages.Result), last
    return last.value


def test_instances_share_no_chance(guest: wasm_guest.Guest) -> None:
    """Every source of randomness differs, the module's own generator included, although it was seeded in the image."""
    drawn = [ask(guest, "chance") for _ in range(3)]
    assert all(len(set(values)) == 3 for values in zip(*drawn, strict=True))


def test_the_seed_of_hashes_is_the_images(guest: wasm_guest.Guest) -> None:
    """One call cannot learn from another's; a tool's own dictionaries are its own affair."""
    assert len({ask(guest, "hashed") for _ in range(3)}) == 1


def test_clocks_begin_with_the_instance(guest: wasm_guest.Guest) -> None:
    """The wall clock goes on, and what counts from the start of a program counts from the call's."""
    first, second = ask(guest, "clocks"), ask(guest, "clocks")
    assert first[0] < second[0]
    assert 0 <= second[1] < 1000 * 3600


def test_what_an_instance_makes_lies_together(guest: wasm_guest.Guest) -> None:
    """On little more than the pages that it fills (4000 objects of 16 bytes and their heads), not in holes all over the image."""
    assert ask(guest, "pages") < 60
