"""One corpus of pure tools gives the same values, failures and outputs in the WebAssembly guest as in plain Python."""

import dataclasses
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from engine.wire import messages
from tests import kit, wasm_guest
from tests.agreement.cases import CASES, DIFFERENCES, Case, Difference

HERE = Path(__file__).parent
TRACES = ("Traceback (most recent call last):", "  + Exception Group Traceback (most recent call last):")
PLAIN = """
import asyncio, importlib, io, json, sys
folder, project, entry, cases, answers = sys.argv[1:]
sys.path[:0] = [folder]
sys.path += [project]
importlib.import_module(entry)
from engine.authoring import convert
from engine.authoring.tool import Tool

class Log:
    def warning(self, message, **data):
        shown.append(["warning", message, data])

class Context:
    log = Log()
    def progress(self, done, total=None, message=""):
        shown.append([done, total, message])
    def emit(self, event):
        shown.append([event])

async def walked(generator):
    async for value in generator:
        partials.append(convert.to_data(value))

async def waited(value):
    return await value

def run(tool, arguments):
    given = convert.arguments_for(tool, arguments)
    if tool.declaration["context"] is not None:
        given[tool.declaration["context"]] = Context()
    value = tool.function(**given)
    if hasattr(value, "__anext__"):
        return asyncio.run(walked(value))
    if hasattr(value, "__await__"):
        return asyncio.run(waited(value))
    if not hasattr(value, "__next__"):
        return value
    while True:
        try:
            partials.append(convert.to_data(next(value)))
        except StopIteration as end:
            return end.value

found = {}
for module in list(sys.modules.values()):
    found.update({value.name: value for value in list(vars(module).values()) if isinstance(value, Tool)})
made = []
for name, arguments in json.loads(cases):
    partials, shown = [], []
    stdout, stderr, sys.stdin = sys.stdout, sys.stderr, io.TextIOWrapper(io.BytesIO())
    sys.stdout = io.TextIOWrapper(io.BytesIO(), "utf-8", "surrogateescape")
    sys.stderr = io.TextIOWrapper(io.BytesIO(), "utf-8", "backslashreplace", line_buffering=True)
    value, failure = None, None
    try:
        value = convert.to_data(run(found[name], arguments))
    except BaseException as error:
        failure = [type(error).__name__, "\\n".join(getattr(error, "lines", [str(error)]))]
    texts = []
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
        texts.append(stream.buffer.getvalue().decode("latin-1"))
    sys.stdout, sys.stderr = stdout, stderr
    made.append({"value": value, "failure": failure, "partials": partials, "shown": shown, "out": texts[0], "err": texts[1]})
with open(answers, "w") as file:
    json.dump(made, file)
"""


@dataclasses.dataclass(frozen=True)
class Said:
    """All that can be compared of a call."""

    value: Any
    failure: list[str] | None
    partials: list[Any]
    shown: list[Any]
    out: str
    err: str


def plain(folder: Path, entry: str, cases: tuple[Case, ...]) -> list[Said]:
    """What plain Python makes of the calls, in one process."""
    answers = folder / f"{entry}.json"
    command = [sys.executable, "-I", "-c", PLAIN, str(HERE), str(kit.PROJECT), entry, json.dumps(cases), str(answers)]
    subprocess.run(command, check=True, timeout=120)
    return [Said(**one) for one in json.loads(answers.read_bytes())]


def guests(guest: wasm_guest.Guest, files: Mapping[str, str], entry: str, case: Case) -> Said:
    """What the guest makes of one, without the trace of a failure, which names the interpreter's own files and lines."""
    answer = guest.call(files, *case, entry=entry)
    assert (answer.trap, answer.returned) == (None, ["", ""])
    partials, shown, last = [], [], answer.last
    for one in answer.messages[1:-1]:
        if isinstance(one, messages.Partial):
            partials.append(one.value)
        else:
            shown.append([getattr(one, name) for name in one.FIELDS])
    failure = [last.type, last.message] if isinstance(last, messages.Failure) else None
    err = answer.err.decode("latin-1")
    if failure is not None:
        err = err[: min([place for trace in TRACES if (place := err.find(trace)) >= 0], default=None)]
    value = last.value if isinstance(last, messages.Result) else None
    return Said(value, failure, partials, shown, answer.out.decode("latin-1"), err)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Said]:
    """By the number of the case."""
    return dict(enumerate(plain(tmp_path_factory.mktemp("plain"), "corpus", CASES)))


@pytest.mark.parametrize("number", range(len(CASES)), ids=lambda number: f"{number}-{CASES[number][0]}")
def test_the_guest_answers_as_plain_python(guest: wasm_guest.Guest, expected: dict[int, Said], number: int) -> None:
    """Value or failure, partial results, events, standard output and error."""
    assert guests(guest, wasm_guest.staged(HERE / "corpus", below="corpus"), "corpus", CASES[number]) == expected[number]


def test_the_corpus_is_large_enough(expected: dict[int, Said]) -> None:
    """At least sixty tools, and failures as well as values among their answers."""
    assert len({name for name, _ in CASES}) >= 60
    assert sum(said.failure is not None for said in expected.values()) >= 20
    assert sum(said.failure is None for said in expected.values()) >= 60


@pytest.mark.parametrize("difference", DIFFERENCES, ids=lambda difference: difference.tool)
def test_what_cannot_be_alike_still_differs(guest: wasm_guest.Guest, tmp_path: Path, difference: Difference) -> None:
    """Each row of the table is true of the guest, and not of plain Python: else it has to go."""
    case: Case = (difference.tool, {})
    said = guests(guest, wasm_guest.staged(HERE / "differing.py"), "differing", case)
    assert (said.value, said.failure) == (difference.guest, None)
    assert plain(tmp_path, "differing", (case,))[0].value != difference.guest
