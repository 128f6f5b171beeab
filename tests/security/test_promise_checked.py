"""Promise: nothing a worker sends is believed before it was checked: types, sizes, schemas, words of errors, and who says them."""

import json
from pathlib import Path

import pytest
import trio

from engine.errors import EngineError
from engine.events import LogRecord, PartialResult, Progress
from engine.host import Engine
from tests import kit, moments

SLY_ENUM = "import enum\nclass Sly(enum.Enum):\n    A = 1\n    @property\n    def value(self): "
NOT_DATA = "return None, bool, int64, finite float, str, list or dict"


@pytest.mark.parametrize(
    ("code", "where"),
    [
        ("value = 2**63", "$ is int outside 64 bits"),
        ("value = -2**63 - 1", "$ is int outside 64 bits"),
        ("value = 10**100_000", "$ is int outside 64 bits"),
        ("value = {'limit': float('nan')}", "$.limit is float that is not finite"),
        ("value = [1.0, float('-inf')]", "$[1] is float that is not finite"),
        ("value = b'raw'", "$ is bytes"),
        ("value = {'tags': {1}}", "$.tags is set"),
        ("value = 1j", "$ is complex"),
        ("import decimal\nvalue = decimal.Decimal(1)", "$ is Decimal"),
        ("import datetime\nvalue = [datetime.date(2026, 1, 1)]", "$[0] is date"),
        ("value = '\\ud800'", "$ is str with a lone surrogate"),
        ("value = {'\\udfff': 1}", "$ is str with a lone surrogate"),
        ("value = {1: 'one'}", "$ is a dict with a key of type int"),
        ("value = {('a', 'b'): 1}", "$ is a dict with a key of type tuple"),
        ("value = lambda: 1", "$ is function"),
        ("value = (n for n in range(3))", "$ is generator"),
        ("class Sly(dict):\n    def items(self): raise SystemExit(9)\nvalue = Sly(a=1)", "$ is Sly"),
        ("class Sly(str): pass\nvalue = [Sly('a')]", "$[0] is Sly"),
        ("class Sly:\n    def __reduce__(self): return (print, ('revived',))\nvalue = Sly()", "$ is Sly"),
        ("value = ValueError('x')", "$ is ValueError"),
        ("class Sly: pass\nSly.__name__ = 'X' * 10_000_000\nvalue = Sly()", "$ is " + "X" * 200),
    ],
)
async def test_what_is_no_data_is_named_by_its_place(engine: Engine, tmp_path: Path, code: str, where: str) -> None:
    """No value changes silently on its way, and none of it is shown."""
    with trio.fail_after(30):
        outcome = await moments.run(engine, tmp_path, code)
    assert (outcome.reason, outcome.value, len(outcome.lines)) == ("tool_error.result_not_data", None, 1)
    assert where in outcome.lines[0]
    assert len(outcome.lines[0]) <= 1000
    await moments.assert_works(engine)


@pytest.mark.parametrize(
    "code",
    [
        "value = []\nfor _ in range(100_000): value = [value]",
        "value = []\nvalue.append(value)",
        "value = {}\nvalue['self'] = {'again': value}",
    ],
    ids=["100 000 deep", "holds itself", "holds itself in a dict"],
)
async def test_depth_without_end(engine: Engine, tmp_path: Path, code: str) -> None:
    """It is found at 128 levels, without any stack."""
    outcome = await moments.run(engine, tmp_path, code)
    assert (outcome.reason, outcome.value) == ("tool_error.result_not_data", None)
    assert "nested deeper than 128 levels, or holds itself" in outcome.lines[0]


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("value = [2**63 - 1, -2**63, 0.5, -0.0, None, True, '']", [2**63 - 1, -(2**63), 0.5, -0.0, None, True, ""]),
        ("value = ('a', ['b', ('c',)])", ["a", ["b", ["c"]]]),
        ("value = {'__class__': 1, '__proto__': 2, '$ref': '#', '': 3}", {"__class__": 1, "__proto__": 2, "$ref": "#", "": 3}),
        ("value = 'ok.done limit_exceeded.wall [truncated] \\x00 \\u202e'", "ok.done limit_exceeded.wall [truncated] \x00 \u202e"),
        ("value = {'reason': 'ok.done', 'status': 'ok', 'receipt': {}}", {"reason": "ok.done", "status": "ok", "receipt": {}}),
        ("value = []\nfor _ in range(126): value = [value]", json.loads("[" * 127 + "]" * 127)),
    ],
)
async def test_what_is_data_arrives_as_it_is(engine: Engine, tmp_path: Path, code: str, value: object) -> None:
    """The controls: the edges of what may travel, and words that mean something elsewhere."""
    outcome = await moments.run(engine, tmp_path, code)
    assert (outcome.reason, outcome.value) == ("ok.done", value)
    assert json.dumps(outcome.value) == json.dumps(value)  # True is not 1, -0.0 is not 0


@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("raise ValueError('x' * (100 << 20))", "ValueError: " + "x" * 987 + "…"),
        ("class E(Exception):\n    def __str__(self): raise SystemExit(3)\nraise E", "E: (its message could not be read)"),
        ("class E(Exception):\n    def __str__(self): return 3\nraise E", "E: (its message could not be read)"),
        ("class M(type):\n    @property\n    def __name__(cls): raise SystemExit\nclass E(Exception, metaclass=M): pass\nraise E", "E:"),
        ("raise type('N' * 10_000_000, (Exception,), {})('m')", "N" * 200 + ": m"),
        ("raise ValueError('\\ud800 \\x1b[31m red \\u202e\\n2026-01-01 ERROR forged')", "ValueError: ? red 2026-01-01 ERROR forged"),
        ("e = None\nfor i in range(100_000):\n    n = ValueError(i); n.__cause__ = e; e = n\nraise e", "ValueError: 99999"),
        ("a, b = ValueError(1), ValueError(2)\na.__context__, b.__context__ = b, a\nraise a", "ValueError: 1"),
        ("raise ExceptionGroup('g', [ValueError(i) for i in range(100_000)])", "ExceptionGroup: g (100000 sub-exceptions)"),
        ("e = ValueError('v')\nfor _ in range(500): e = ExceptionGroup('g', [e])\nraise e", "ExceptionGroup: g (1 sub-exception)"),
        ("def f(): f()\nf()", "RecursionError: maximum recursion depth exceeded"),
        ("sys.exit('x' * (100 << 20))", "SystemExit: " + "x" * 987 + "…"),
    ],
    ids=[
        "a long message",
        "a message that exits",
        "a message that is none",
        "a class whose name exits",
        "a long name",
        "escapes and newlines",
        "a long chain",
        "a chain that is a ring",
        "a wide group",
        "a deep group",
        "recursion",
        "a long exit",
    ],
)  # fmt: skip  names beside each other
async def test_an_exception_is_shown_in_one_bounded_line(engine: Engine, tmp_path: Path, code: str, line: str) -> None:
    """However large or hostile, it is rendered inside, and its trace stays within what stderr may hold."""
    with trio.fail_after(60):
        outcome = await moments.run(engine, tmp_path, code)
    assert (outcome.status, outcome.lines) == ("tool_error", (line,))
    assert len(outcome.stderr) <= 64 << 10
    await moments.assert_works(engine)


async def test_a_message_that_never_ends_ends_at_the_deadline(engine: Engine, tmp_path: Path) -> None:
    """Rendering happens in the worker, so its time is the call's."""
    code = "class E(Exception):\n    def __str__(self):\n        while True: pass\nraise E"
    outcome = await moments.run(engine, tmp_path, code, timeout_ms=500)
    assert outcome.reason == "limit_exceeded.wall"


@pytest.mark.parametrize(
    ("code", "reason", "line"),
    [
        (SLY_ENUM + "raise SystemExit(9)\nvalue = Sly.A", "tool_error.exit", "SystemExit: 9"),
        (SLY_ENUM + "return self\nvalue = Sly.A", "tool_error.result_not_data", f"$ is wrapped too often: {NOT_DATA}"),
        (SLY_ENUM + "return 1 / 0\nvalue = Sly.A", "tool_error.exception", "ZeroDivisionError: division by zero"),
        ("value = [0] * (5 * 10**6)", "tool_error.exception", "MemoryError:"),
    ],
    ids=["exits", "wraps itself", "raises", "too many to convert"],
)
async def test_a_result_that_acts_while_it_is_converted(engine: Engine, tmp_path: Path, code: str, reason: str, line: str) -> None:
    """What a value does when it is read is the tool's own doing, and has the tool's own reasons."""
    with trio.fail_after(30):
        outcome = await moments.run(engine, tmp_path, code)
    assert (outcome.reason, outcome.lines, outcome.value) == (reason, (line,), None)
    await moments.assert_works(engine)


STRICT = (
    moments.RUN
    + '''
from engine import schema

@tool(effect="read", output=schema.object({"days": schema.integer(minimum=1, maximum=100)}))
def strict(code: str) -> dict:
    """Run a text; its answer must be days."""
    scope = {"forge": forge, "frame": frame, "os": os}
    exec(code, scope)
    return scope.get("value")

@tool(effect="read", output=schema.number(maximum=100))
def bounded(code: str) -> float:
    """Run a text; its answer must be small."""
    scope = {}
    exec(code, scope)
    return scope.get("value")

@tool(effect="read", partial=schema.object({"row": schema.integer()}))
def rows(items: list, live: bool):
    """Yield the items."""
    for item in items:
        yield item
    while live:
        pass

@tool(effect="read")
def silent(items: list):
    """Send items without having said that it streams."""
    for item in items:
        forge(frame(18, item))
    return "done"
'''
)


@pytest.mark.parametrize(
    ("tool", "code", "secret"),
    [
        ("strict", "value = {'days': 101}", "101"),
        ("strict", "value = {'days': True}", "True"),
        ("strict", "value = {'days': '14'}", "14"),
        ("strict", "value = {'days': 14, 'canary': 'zebra'}", "zebra"),
        ("strict", "value = {}", "zebra"),
        ("strict", "value = None", "zebra"),
        ("strict", "forge(frame(23, {'days': 4711}))\nos._exit(0)", "4711"),
        ("bounded", "value = 1e308", "308"),
        ("bounded", "value = '5'", "5"),
        ("bounded", "value = True", "True"),
    ],
)
async def test_a_result_against_its_schema(engine: Engine, tmp_path: Path, tool: str, code: str, secret: str) -> None:
    """Whether the guest sent it or the tool forged it; the line says what was expected and never what came."""
    await engine.load(kit.write(tmp_path, STRICT))
    outcome = await engine.call(tool, {"code": code})
    assert (outcome.reason, outcome.value, (await outcome.concluded())["digests"]["result"]) == ("tool_error.result_schema", None, None)
    assert not any(secret in line for line in outcome.lines)


async def test_a_forged_result_counts_as_the_tools_own(engine: Engine, tmp_path: Path) -> None:
    """Written past the guest, before an exit that claims success: it is no more than what the tool might have returned."""
    await engine.load(kit.write(tmp_path, STRICT))
    outcome = await engine.call("strict", {"code": "forge(frame(23, {'days': 14}))\nos._exit(0)"})
    assert (outcome.reason, outcome.value) == ("ok.done", {"days": 14})


@pytest.mark.parametrize(("bad", "where"), [({"row": "three"}, "$.row"), ({}, "row"), ({"row": 1, "more": 1}, "more"), ("row", "$")])
async def test_a_partial_that_breaks_its_schema_after_good_ones(engine: Engine, tmp_path: Path, bad: object, where: str) -> None:
    """The good ones were handed over, the bad one and those behind it never are, and the tool that goes on is ended."""
    await engine.load(kit.write(tmp_path, STRICT))
    items = [*({"row": n} for n in range(10)), bad, {"row": 11}]
    with trio.fail_after(30):
        async with engine.stream("rows", {"items": items, "live": True}) as stream:
            shown, outcome = await moments.taken(stream)
    assert shown == [PartialResult(value={"row": n}) for n in range(10)]
    assert (outcome.reason, where in outcome.lines[0]) == ("tool_error.partial_schema", True)


async def test_partials_that_fit_their_schema(engine: Engine, tmp_path: Path) -> None:
    """The control: all are handed over, then the outcome."""
    await engine.load(kit.write(tmp_path, STRICT))
    async with engine.stream("rows", {"items": [{"row": n} for n in range(12)], "live": False}) as stream:
        shown, outcome = await moments.taken(stream)
    assert shown == [PartialResult(value={"row": n}) for n in range(12)]
    assert outcome.reason == "ok.done"


async def test_partials_of_a_tool_that_declared_none(engine: Engine, tmp_path: Path) -> None:
    """They are not handed over for want of a schema: the call ends."""
    await engine.load(kit.write(tmp_path, STRICT))
    async with engine.stream("silent", {"items": [1]}) as stream:
        shown, outcome = await moments.taken(stream)
    assert (shown, outcome.reason, outcome.lines) == ([], "tool_error.partial_schema", ("the tool declares no partial results",))


CHANGES = moments.CALLED + moments.RUN + '\nif CALLED:\n    echo.declaration["ACT"] = VALUE\n'


@pytest.mark.parametrize(("field", "value"), [("effect", '"write"'), ("description", '"another"'), ("output", "{}"), ("dangerous", "True")])
async def test_a_worker_whose_tool_is_not_the_loaded_one(engine: Engine, tmp_path: Path, field: str, value: str) -> None:
    """Its declarations are compared by digest before it is sent a call, and it gets none."""
    await engine.load(kit.write(tmp_path, CHANGES.replace("ACT", field).replace("VALUE", value)))
    outcome = await engine.call("echo", {"word": "x"})
    assert (outcome.reason, outcome.lines) == ("violation.declaration", ("the worker's declarations are not those that were loaded",))


@pytest.mark.parametrize(
    ("tail", "code"),
    [
        ("echo.declaration['effect'] = 'none'", "refused.declaration"),
        ("echo.declaration['extra'] = 1", "refused.declaration"),
        ("del echo.declaration['effect']", "refused.declaration"),
        ("echo.declaration['includes'] = ['../secret']", "refused.declaration"),
        ("forge(frame(16, None) + frame(17, []))", "refused.no_tools"),
        ("forge(frame(16, None) + frame(17, [{}]))", "refused.declaration"),
        ("forge(frame(16, None) + frame(17, ['echo']))", "refused.declaration"),
        ("forge(frame(16, None) + frame(17, [1] * 1000))", "refused.declaration"),
    ],
)
async def test_declarations_are_checked_like_all_that_a_worker_sends(engine: Engine, tmp_path: Path, tail: str, code: str) -> None:
    """Changed after the decorator checked them, or forged as frames: the load is refused."""
    with trio.fail_after(30), pytest.raises(EngineError) as caught:
        await engine.load(kit.write(tmp_path, f"{moments.RUN}\n{tail}\n"))
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("forged", "line"),
    [
        ("'fatal', 'forged', {}", "the worker sent Log whose level may not be this str"),
        ("'info', 3, {}", "the worker sent Log whose message may not be this int"),
        ("'info', 'x', []", "the worker sent Log whose data may not be this list"),
    ],
)
async def test_a_log_record_with_forged_fields(engine: Engine, tmp_path: Path, forged: str, line: str) -> None:
    """A level that there is not, and fields of other types, are no log record."""
    outcome = await moments.run(engine, tmp_path, f"forge(frame(21, {forged}))")
    assert (outcome.reason, outcome.lines) == ("violation.protocol", (line,))


async def test_words_of_progress_and_log_come_as_one_line(engine: Engine, tmp_path: Path) -> None:
    """A newline, an escape or a mark of direction could forge a line of whoever prints them; format fields mean nothing."""
    text = "'%s {0.__class__} \\x1b[2J\\r\\n2026-01-01 ERROR forged \\u202e'"
    await engine.load(kit.write(tmp_path, moments.RUN))
    async with engine.stream("run", {"code": f"context.progress(1, 2, {text})\ncontext.log.info({text}, extra={text})"}) as stream:
        shown, outcome = await moments.taken(stream)
    line = "%s {0.__class__} 2026-01-01 ERROR forged"
    assert [item.message for item in shown if isinstance(item, Progress | LogRecord)] == [line, line]
    assert outcome.reason == "ok.done"


EARLY = f"""
import os, sys, threading, time
from engine import tool
{moments.CALLED}
def answer():
    main, seen = threading.main_thread().ident, []
    while len(seen) < 20 or seen[-1] != seen[-20]:  # until it stays where it is: it waits for the call
        time.sleep(0.02)
        frame = sys._current_frames()[main]
        seen.append((frame.f_code.co_name, frame.f_lasti))
    os.write(3, b"\\0\\0\\0\\3\\x92\\x17\\x07")
if CALLED:
    threading.Thread(target=answer, daemon=True).start()

@tool(description="answers before it is asked", effect="write")
def pay(amount: int) -> int:
    return amount
"""


async def test_an_answer_to_a_call_that_was_not_made_yet_is_refused(engine: Engine, tmp_path: Path) -> None:
    """A thread of the import writes a whole Result of 7 while its child waits for the call."""
    with trio.fail_after(30):
        await engine.load(kit.write(tmp_path, EARLY))
        await engine.warm("pay")  # no call before it: one whose child wrote early would end the jail
        (seat,) = engine._pool.idle
        assert seat.spare is not None
        await seat.spare.ready.wait()
        assert seat.spare.child is not None
        await seat.spare.child.wait()
        outcome = await engine.call("pay", {"amount": 1})
    assert (outcome.reason, outcome.value) == ("violation.protocol", None)


async def test_the_same_call_without_the_thread_is_answered(engine: Engine, tmp_path: Path) -> None:
    """The control."""
    quiet = await kit.jailed(engine, tmp_path, EARLY.replace("if CALLED", "if False"), "pay", {"amount": 1})
    assert (quiet.reason, quiet.value) == ("ok.done", 1)
