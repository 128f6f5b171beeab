"""Large values: results of 1 KB to 8 MB as text and as records, and 1 MB that goes in and comes back."""

from typing import Any

import trio

from bench import payload
from bench.case import WASM, Case, Metric, Target
from bench.measurement import Run
from bench.rivals.jobs import LARGE_BYTES
from bench.sources import RECORD_BYTES, records
from bench.walls import Wall, both
from engine import Engine

SIZES = (1_000, 10_000, 100_000, 1_000_000, 8_000_000)
_SOURCE = """
from typing import TypedDict

from engine import tool


class Customer(TypedDict):
    id: int
    name: str
    amount: float
    open: bool
    tags: list[str]


@tool(effect="read", description="So many letters.")
def text(size: int) -> str:
    return "x" * size


@tool(effect="read", description="Records of about so many bytes.")
def records(size: int) -> list[Customer]:
    return [
        {"id": number, "name": f"customer-{number:06}", "amount": number / 8, "open": number % 2 == 0, "tags": ["a", "b"]}
        for number in range(max(1, size // RECORD_BYTES))
    ]


@tool(effect="read", description="The same text.")
def echo_text(value: str) -> str:
    return value


@tool(effect="read", description="The same records.")
def echo_records(value: list[Customer]) -> list[Customer]:
    return value
""".replace("RECORD_BYTES", str(RECORD_BYTES))


async def _all(run: Run, wall: Wall) -> None:
    times = run.size(full=8, quick=3)
    async with payload.engine(run, wall) as engine:
        await engine.load(payload.write(run.folder, _SOURCE))
        for name in ("text", "records", "echo_text", "echo_records"):
            empty = {"size": 1} if not name.startswith("echo") else {"value": "" if name == "echo_text" else []}
            await engine.call(name, empty)
        for size in SIZES:
            await _asked(run, engine, "text", {"size": size}, "text out", "x" * size, size, times)
            await _asked(run, engine, "records", {"size": size}, "records out", records(size), size, times)
        text, made = "x" * LARGE_BYTES, records(LARGE_BYTES)
        await _asked(run, engine, "echo_text", {"value": text}, "text in and out", text, LARGE_BYTES, times)
        await _asked(run, engine, "echo_records", {"value": made}, "records in and out", made, LARGE_BYTES, times)


async def _asked(
    run: Run, engine: Engine, tool: str, arguments: dict[str, Any], metric: str, wanted: object, size: int, times: int
) -> None:
    """One call after the other, each answer compared whole."""
    for _ in range(times):
        await trio.sleep(0.01)
        with run.timed(metric, at=size):
            outcome = await engine.call(tool, arguments)
        run.check(outcome.value == wanted, True, f"{metric}, {size} bytes: {outcome.reason}")


CASE = Case(
    name="large",
    title="Large values",
    metrics=(
        Metric(name="text out", about="a text as result", per="bytes", chart="growth"),
        Metric(name="records out", about="a list of records as result", per="bytes", chart="growth"),
        Metric(name="text in and out", about="1 MB of text as argument and as result", per="bytes"),
        Metric(name="records in and out", about="1 MB of records as argument and as result", per="bytes"),
    ),
    subjects=both(_all),
    rivals=("plain_python", "monty", "eryx"),
    targets=(
        Target(metric="text in and out", statistic="median", bound=15, at=LARGE_BYTES),
        Target(metric="records in and out", statistic="median", bound=100, at=LARGE_BYTES),
        Target(metric="text in and out", statistic="median", bound=60, at=LARGE_BYTES, subject=WASM),
    ),
    full=3,
    compare=("text out", "records out", "text in and out", "records in and out"),
)
