"""An exception in a tool: its type and one clean line for the caller, the author's own trace on stderr, and never a code it chose."""

from pathlib import Path

import pytest

from engine.host import Engine
from tests import kit

RAISE = '''
import sys
from engine import tool

class RequestError(Exception):
    """Named like one of the engine's."""

class Mute(Exception):
    def __str__(self):
        raise RuntimeError("no words")

class Liar(Exception):
    def __str__(self):
        return 5

class Meta(type):
    @property
    def __name__(cls):
        raise RuntimeError("no name")

class Nameless(Exception, metaclass=Meta):
    pass

def deeper(code):
    exec(code)

@tool(effect="read", description="d")
def run(code: str) -> str:
    deeper(code)
    return "went on"
'''
CASES = [
    ("raise ValueError('plain')", "tool_error.exception", "ValueError: plain"),
    (
        "raise ValueError('two\\nlines \\x1b[31mred\\x1b[0m \\u202eright \\u2028end')",
        "tool_error.exception",
        "ValueError: two lines red right end",
    ),
    ("raise ValueError('\\ud800')", "tool_error.exception", "ValueError: ?"),
    ("raise KeyError('k')", "tool_error.exception", "KeyError: 'k'"),
    ("raise KeyboardInterrupt", "tool_error.exception", "KeyboardInterrupt:"),
    ("raise BaseException('base')", "tool_error.exception", "BaseException: base"),
    ("raise GeneratorExit", "tool_error.exception", "GeneratorExit:"),
    ("raise StopIteration(5)", "tool_error.exception", "StopIteration: 5"),
    ("raise ExceptionGroup('two', [ValueError('a'), TypeError('b')])", "tool_error.exception", "ExceptionGroup: two (2 sub-exceptions)"),
    ("raise Mute", "tool_error.exception", "Mute: (its message could not be read)"),
    ("raise Liar", "tool_error.exception", "Liar: (its message could not be read)"),
    ("raise Nameless('x')", "tool_error.exception", "Nameless: x"),
    ("(lambda f: f(f))(lambda f: f(f))", "tool_error.exception", "RecursionError: maximum recursion depth exceeded"),
    ("bytearray(3 << 30)", "tool_error.exception", "MemoryError:"),
    ("raise SystemExit('bye')", "tool_error.exit", "SystemExit: bye"),
    ("sys.exit(0)", "tool_error.exit", "SystemExit: 0"),
    # a tool that speaks like the engine
    ("raise RequestError('refused.arguments: not yours')", "tool_error.exception", "RequestError: refused.arguments: not yours"),
    ("raise TimeoutError('no answer within 30000 ms')", "tool_error.exception", "TimeoutError: no answer within 30000 ms"),
    ("raise MemoryError('the kernel killed it')", "tool_error.exception", "MemoryError: the kernel killed it"),
    ("from engine.errors import DeclarationError; raise DeclarationError('mine')", "tool_error.exception", "DeclarationError: mine"),
    ("from engine.errors import EngineError; raise EngineError('ok.done', 'fine')", "tool_error.exception", "EngineError: fine"),
]  # fmt: skip - one exception a line
CHAIN = """
from engine import tool
import part

@tool(effect="read", description="d")
def run(secret: str) -> str:
    try:
        part.fail(secret)
    except ZeroDivisionError as error:
        raise RuntimeError("after it") from error
"""
PART = "def fail(secret):\n    return 1 / 0\n"
NESTED_ONLY = """
from engine import tool

@tool(effect="read", description="d")
def run(size: int) -> str:
    raise ValueError("x" * size)
"""


@pytest.mark.parametrize(("code", "reason", "line"), CASES)
async def test_an_exception_is_told_in_one_clean_line(engine: Engine, tmp_path: Path, code: str, reason: str, line: str) -> None:
    """Its type and message, with nothing that drives a terminal or splits a line; the next call works."""
    await engine.load(kit.write(tmp_path, RAISE))
    outcome = await engine.call("run", {"code": code})
    assert (outcome.reason, outcome.lines, outcome.value) == (reason, (line,), None)
    assert (await outcome.concluded())["verdict"]["reason"] == reason
    assert (await engine.call("run", {"code": "pass"})).value == "went on"


async def test_the_trace_shows_the_authors_lines_and_none_of_the_guests(engine: Engine, tmp_path: Path) -> None:
    """Both exceptions of a chain with file and line, no frame of the guest, no path of the host, no value of an argument."""
    outcome = await kit.jailed(engine, tmp_path / "source", {"tools.py": CHAIN, "part.py": PART}, "run", {"secret": "canary"})
    assert outcome.lines == ("RuntimeError: after it",)
    for shown in (
        'File "/bundle/part.py", line 2, in fail',
        "return 1 / 0",
        'File "/bundle/tools.py", line 10, in run',
        "RuntimeError: after it",
    ):
        assert shown in outcome.stderr
    assert outcome.stderr.startswith("Traceback (most recent call last):\n")
    for hidden in ("/guest/", "worker_images", str(tmp_path), "canary", "convert.py"):
        assert hidden not in outcome.stderr


@pytest.mark.parametrize("size", [10_000, 10_000_000])
async def test_a_huge_message_costs_no_more_than_a_line(engine: Engine, tmp_path: Path, size: int) -> None:
    """The line is cut, and so is the trace."""
    outcome = await kit.jailed(engine, tmp_path, NESTED_ONLY, "run", {"size": size})
    assert outcome.reason == "tool_error.exception"
    assert outcome.lines[0].startswith("ValueError: xxx")
    assert len(outcome.lines[0]) <= 1000
    assert len(outcome.stderr) < 20_000


async def test_a_tool_that_is_not_there_under_its_name_is_told(engine: Engine, tmp_path: Path) -> None:
    """Declared under one name, and answering to another one when it is called."""
    source = 'from engine import tool\n\n@tool(effect="read", description="d")\ndef run() -> str:\n    return "ran"\n'
    outcome = await kit.jailed(engine, tmp_path / "hidden", source + "run.name = 'other'\n", "run")
    assert (outcome.reason, outcome.lines) == ("tool_error.tool_missing", ("the imported source declares no tool of that name",))
    await engine.load(kit.write(tmp_path / "hidden", source))
    assert (await engine.call("run", {})).value == "ran"
