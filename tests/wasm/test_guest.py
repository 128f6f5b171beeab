"""The guest's program behind the two functions of its host: frames, ends, sizes."""

import contextlib

import pytest

from engine.wire import messages
from guest import wire
from python_wasm import link
from tests import wasm_guest

SOURCE = {
    "tools.py": """
import os, sys
from typing import Any
from engine import Context, tool

@tool(effect="read", description="One of a test.")
def echo(text: str) -> str:
    return text

@tool(effect="read", description="One of a test.")
def run(code: str, context: Context) -> Any:
    scope = {"context": context, "os": os, "sys": sys}
    exec(code, scope)
    return scope.get("value")
"""
}


def run(guest: wasm_guest.Guest, code: str, **more: object) -> wasm_guest.Answer:
    """What a text does that is run as a tool."""
    return guest.call(SOURCE, "run", {"code": code}, **more)  # type: ignore[arg-type]  # only the tests below use it


def test_a_life_is_ready_and_one_answer(guest: wasm_guest.Guest) -> None:
    """The first frame proves the declarations, the last is the answer, and the exports say nothing is wrong."""
    answer = guest.call(SOURCE, "echo", {"text": "é😀"})
    assert [type(message).__name__ for message in answer.messages] == ["Ready", "Result"]
    assert (answer.last, answer.returned, answer.trap) == (messages.Result(value="é😀"), ["", ""], None)


@pytest.mark.parametrize("text", ["x" * 1_000_000, "é" * 500_000, "😀" * 250_000], ids=["ascii", "latin", "wide"])
def test_a_megabyte_goes_in_and_out(guest: wasm_guest.Guest, text: str) -> None:
    """Whole, whatever its characters are."""
    assert guest.call(SOURCE, "echo", {"text": text}).last == messages.Result(value=text)


def test_a_long_frame_crosses_in_pieces(guest: wasm_guest.Guest, monkeypatch: pytest.MonkeyPatch) -> None:
    """None is longer than its bound, and together they are the frame."""
    sizes: list[int] = []
    take = guest._emit

    def emit(kind: int, data: str) -> None:
        sizes.append(len(data))
        take(kind, data)

    monkeypatch.setattr(guest, "_emit", emit)
    assert run(guest, "value = 'é' * 1_500_000").last == messages.Result(value="é" * 1_500_000)
    assert (max(sizes), sum(sizes) > 3_000_000) == (1 << 20, True)


@pytest.mark.parametrize(("failing", "after"), [(1, ["told"]), (2, [])])
def test_nothing_follows_a_part_of_a_frame(failing: int, after: list[str]) -> None:
    """Where memory runs out behind the first piece the channel is as good as closed; before it there is still an answer."""
    taken: list[str] = []
    calls = iter(range(1, 9))

    def emit(kind: int, data: str) -> None:
        if next(calls) == failing:
            raise MemoryError
        taken.append(data)

    to_host = link.HostLink(wire.Codec(), emit, lambda request: "")
    with pytest.raises(MemoryError):
        to_host.send(wire.RESULT, ["x" * (3 << 20)])
    before = len(taken)
    with contextlib.suppress(link.Gone):
        to_host.send(wire.RESULT, ["told"])
    with contextlib.suppress(link.Gone):
        to_host.send_last_words()
    assert [text[-4:] for text in taken[before:]][:1] == after


def test_a_description_has_the_digest_that_ready_proves(guest: wasm_guest.Guest) -> None:
    """The declarations are those that a call's Ready speaks of."""
    init = messages.Init(bundle="b", root="/bundle", entry="tools", layers=[], tool=None, declaration=None, environment={}, bounds={})
    answer = guest.live(SOURCE, [init, messages.Describe()])
    assert [type(message).__name__ for message in answer.messages] == ["Ready", "Declarations"]
    assert answer.messages[0] == guest.call(SOURCE, "echo", {"text": ""}).messages[0]


def test_a_reply_reaches_the_tool(guest: wasm_guest.Guest) -> None:
    """A nested call waits for the host's reply; what is not there yet is not waited for."""
    code = "value = [context.cancelled, context.call('other', {'a': 1}), context.cancelled]"
    answer = run(guest, code, replies=[messages.HostReply(number=1, ok=True, value=[1])])
    assert answer.messages[1:] == [
        messages.HostCall(number=1, name="other", arguments={"a": 1}),
        messages.Result(value=[False, [1], False]),
    ]


def test_a_channel_that_closes_ends_the_program(guest: wasm_guest.Guest) -> None:
    """No answer and no trap: there is nobody to tell."""
    answer = run(guest, "context.call('other')")
    assert [type(message).__name__ for message in answer.messages] == ["Ready", "HostCall"]
    assert (answer.returned, answer.trap) == (["", ""], None)


BOMBS = {
    "at once": "value = len(bytes(1 << 30))",
    "bit by bit": "held = []\nwhile True: held.append(bytes(1 << 20))",
    "by a text": "held = 'x'\nwhile True: held += held",
}
TRAPS = {
    "a stack": "sys.setrecursionlimit(10**9)\ndef f(): return f()\nf()",
    "an exit": "os._exit(3)",
    "an abort": "os.abort()",
}


@pytest.mark.parametrize("code", BOMBS.values(), ids=BOMBS)
def test_memory_that_runs_out_is_an_answer(guest: wasm_guest.Guest, code: str) -> None:
    """The limit of the instance's memory is the tool's MemoryError; below it the same text would do."""
    assert run(guest, code, memory=96 << 20).last == messages.Failure(kind="exception", type="MemoryError", message="")
    assert run(guest, "value = len(bytes(1 << 24))", memory=96 << 20).last == messages.Result(value=1 << 24)


def test_recursion_ends_as_an_error(guest: wasm_guest.Guest) -> None:
    """At Python's own limit, well before the stack ends."""
    last = run(guest, "def f(): return f()\nf()").last
    assert isinstance(last, messages.Failure)
    assert last.type == "RecursionError"


@pytest.mark.parametrize("code", TRAPS.values(), ids=TRAPS)
def test_what_ends_the_instance_gives_no_answer(guest: wasm_guest.Guest, code: str) -> None:
    """A stack that is used up, an exit past Python: a trap, and the next instance works."""
    answer = run(guest, code, memory=512 << 20)
    assert answer.trap is not None
    assert [type(message).__name__ for message in answer.messages] == ["Ready"]
    assert run(guest, "value = 1").last == messages.Result(value=1)


def test_a_forged_frame_looks_like_a_native_one(guest: wasm_guest.Guest) -> None:
    """The channel has the number that it has in a native worker."""
    code = "os.write(3, sys.modules['guest.wire'].pack(23, ['forged']))"
    assert run(guest, code).messages[1:] == [messages.Result(value="forged"), messages.Result(value=None)]
