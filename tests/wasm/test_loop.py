"""The event loop refuses what needs threads or sockets, at once."""

import pytest

from engine.wire import messages
from tests import wasm_guest

SOURCE = {
    "tools.py": """
import asyncio
from typing import Any
from engine import tool

@tool(effect="read", description="One of a test.")
async def told(text: str) -> Any:
    try:
        return await eval(text)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
"""
}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("asyncio.to_thread(len, 'x')", "RuntimeError: can't start new thread"),
        ("asyncio.get_running_loop().run_in_executor(None, len, 'x')", "RuntimeError: can't start new thread"),
        ("asyncio.open_connection('127.0.0.1', 1)", "PermissionError: [Errno 2] Permission denied"),
        ("asyncio.create_subprocess_exec('x')", "NotImplementedError: "),
        ("asyncio.sleep(0.001, 'slept')", "slept"),
    ],
)
def test_what_a_loop_can_do(guest: wasm_guest.Guest, text: str, value: str) -> None:
    """Sleep, and nothing that needs more than one thread."""
    assert guest.call(SOURCE, "told", {"text": text}).last == messages.Result(value=value)
