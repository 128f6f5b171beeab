"""The life of one child: one ``Init``, then one ``Describe`` or one ``Call``, one answer, exit; or as many calls as ``Init`` says.

Its job: import the tool, say that it is ready, run it once, send exactly one terminal frame.
Not its job: the wall (it stands before this file's first line), checks (whatever is sent is checked by the host again).
Laws:
1. Every way a tool can end becomes one terminal frame or none; never two (tests/contract/test_endings.py).
2. Nothing that the host relies on is held here: tool code may read and change all of this process
   (tests/security/test_promise_checked.py).
"""

import os
import select
import sys
from _thread import RLock
from collections.abc import Callable
from typing import Any

from engine.authoring import convert, http
from engine.authoring.tool import Tool
from engine.errors import DeclarationError, EngineError
from guest import describe, hostcalls, loader, wire
from guest.hostcalls import Link

_TEXT = 2000  # characters of an exception's message that are worth sending
_TRACE = 32 << 10  # characters of a trace: well below what stderr may hold
_CAUSES = 8
LAST_WORDS = wire.pack(wire.FAILURE, ["exception", "MemoryError", ""])  # made while there is memory for it


class Channel:
    """Frames over the child's end of the channel, with blocking reads and writes."""

    def __init__(self, descriptor: int, codec: wire.Codec) -> None:
        self._descriptor, self._codec = descriptor, codec
        self._reader = wire.Reader()
        self._lock = RLock()  # a frame of another thread's would stand in the middle of one that the host takes in parts

    def send(self, number: int, fields: list[Any]) -> None:
        """Write one whole frame. Raises ValueError when the fields are not plain data."""
        frame = memoryview(self._codec.pack(number, fields))
        with self._lock:
            while frame:
                frame = frame[os.write(self._descriptor, frame) :]

    def send_last_words(self) -> None:
        """Say that memory ran out, when there is none left to say it with."""
        os.write(self._descriptor, LAST_WORDS)

    def receive(self, *, wait: bool) -> tuple[int, list[Any]] | None:
        """The next frame from the host; a host that is gone ends this process."""
        while (payload := self._reader.next()) is None:
            if not wait and not self._readable():
                return None
            data = os.read(self._descriptor, 1 << 16)
            if not data:
                os._exit(0)
            self._reader.feed(data)
        number, *fields = self._codec.unpack_own(payload)
        return number, fields

    def _readable(self) -> bool:
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        return bool(poll.poll(0))


def serve(descriptor: int, codec: wire.Codec, home: str, folders: loader.Folders, learnt: list[Tool[..., Any]] | None = None) -> None:
    """Be the worker of one call, or of as many as ``Init`` says; returns when the last terminal frame is written.

    The environment is empty before. ``learnt`` are the tools when this process comes from one that imported them, and its environment.
    """
    serve_over(Channel(descriptor, codec), home, folders, learnt)


def serve_over(link: Link, home: str, folders: loader.Folders, learnt: list[Tool[..., Any]] | None) -> None:
    """The same over whatever leads to the host: a guest of another kind of wall has no descriptors."""
    before, http.door = http.door, hostcalls.closed
    try:
        _live(link, home, folders, learnt)
    finally:
        http.door = before  # the process of a rehearsal goes on


def _live(link: Link, home: str, folders: loader.Folders, learnt: list[Tool[..., Any]] | None) -> None:
    number, fields = _next(link)
    if number != wire.INIT:
        return
    if learnt is not None:
        _move(home, fields[6])
    tools = _imported(link, fields, home, folders) if learnt is None else learnt
    if tools is None:
        return
    link.send(wire.READY, [describe.digest(tools)])
    for _ in range(fields[-1].get("calls", 1)):
        number, asked = _asked(link)
        if number != wire.CALL:
            link.send(wire.DECLARATIONS, [describe.declarations(tools)])
            return
        tool = describe.named(tools, asked[0])
        if tool is None:
            _fail(link, "missing", "LookupError", "the imported source declares no tool of that name")
        else:
            _answer(link, tool, asked[1])


def learn(
    descriptor: int, codec: wire.Codec, home: str, folders: loader.Folders, check: Callable[[], str | None]
) -> list[Tool[..., Any]] | None:
    """Import the tools for all the children of this process; None when that failed, and was told."""
    link = Channel(descriptor, codec)
    number, fields = _next(link)
    if number != wire.INIT:
        return None
    http.door = hostcalls.closed
    tools = _imported(link, fields, home, folders)
    if tools is None:
        return None
    unfit: list[str | None] = []
    if not _guarded(link, "import", lambda: unfit.append(check())):
        return None
    if unfit[0] is not None:
        _fail(link, "import", "RuntimeError", unfit[0])
        return None
    _flush()
    link.send(wire.READY, [describe.digest(tools)])
    return tools


def _imported(link: Link, fields: list[Any], home: str, folders: loader.Folders) -> list[Tool[..., Any]] | None:
    """The tools of the source that ``Init`` names, in the environment that it brings; None when that failed, and was told."""
    _, _, entry, layers, _, expected, environment, _ = fields
    if expected is not None:
        describe.expect_checked()
    for name, value in environment.items():
        os.environ[name] = value
    os.environ["HOME"] = os.environ["TMPDIR"] = home
    tools: list[Tool[..., Any]] = []
    well = _guarded(link, "import", lambda: tools.extend(loader.tools_of(folders.import_entry(entry, layers))))
    return tools if well else None


def _move(home: str, environment: dict[str, str]) -> None:
    """Have a scratch folder of one's own, and the call's environment, where the tool was imported in another's."""
    for name, value in environment.items():
        if os.environ.get(name) != value:  # of a zygote's import it is the same, and writing it would copy pages
            os.environ[name] = value
    os.environ["HOME"] = os.environ["TMPDIR"] = home
    if (tempfile := sys.modules.get("tempfile")) is not None:
        vars(tempfile)["tempdir"] = None  # found out at its first use, which may have been then


def _asked(link: Link) -> tuple[int, list[Any]]:
    """What is to be done next. A reply that an earlier call did not wait for is nobody's."""
    number, fields = _next(link)
    while number in (wire.HOST_REPLY, wire.CANCEL):
        number, fields = _next(link)
    return number, fields


def forget_environment() -> None:
    """Empty the environment, the process's own copy included; what a call is given comes with its ``Init``."""
    os.environ.clear()


def _answer(link: Link, tool: Tool[..., Any], arguments: dict[str, Any]) -> None:
    held: list[Any] = []
    calls = hostcalls.Calls(link)
    http.door = calls.ask
    try:
        if _guarded(link, "exception", lambda: held.append(_run(calls, tool, arguments))):
            _flush()
            _guarded(link, "exception", lambda: _deliver(link, held.pop()))  # properties and models of the tool's run while it is converted
    finally:
        http.door = hostcalls.closed
        calls.end()


def _deliver(link: Link, value: Any) -> None:
    try:
        link.send(wire.RESULT, [value])  # most results are plain data already
        return
    except ValueError:
        data = convert.to_data(value)
    try:
        link.send(wire.RESULT, [data])
    except ValueError as problem:  # plain data, but more of it than the wire takes
        _fail(link, "not_data", "ValueError", _text(problem))


def _run(calls: hostcalls.Calls, tool: Tool[..., Any], arguments: dict[str, Any]) -> Any:
    link, given = calls.link, convert.arguments_for(tool, arguments)
    if (parameter := tool.declaration["context"]) is not None:
        given[parameter] = hostcalls.GuestContext(calls)
    value = tool.function(**given)
    if hasattr(value, "__anext__"):
        import asyncio

        return asyncio.run(_stream_async(link, value))
    if hasattr(value, "__await__"):
        import asyncio

        return asyncio.run(_wait(value))
    return _stream(link, value) if tool.declaration["streams"] else value


async def _wait(value: Any) -> Any:
    return await value


def _stream(link: Link, generator: Any) -> Any:
    while True:
        try:
            partial = next(generator)
        except StopIteration as end:
            return end.value
        link.send(wire.PARTIAL, [convert.to_data(partial)])


async def _stream_async(link: Link, generator: Any) -> None:
    async for partial in generator:
        link.send(wire.PARTIAL, [convert.to_data(partial)])


def _guarded(link: Link, kind: str, act: Callable[[], object]) -> bool:
    """Do it; whatever the tool raises becomes the terminal frame, and false is returned."""
    try:
        act()
        return True
    except convert.NotData as problem:
        _fail(link, "not_data", "NotData", _text(problem))
    except SystemExit as end:
        _fail(link, "exit", "SystemExit", _text(end))
    except BaseException as error:  # the tool may raise anything, on purpose
        kind = "declaration" if kind == "import" and isinstance(error, DeclarationError) else kind
        try:
            _forget(error)
            _trace(error)
            _fail(link, kind, _name(error), _text(error))
        except MemoryError:
            link.send_last_words()
    return False


def _forget(error: BaseException) -> None:
    """When memory ran out, let go of what the tool's frames hold of it: nobody will look at them again."""
    trace = error.__traceback__ if isinstance(error, MemoryError) else None
    while trace is not None:
        try:
            trace.tb_frame.clear()
        except RuntimeError:
            pass  # one of ours, still running
        trace = trace.tb_next


def _fail(link: Link, kind: str, name: str, message: str) -> None:
    _flush()
    link.send(wire.FAILURE, [kind, name, message])


def _name(error: BaseException) -> str:
    """The class's own name; a metaclass of the tool's may answer otherwise, or raise."""
    name: str = type.__dict__["__name__"].__get__(type(error))
    return name[:200].encode("utf-8", "replace").decode()


def _text(error: BaseException) -> str:
    """The message of an exception whose ``__str__`` may raise, lie or hold what cannot be encoded."""
    try:
        text = "\n".join(error.lines) if isinstance(error, EngineError) else str(error)
        return text[:_TEXT].encode("utf-8", "replace").decode()
    except BaseException:
        return "(its message could not be read)"


def _trace(error: BaseException) -> None:
    """The trace as the tool's author sees it, without the guest's own frames, on the captured stderr."""
    try:
        import traceback

        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None and _ours(trace.tb_frame.f_code.co_filename):
            trace = trace.tb_next
        _shorten(error)
        shown = traceback.TracebackException(type(error), error, trace, limit=-20, compact=True)
        left = _TRACE
        for line in shown.format():
            left -= sys.stderr.write(line[: min(left, 4000)])
    except BaseException as failure:
        os.write(2, f"(no trace: {type(failure).__name__})\n"[:200].encode("utf-8", "replace"))


def _shorten(error: BaseException) -> None:
    """Cut a chain of causes behind its first few: it was raised to us, so nobody misses the rest."""
    for _ in range(_CAUSES):
        following = error.__cause__ or error.__context__
        if following is None:
            return
        error = following
    error.__cause__ = error.__context__ = None


def _ours(file: str) -> bool:
    return "/guest/" in file or file.startswith("<frozen importlib") or "/importlib/" in file


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BaseException:  # noqa: S112 - the tool broke its own output: its answer still counts
            continue


def _next(link: Link) -> tuple[int, list[Any]]:
    frame = link.receive(wait=True)
    assert frame is not None  # noqa: S101 - a type fact: waiting never returns None
    return frame
