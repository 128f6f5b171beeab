"""One corpus of pure tools, loaded and called as any tool is: both kinds of worker answer alike, and as plain Python does."""

import dataclasses
from pathlib import Path
from typing import Any

from engine.errors import one_line
from engine.events import PartialResult
from engine.host import Engine
from engine.outcome import Outcome
from tests import kinds, kit, machine
from tests.agreement.cases import CASES, DIFFERENCES, Case
from tests.agreement.test_walls import HERE, TRACES, Said, plain


@dataclasses.dataclass(frozen=True)
class Told:
    """What a caller sees of one call, without the trace of a failure, which names the interpreter's own files and lines."""

    reason: str
    value: Any
    lines: tuple[str, ...]
    items: tuple[Any, ...]
    stdout: str
    stderr: str

    @property
    def partials(self) -> list[Any]:
        """The values of its stream."""
        return [item.value for item in self.items if isinstance(item, PartialResult)]


async def _called(engine: Engine, case: Case) -> Told:
    items: list[Any] = []
    async with engine.stream(*case) as outputs:
        async for output in outputs:
            items.append(output)
    outcome = items.pop()
    assert isinstance(outcome, Outcome)
    trace = min([place for start in TRACES if (place := outcome.stderr.find(start)) >= 0], default=None)
    return Told(outcome.reason, outcome.value, outcome.lines, tuple(items), outcome.stdout, outcome.stderr[:trace])


async def _told(tmp_path: Path, kind: str, source: Path, cases: tuple[Case, ...]) -> list[Told]:
    options = {"worker": kind, "image_dir": machine.IMAGE_DIR}
    async with kit.clean_engine(tmp_path / kind, **options) as engine:
        await engine.load(source)
        return [await _called(engine, case) for case in cases]


def _unlike(case: Case, said: Said, told: Told) -> bool:
    """Whether plain Python says another thing than a worker."""
    if said.failure is None:
        return (told.reason, told.value) != ("ok.done", said.value) or told.partials != said.partials
    name, message = said.failure
    line = message.splitlines()[0] if message else ""
    told_as = {"NotData": ("tool_error.result_not_data", line), "SystemExit": ("tool_error.exit", f"SystemExit: {line}")}
    reason, wanted = told_as.get(name, ("tool_error.exception", f"{name}: {line}"))
    return told.reason != reason or told.lines[:1] != (one_line(wanted),)


async def test_both_kinds_answer_alike_and_as_plain_python_does(tmp_path: Path) -> None:
    """Reason, value, lines, stream, standard output and error of every call of the corpus."""
    kinds.require_image()
    native, wasm = [await _told(tmp_path, kind, HERE / "corpus", CASES) for kind in kinds.KINDS]
    assert {case[0]: pair for case, *pair in zip(CASES, native, wasm, strict=True) if pair[0] != pair[1]} == {}
    expected = plain(tmp_path, "corpus", CASES)
    assert [(case, said, told) for case, said, told in zip(CASES, expected, wasm, strict=True) if _unlike(case, said, told)] == []


LONG = """
from engine import tool

@tool(effect="read", description="One of a test.")
def long(megabytes: int) -> str:
    return "x" * (megabytes << 20)
"""


async def test_a_result_of_any_length_is_refused_by_it(tmp_path: Path) -> None:
    """Both kinds name the bound, however far behind it the result is; one within the bound arrives."""
    kinds.require_image()
    source = tmp_path / "long.py"
    source.write_text(LONG)
    cases: tuple[Case, ...] = tuple(("long", {"megabytes": size}) for size in (9, 60, 4))
    for kind in kinds.KINDS:
        told = await _told(tmp_path, kind, source, cases)
        assert [one.reason for one in told] == ["limit_exceeded.result", "limit_exceeded.result", "ok.done"], kind
        assert told[-1].value == "x" * (4 << 20)


async def test_what_cannot_be_alike_still_differs(tmp_path: Path) -> None:
    """Each row of the table is true of a WebAssembly worker, and not of a native one: else it has to go."""
    kinds.require_image()
    cases: tuple[Case, ...] = tuple((difference.tool, {}) for difference in DIFFERENCES)
    native, wasm = [await _told(tmp_path, kind, HERE / "differing.py", cases) for kind in kinds.KINDS]
    assert [told.value for told in wasm] == [difference.guest for difference in DIFFERENCES]
    assert [difference.tool for difference, told in zip(DIFFERENCES, native, strict=True) if told.value == difference.guest] == []
