"""Large values through real checking processes: verdicts, the end of a process, turns, and nothing left."""

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgpack
import psutil
import pytest
import trio

from engine import spelling
from engine.checking import Checker
from engine.errors import HostError
from engine.supervision import values as values_module
from engine.supervision.values import Values
from engine.wire.framing import RemoteFault
from engine.wire.messages import Event, FromWorker, HostCall, Log, Partial, Result
from engine.wire.session import Large
from engine.worker.checker import CheckingProcess
from tests import kit
from tests.locked import lock_of_this_host

RECORDS = [{"id": number, "name": f"name {number}", "ok": None} for number in range(5000)]
ROWS = Checker({"type": "array", "items": {"type": "object", "additionalProperties": {"type": ["integer", "string", "null"]}}})
TEXT = Checker({"type": "string"})


@asynccontextmanager
async def checking(*, unclean: tuple[str, ...] = ()) -> AsyncIterator[Values]:
    """The checking processes of no engine; none is left afterwards, nor a descriptor of theirs. ``unclean`` is what closing tells."""
    lock = await lock_of_this_host()
    before = kit.Belongings.now()
    async with trio.open_nursery() as nursery:
        made = Values(nursery, lambda: lock)
        try:
            yield made
        finally:
            told: tuple[str, ...] = ()
            try:
                await made.close()
            except HostError as error:
                told = error.lines
            nursery.cancel_scope.cancel()
    assert (made.pids, told) == ((), unclean)
    assert kit.Belongings.now() == before


def large(kind: type[FromWorker], *fields: Any, depth: int = 128, nodes: int = 1_000_000) -> Large:
    """A message as a session hands it over."""
    return Large(kind=kind, payload=memoryview(msgpack.packb([kind.NUMBER, *fields])), depth=depth, nodes=nodes)


async def refusal(values: Values, message: Large, checker: Checker | None) -> tuple[str, str]:
    """Code and line of a message that is not handed over."""
    with pytest.raises(RemoteFault) as caught:
        await values.taken(message, checker)
    return caught.value.code, caught.value.line


async def test_a_result_that_fits() -> None:
    """The message, no lines, and the digest that the receipt will say."""
    async with checking() as values:
        checked = await values.taken(large(Result, RECORDS), ROWS)
        assert (checked.message, checked.lines) == (Result(value=RECORDS), ())
        assert await checked.digest() == spelling.digest(RECORDS)


async def test_a_result_that_does_not_fit() -> None:
    """The lines are those of the same checker here."""
    value = [*RECORDS, {"id": 1.5}]
    async with checking() as values:
        checked = await values.taken(large(Result, value), ROWS)
        assert checked.lines == ROWS.problems(value)
        assert len(checked.lines) == 1


@pytest.mark.parametrize("kind", [Partial, Event])
async def test_items_of_a_stream(kind: Any) -> None:
    """A large partial is held to its schema, a large event to none."""
    async with checking() as values:
        assert (await values.taken(large(kind, RECORDS), ROWS if kind is Partial else None)).message == kind(value=RECORDS)
        assert (await values.taken(large(kind, RECORDS), TEXT)).lines == TEXT.problems(RECORDS)


async def test_a_host_call() -> None:
    """Its number, name and arguments."""
    async with checking() as values:
        checked = await values.taken(large(HostCall, 3, "other", {"rows": RECORDS}), None)
        assert checked.message == HostCall(number=3, name="other", arguments={"rows": RECORDS})


async def test_a_log() -> None:
    """Its level, words and data."""
    async with checking() as values:
        checked = await values.taken(large(Log, "info", "rows", {"rows": RECORDS}), None)
        assert checked.message == Log(level="info", message="rows", data={"rows": RECORDS})


async def test_broken_rules_have_the_words_of_the_loop() -> None:
    """A key twice and too many values; the process serves on."""
    async with checking() as values:
        twice = Large(kind=Result, payload=memoryview(b"\x92\x17\x82\xa1a\x01\xa1a\x02"), depth=9, nodes=9)
        assert await refusal(values, twice, None) == ("violation.protocol", "the worker sent a map that holds one key twice")
        many = await refusal(values, large(Result, [[]] * 5000, nodes=1000), None)
        assert many == ("violation.protocol", "the worker sent more values than its bound")
        pids = values.pids
        assert (await values.taken(large(Result, RECORDS), ROWS)).lines == ()
        assert values.pids == pids


async def test_a_process_that_is_killed_hands_nothing_over() -> None:
    """Its end is the host's fault, not the value's; the next value has a new process."""
    async with checking() as values:
        await (await values.taken(large(Result, 1), None)).digest()
        (pid,) = values.pids
        psutil.Process(pid).suspend()
        async with trio.open_nursery() as nursery:

            async def kill() -> None:
                while not values._busy:
                    await trio.lowlevel.checkpoint()
                os.kill(pid, signal.SIGKILL)

            nursery.start_soon(kill)
            code, line = await refusal(values, large(Result, RECORDS), ROWS)
        assert (code, line) == ("crashed.worker", "a large value could not be checked: the checking process was lost")
        assert (await values.taken(large(Result, RECORDS), ROWS)).lines == ()
        assert values.pids != (pid,)


async def test_one_that_died_while_it_waited_is_not_used() -> None:
    """The value after it is checked by a new one."""
    async with checking() as values:
        await (await values.taken(large(Result, 1), None)).digest()
        (pid,) = values.pids
        pidfd = os.pidfd_open(pid)
        psutil.Process(pid).kill()
        await trio.lowlevel.wait_readable(pidfd)
        os.close(pidfd)
        assert (await values.taken(large(Result, RECORDS), ROWS)).lines == ()
        assert values.pids != (pid,)


async def test_a_process_that_stays_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """After its time the value ends and the process with it; an event's code is its own."""
    async with checking() as values:
        await values.taken(large(Event, 1), None)
        (pid,) = values.pids
        psutil.Process(pid).suspend()
        monkeypatch.setattr(values_module, "_SECONDS", 0.05)
        code, line = await refusal(values, large(Event, RECORDS), None)
        assert (code, psutil.pid_exists(pid)) == ("limit_exceeded.events", False)
        assert line == "checking this Event takes more time or memory than a value may cost"
        monkeypatch.undo()
        assert (await values.taken(large(Event, RECORDS), None)).lines == ()


async def test_a_value_that_takes_too_much_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process may use so much and no more; the value ends as too costly, and the control passes."""
    async with checking() as values:
        monkeypatch.setattr(values_module, "_ADDRESS_BYTES", 0)
        monkeypatch.setattr(values_module, "_ADDRESS_FACTOR", 10)
        empties = large(Result, [[]] * 900_000)
        assert (await refusal(values, empties, None))[0] == "limit_exceeded.result"
        monkeypatch.undo()
        assert (await values.taken(empties, None)).lines == ()


async def test_no_process_to_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is handed over unchecked: the call ends as one whose worker was lost."""

    def none() -> Any:
        raise OSError(11, "Resource temporarily unavailable")

    async with checking() as values:
        monkeypatch.setattr("engine.worker.checker._spawn", none)
        line = "a large value could not be checked: the checking process could not be started: Resource temporarily unavailable"
        assert await refusal(values, large(Result, RECORDS), ROWS) == ("crashed.worker", line)
        monkeypatch.undo()
        assert (await values.taken(large(Result, RECORDS), ROWS)).lines == ()


@pytest.mark.parametrize(
    "said",
    [("lines", []), ("digest", "sha256:0"), ("sound", None, "digest", "x"), ("sound", None, "lines", [1]), ("other", None), ("fault", [])],
)
async def test_an_answer_out_of_its_place_is_not_believed(monkeypatch: pytest.MonkeyPatch, said: tuple[Any, ...]) -> None:
    """Whoever took the process over cannot skip a step: no lines before sound, no digest before lines, no other words."""
    answers = list(zip(said[::2], said[1::2], strict=True))

    async def answer(self: CheckingProcess) -> tuple[str, Any]:
        await trio.lowlevel.checkpoint()
        if not answers:
            raise RemoteFault("violation.protocol", "the checking process is gone")
        return answers.pop(0)

    async with checking() as values:
        await (await values.taken(large(Result, 1), None)).digest()
        monkeypatch.setattr(CheckingProcess, "answer", answer)
        assert (await refusal(values, large(Result, RECORDS), ROWS))[0] == "crashed.worker"
        monkeypatch.undo()


async def test_who_gives_up_ends_the_process_of_its_value() -> None:
    """A half-read answer could be taken for the next value's; the next has a new process."""
    async with checking() as values:
        await (await values.taken(large(Result, 1), None)).digest()
        (pid,) = values.pids
        psutil.Process(pid).suspend()
        with trio.move_on_after(0.05):
            await values.taken(large(Result, RECORDS), ROWS)
        assert (await values.taken(large(Result, RECORDS), ROWS)).lines == ()
        assert pid not in values.pids


async def test_a_process_is_let_go_after_so_many_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it keeps of each, compiled schemas and keys, cannot grow for ever."""
    monkeypatch.setattr(values_module, "_ORDERS", 3)
    async with checking() as values:
        seen: set[int] = set()
        for _ in range(4):
            await (await values.taken(large(Result, RECORDS), ROWS)).digest()
            seen.update(values.pids)
        assert len(seen) == 2


async def test_idle_processes_are_retired(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that had nothing to do for its time is ended, not one that just had."""
    async with checking() as values:
        await (await values.taken(large(Result, RECORDS), ROWS)).digest()
        await values.retire_idle()
        kept = values.pids
        monkeypatch.setattr(values_module, "_IDLE_SECONDS", -1)
        await values.retire_idle()
        assert (len(kept), len(values.pids)) == (1, 0)


async def test_closing_ends_what_is_under_way() -> None:
    """A value that waits for its answer ends, and so does one that comes later."""
    async with checking() as values:
        await (await values.taken(large(Result, 1), None)).digest()
        psutil.Process(values.pids[0]).suspend()
        told: list[str] = []

        async def take() -> None:
            told.append((await refusal(values, large(Result, RECORDS), ROWS))[0])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(take)
            while not values._busy:
                await trio.lowlevel.checkpoint()
            await values.close()
        await take()
        assert told == ["crashed.worker", "crashed.worker"]


async def test_no_more_than_two_processes_at_once() -> None:
    """Whoever comes third waits."""
    async with checking() as values:
        most = 0

        async def take() -> None:
            nonlocal most
            await (await values.taken(large(Result, RECORDS), ROWS)).digest()
            most = max(most, len(values.pids))

        async with trio.open_nursery() as nursery:
            for _ in range(6):
                nursery.start_soon(take)
        assert most == 2


async def test_the_payload_of_a_neighbour_does_not_hold_the_loop() -> None:
    """While a large value is built here others have their turns: far more than one."""
    async with checking() as values:
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                await trio.lowlevel.checkpoint()
                turns += 1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(count)
            await values_module._in_slices(large(Result, RECORDS * 20).payload)
            nursery.cancel_scope.cancel()
        assert turns > 5
        assert values.pids == ()


async def test_a_bug_of_ours_belongs_to_its_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends that value, not the engine's other tasks, and whoever closes is told once."""

    def broken() -> Any:
        raise KeyError("x")

    async with checking(unclean=("KeyError while a large value was checked",)) as values:
        with monkeypatch.context() as patch:
            patch.setattr(values, "_lock", broken)
            for _ in range(2):
                code, line = await refusal(values, large(Result, RECORDS), ROWS)
                assert (code, line) == ("crashed.worker", "a large value could not be checked: KeyError in the engine")
        assert (await values.taken(large(Result, RECORDS), ROWS)).lines == ()


async def test_a_process_that_starts_while_it_closes_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Closing could not know of it."""
    start, started = CheckingProcess.start, []

    async def slow(lock: Any) -> CheckingProcess:
        started.append(await start(lock))
        await values.close()
        return started[0]

    async with checking() as values:
        monkeypatch.setattr(CheckingProcess, "start", slow)
        line = "a large value could not be checked: the engine is closed"
        assert await refusal(values, large(Result, RECORDS), ROWS) == ("crashed.worker", line)
        assert started[0].dead
        assert not psutil.pid_exists(started[0].pid)


async def test_one_that_would_not_end_keeps_no_other_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """All idle ones are ended; the problem is told by closing."""
    close = CheckingProcess.close

    async def reluctant(self: CheckingProcess) -> None:
        await close(self)
        if self.pid == pids[0]:
            raise HostError("engine_failed.not_clean", "one would not end")

    async with checking(unclean=("one would not end",)) as values:
        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(values.taken, large(Result, RECORDS), ROWS)
        while values._busy:
            await trio.lowlevel.checkpoint()
        pids = values.pids
        monkeypatch.setattr(CheckingProcess, "close", reluctant)
        monkeypatch.setattr(values_module, "_IDLE_SECONDS", -1)
        await values.retire_idle()
        assert (len(pids), values.pids) == (2, ())
        monkeypatch.undo()


async def test_a_process_that_was_ended_is_dead() -> None:
    """Also one that nobody can ask the kernel of any more."""
    process = await CheckingProcess.start(await lock_of_this_host())
    assert not process.dead
    await process.close()
    assert process.dead


async def test_a_value_that_is_refused_here_first_ends_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process comes to it later than we do, has its say, and serves on."""

    async def refused(payload: memoryview) -> Any:
        raise RemoteFault("violation.protocol", "the worker sent what is refused")

    async with checking() as values:
        await (await values.taken(large(Result, 1), None)).digest()
        pids = values.pids
        with monkeypatch.context() as patch:
            patch.setattr(values_module, "_in_slices", refused)
            assert await refusal(values, large(Result, RECORDS), ROWS) == ("violation.protocol", "the worker sent what is refused")
        assert (await values.taken(large(Result, RECORDS), ROWS)).lines == ()
        assert values.pids == pids


async def test_no_digest_is_made_of_what_the_caller_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process is lost after it has judged: the value stands, without a name."""
    answer = CheckingProcess.answer
    said: list[str] = []

    async def cut(self: CheckingProcess) -> tuple[str, Any]:
        if said[-1:] == ["lines"]:
            raise RemoteFault("violation.protocol", "the checking process is gone")
        got = await answer(self)
        said.append(got[0])
        return got

    async with checking() as values:
        monkeypatch.setattr(CheckingProcess, "answer", cut)
        checked = await values.taken(large(Result, RECORDS), ROWS)
        assert (checked.message, checked.lines, await checked.digest()) == (Result(value=RECORDS), (), None)
        monkeypatch.undo()
