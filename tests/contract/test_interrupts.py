"""An interrupt, whatever it hits: the program gets one KeyboardInterrupt and nothing else, after the call has ended as given up.

The signal is raised by the code that it is to hit, so that no test waits for the moment.
"""

import contextlib
import gc
import signal
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from engine.call import Call, Emit
from engine.concluding import Conclusion
from engine.egress import vault
from engine.egress.resolver import FixedResolver
from engine.errors import HostError
from engine.events import ToolOutput
from engine.host import Engine
from engine.launchers import Launchers
from engine.outcome import Outcome
from engine.outward import Outward
from engine.supervision.pool import Pool
from engine.supervision.values import Values
from tests import kit, moments
from tests.network import scoped

Use = Callable[[Engine], Awaitable[None]]
SHOWS = moments.HERE + "import time\nwhile True: time.sleep(1000)\n"
ANSWERS = "value = 'done'"


def interrupt() -> None:
    """What Ctrl-C does, to whatever runs now."""
    signal.raise_signal(signal.SIGINT)


def left_of(folder: Path, use: Use, **options: Any) -> tuple[BaseException | None, list[str]]:
    """What comes out of a program that uses an engine, and the reasons on the receipts of its calls; nothing else is left of it."""
    launchers: list[int] = []

    async def program() -> None:
        with trio.fail_after(60):
            async with kit.plain_engine(folder / "state", **options) as engine:
                await engine.load(kit.write(folder / "source", moments.RUN))
                launchers.extend(engine.launcher_pids)
                await use(engine)

    raised: BaseException | None = None
    gc.collect()  # what earlier tests left to it holds descriptors
    before = kit.Belongings.now()
    try:
        trio.run(program)
    except BaseException as error:
        raised = error
    after = kit.Belongings.now()
    cgroups = [cgroup for launcher in launchers for cgroup in kit.cgroups_of(launcher)]
    assert (after.children, after.descriptors, cgroups) == (before.children, before.descriptors, [])
    assert kit.mounts_below(folder / "state") == []
    return raised, [made["verdict"]["reason"] for made in kit.call_receipts(folder / "state")]


async def streaming(engine: Engine, code: str) -> None:
    """Take all that a stream has."""
    async with engine.stream("run", {"code": code}) as items:
        await moments.taken(items)


async def calling(engine: Engine, code: str) -> None:
    """The same tool, in the program's own task."""
    await engine.call("run", {"code": code})


def at_start(patch: pytest.MonkeyPatch) -> None:
    """Interrupt a call before it has asked for a worker."""
    prepared = Call._prepared

    def interrupted(call: Call) -> Any:
        interrupt()
        return prepared(call)

    patch.setattr(Call, "_prepared", interrupted)


def at_showing(patch: pytest.MonkeyPatch, *, after: bool = False) -> None:
    """Interrupt a call when it hands on what its tool shows, just before it does or just after."""
    run = Call.run

    async def interrupted(call: Call, emit: Emit, later: Callable[[Conclusion], None]) -> Outcome:
        async def showing(item: ToolOutput) -> None:
            if not after:
                interrupt()
            await emit(item)
            if after:
                interrupt()

        return await run(call, showing, later)

    patch.setattr(Call, "run", interrupted)


def after_showing(patch: pytest.MonkeyPatch) -> None:
    """Just after."""
    at_showing(patch, after=True)


def at_answer(patch: pytest.MonkeyPatch) -> None:
    """Interrupt a call that has its verdict, before it is handed on."""
    answered = Conclusion.answered

    def interrupted(conclusion: Conclusion) -> bool:
        interrupt()
        return answered(conclusion)

    patch.setattr(Conclusion, "answered", interrupted)


def at_conclusion(patch: pytest.MonkeyPatch) -> None:
    """Interrupt a call that is being buried."""
    run = Conclusion.run

    async def interrupted(conclusion: Conclusion) -> None:
        interrupt()
        await run(conclusion)

    patch.setattr(Conclusion, "run", interrupted)


@pytest.mark.parametrize("use", [streaming, calling])
@pytest.mark.parametrize(
    ("moment", "code", "reason"),
    [
        (at_start, SHOWS, "cancelled.caller"),
        (at_showing, SHOWS, "cancelled.caller"),
        (after_showing, SHOWS, "cancelled.caller"),
        (at_answer, ANSWERS, "ok.done"),
        (at_answer, "os._exit(3)", "crashed.exit"),
        (at_conclusion, ANSWERS, "ok.done"),
        (at_conclusion, "os._exit(3)", "crashed.exit"),
    ],
    ids=["start", "showing", "shown", "answer", "no answer", "burial", "burial without an answer"],
)
def test_one_that_hits_the_engines_steps(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    use: Callable[[Engine, str], Awaitable[None]],
    moment: Callable[[pytest.MonkeyPatch], None],
    code: str,
    reason: str,
) -> None:
    """While the call prepares, shows, has its verdict or is buried, in a task of its own or in the program's: one that has its verdict
    keeps it.
    """

    async def interrupted(engine: Engine) -> None:
        with monkeypatch.context() as patched:
            moment(patched)
            await use(engine, code)
            await trio.sleep_forever()  # the interrupt may come after the call

    raised, reasons = left_of(tmp_path, interrupted)
    assert (type(raised), reasons) == (KeyboardInterrupt, [reason])


@pytest.mark.parametrize("twice", [False, True])
def test_one_that_hits_the_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, twice: bool) -> None:
    """While the program handles an item, and once more while the call is buried because of it: the call was given up."""

    async def interrupted(engine: Engine) -> None:
        async with engine.stream("run", {"code": SHOWS}) as items:
            await anext(items)
            if twice:
                at_conclusion(monkeypatch)
            interrupt()

    raised, reasons = left_of(tmp_path, interrupted)
    assert (type(raised), reasons) == (KeyboardInterrupt, ["cancelled.caller"])


@pytest.mark.parametrize("error", [None, ValueError("of the block")])
def test_one_that_hits_the_end_of_a_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception | None) -> None:
    """While the call of a block that was left early is buried; what the block raised gives way."""

    async def interrupted(engine: Engine) -> None:
        async with engine.stream("run", {"code": SHOWS}) as items:
            await anext(items)
            at_conclusion(monkeypatch)
            if error is not None:
                raise error

    raised, reasons = left_of(tmp_path, interrupted)
    assert (type(raised), reasons) == (KeyboardInterrupt, ["cancelled.caller"])


@pytest.mark.parametrize("own", [ValueError("of the block"), ExceptionGroup("of the block", [ValueError()]), KeyboardInterrupt()])
def test_what_the_block_raises_comes_out_of_it(tmp_path: Path, own: BaseException) -> None:
    """The control, without an interrupt of the engine: the very exception, in no group but its own."""

    async def raising(engine: Engine) -> None:
        async with engine.stream("run", {"code": SHOWS}) as items:
            await anext(items)
            raise own

    raised, reasons = left_of(tmp_path, raising)
    assert (raised is own, reasons) == (True, ["cancelled.caller"])


def unclean(patch: pytest.MonkeyPatch) -> None:
    """Have a call say that something of it would not end, after all of it has."""
    run = Conclusion.run

    async def told(conclusion: Conclusion) -> None:
        await run(conclusion)
        raise HostError("engine_failed.not_clean", "it stays")

    patch.setattr(Conclusion, "run", told)


def test_what_would_not_end_is_told_beside_the_blocks_own_exception(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The block's goes its own way out of the stream; the engine's end tells the other."""
    own, seen = ValueError("of the block"), []

    async def raising(engine: Engine) -> None:
        with contextlib.suppress(ValueError):
            async with engine.stream("run", {"code": SHOWS}) as items:
                await anext(items)
                unclean(monkeypatch)
                raise own
        seen.append("only that")

    raised, _ = left_of(tmp_path, raising)
    assert isinstance(raised, HostError)
    assert (seen, raised.code, raised.lines) == (["only that"], "engine_failed.not_clean", ("it stays",))


@pytest.mark.parametrize("cancelled", [False, True])
def test_what_would_not_end_is_told_at_once_when_nothing_else_was_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cancelled: bool
) -> None:
    """A block that was left early, or cancelled from around it."""
    seen = []

    async def leaving(engine: Engine) -> None:
        try:
            with trio.CancelScope() as scope:
                async with engine.stream("run", {"code": SHOWS}) as items:
                    await anext(items)
                    unclean(monkeypatch)
                    if cancelled:
                        scope.cancel()
                        await trio.lowlevel.checkpoint()
        except HostError as error:
            seen.append((error.code, error.lines))

    raised, _ = left_of(tmp_path, leaving)
    assert (raised, seen) == (None, [("engine_failed.not_clean", ("it stays",))])


@pytest.mark.parametrize("closing", [Pool, Values, Launchers])
def test_one_that_hits_the_engines_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closing: Any) -> None:
    """While the jails, the processes that check values or the launchers are ended: they are, and then it is raised."""
    close = closing.close

    async def interrupted(closed: Any) -> None:
        interrupt()
        await close(closed)

    async def using(engine: Engine) -> None:
        await calling(engine, ANSWERS)
        monkeypatch.setattr(closing, "close", interrupted)

    raised, reasons = left_of(tmp_path, using)
    assert (type(raised), reasons) == (KeyboardInterrupt, ["ok.done"])


def test_one_that_hits_the_reading_of_a_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a command that prints it runs: that ends, and with it the interrupt comes out of the load."""
    hear, policy = vault._hear, tmp_path / "policy.toml"
    policy.write_text('extends = "required"\n[secrets]\nkey = { value = "command:/bin/sleep 1000", reason = "a test" }\n')

    async def interrupted(*heard: Any) -> None:
        interrupt()
        await hear(*heard)

    async def using(engine: Engine) -> None:
        monkeypatch.setattr(vault, "_hear", interrupted)
        await engine.load(tmp_path / "source" / "tools.py", policy=policy)

    raised, reasons = left_of(tmp_path, using)
    assert (type(raised), reasons) == (KeyboardInterrupt, [])


ASKS = """
from engine import http, tool


@tool(effect="read", network=["{place}"])
def ask() -> int:
    "Waits for what never comes."
    return http.get("http://{place}/").status
"""


def test_one_that_hits_a_request_of_the_engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the engine waits for a host that never answers, on behalf of a tool: the connection and the call end."""
    answer = Outward.answer

    async def interrupted(outward: Outward, arguments: dict[str, Any]) -> tuple[bool, Any]:
        interrupt()
        return await answer(outward, arguments)

    with socket.create_server((scoped.LOOPBACK, 0)) as silent:
        place = f"{scoped.WEB}:{silent.getsockname()[1]}"
        policy = scoped.policy(tmp_path / "policy", scoped.Rule(place, "http"))

        async def using(engine: Engine) -> None:
            await engine.load(kit.write(tmp_path / "asks", ASKS.format(place=place)), policy=policy)
            monkeypatch.setattr(Outward, "answer", interrupted)
            await engine.call("ask", {})

        raised, reasons = left_of(tmp_path, using, resolver=FixedResolver({scoped.WEB: [scoped.LOOPBACK]}))
    assert (type(raised), reasons) == (KeyboardInterrupt, ["cancelled.caller"])
