"""What ``stockade batch`` tells at its end."""

import contextlib
import io
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

from engine.batch.run import Batch
from engine.faces.batch import Asked, Command
from engine.faces.batch import _told as told
from engine.faces.printing import Printer
from engine.faces.run import Wanted
from tests import batches
from tests.batches import FakeEngine, asked, write_calls


async def ended(folder: Path, *tools: str) -> Batch:
    """A batch of one call of each tool."""
    write_calls(folder, [asked(f"{number}", tool) for number, tool in enumerate(tools)])
    return await batches.run(FakeEngine(), folder)


@pytest.mark.parametrize(
    ("tools", "said"),
    [
        (["double", "double"], ""),
        (["double", "fail"], "tool_error.exception: 1 of 2 lines ended so\n  what to do: read stderr for the trimmed trace\n"),
        (
            ["double", "fail", "none", "none", "none"],
            "4 of 5 lines are not ok\nrefused.unknown_tool: 3\ntool_error.exception: 1\n",
        ),
    ],
)
async def test_each_reason_stands_on_a_line_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tools: list[str], said: str
) -> None:
    """The headline first; advice only where it is that of all lines that are not ok."""
    made = await ended(tmp_path, *tools)
    monkeypatch.setattr(sys, "stderr", stream := io.StringIO())
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    Printer(as_json=False).answer(told(command()._value(made), made, "r"))
    assert stream.getvalue() == said


async def test_an_interrupted_batch_says_how_far_it_came(tmp_path: Path) -> None:
    """As data, with the counts so far; before it began there is nothing to say."""
    stopped = command()
    assert stopped.stopped() is None
    stopped._made = await ended(tmp_path, "double", "fail")
    stopped._made.total = 3
    answer = stopped.stopped()
    assert answer is not None
    assert answer.lines == ("stopped with 2 of 3 lines finished: --resume goes on with the others",)
    value = cast(dict[str, Any], answer.document()["value"])
    assert (answer.exit_code, value["lines"], value["done"]) == (130, 3, 2)
    assert value["outcomes"] == {"ok.done": 1, "tool_error.exception": 1}


def command() -> Command:
    """One that was not run."""
    given = Asked(calls="c", out="r", source=None, concurrency=None, resume=False, allow_repeat=False)
    return Command(Printer(as_json=False), given, Wanted())


async def test_a_command_that_is_no_batch_has_no_advice_for_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls that are missing or come from stdin, outcomes that are there, no place for them: the line says all, with the path as given."""
    monkeypatch.chdir(tmp_path)
    write_calls(tmp_path, [asked("a")])
    (tmp_path / "mine").write_text("mine")
    told = [
        await refusal(calls="-"),
        await refusal(calls="none"),
        await refusal(out="mine"),
        await refusal(out="mine", resume=True),
        await refusal(out="none/r"),
    ]
    assert told == [
        "a batch is not read from stdin: it reads its calls a second time when it is gone on with",
        "the calls none cannot be read: No such file or directory",
        "mine is there already: --resume goes on with it, else name another",
        "the end of mine was not written by a batch: name another file",
        "none/r cannot be written: No such file or directory",
    ]
    assert (tmp_path / "mine").read_text() == "mine"


async def refusal(*, calls: str = "calls.jsonl", out: str = "r", resume: bool = False) -> str:
    """Why it does not begin."""
    given = Asked(calls=calls, out=out, source=None, concurrency=None, resume=resume, allow_repeat=False)
    answer = await Command(Printer(as_json=False), given, Options()).answer()
    assert (answer.reason, answer.advice, len(answer.lines)) == ("refused.request", "", 1)
    return answer.lines[0]


class Options(Wanted):
    """Of a command whose engine is the test's own."""

    @contextlib.asynccontextmanager
    async def engine(self) -> AsyncIterator[FakeEngine]:  # type: ignore[override]  # a batch needs no more of an engine
        """Answers at once."""
        yield FakeEngine()
