"""The main job on each Python that is supported and present, in an environment made from the pinned requirements."""

import subprocess
from pathlib import Path

import pytest

from tests import kit, programs
from tests.interpreters import interpreter

VERSIONS = ("3.11", "3.12", "3.13")
TOOLS = """
import asyncio, dataclasses, enum, sys, threading
from concurrent.futures import ThreadPoolExecutor
from engine import Context, schema, tool
from shop import windows

class Region(enum.Enum):
    EU = "EU"
    US = "US"

@dataclasses.dataclass
class Order:
    region: Region
    items: list[str] = dataclasses.field(default_factory=list)

@tool(description="Read current refund policy.", input=schema.object({"region": schema.string()}),
      output=schema.object({"region": schema.string(), "refundWindowDays": schema.integer()}), effect="read")
def lookup_policy(region: str) -> dict:
    return {"region": region, "refundWindowDays": windows.days(region)}

@tool(description="which interpreter", effect="read")
def version() -> list[int]:
    return list(sys.version_info[:2])

@tool(description="a dataclass both ways", effect="read")
def doubled(order: Order) -> Order:
    return Order(Region.US if order.region is Region.EU else Region.EU, order.items * 2)

@tool(description="an event loop", effect="read")
async def together(numbers: list[int]) -> int:
    async def one(number):
        await asyncio.sleep(0)
        return await asyncio.to_thread(lambda: number)
    return sum(await asyncio.gather(*(one(number) for number in numbers)))

@tool(description="threads", effect="read")
def threaded(count: int) -> int:
    with ThreadPoolExecutor(count) as pool:
        return sum(pool.map(lambda number: number, range(count)))

@tool(description="a stream", effect="read", partial=schema.integer())
def steps(n: int, context: Context):
    for number in range(n):
        context.progress(number, n)
        yield number

@tool(description="a failure", effect="read")
def fail() -> int:
    raise ValueError("on purpose")
"""
MAIN = f"""
TOOLS = {TOOLS!r}
CALLS = [
    ("lookup_policy", {{"region": "EU"}}), ("version", {{}}), ("doubled", {{"order": {{"region": "EU", "items": ["a"]}}}}),
    ("together", {{"numbers": [1, 2, 3]}}), ("threaded", {{"count": 8}}), ("steps", {{"n": 3}}), ("fail", {{}}),
    ("lookup_policy", {{"region": 5}}),
]

async def main():
    place = source("tools", TOOLS)
    for name, text in (("__init__", ""), ("windows", "from .table import TABLE\\ndef days(region):\\n    return TABLE[region]\\n"),
                       ("table", "TABLE = {{'EU': 14, 'US': 30}}\\n")):
        (place.parent / "shop").mkdir(exist_ok=True)
        (place.parent / "shop" / f"{{name}}.py").write_text(text)
    made = []
    async with Engine(state_dir=FOLDER / "state") as engine:
        declared = [declaration.digest for declaration in await engine.load(place)]
        for name, arguments in CALLS:
            async with engine.stream(name, arguments) as items:
                *before, outcome = [item async for item in items]
            made.append([outcome.reason, outcome.value, len(before)])
    return {{"calls": made, "declared": declared}}
told(within(100, main))
"""


def expected(version: str) -> list[list[object]]:
    """Reason, value and number of things seen before, of each call."""
    return [
        ["ok.done", {"region": "EU", "refundWindowDays": 14}, 0],
        ["ok.done", [int(part) for part in version.split(".")], 0],
        ["ok.done", {"region": "US", "items": ["a", "a"]}, 0],
        ["ok.done", 6, 0],
        ["ok.done", 28, 0],
        ["ok.done", None, 6],
        ["tool_error.exception", None, 0],
        ["refused.arguments", None, 0],
    ]


def interpreter_of(version: str) -> Path | None:
    """An interpreter of that version on this machine."""
    major, minor = version.split(".")
    return interpreter((int(major), int(minor)))


@pytest.fixture(scope="session")
def environments(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path | str]:
    """For each version the interpreter of an environment with the pinned requirements, or why there is none."""
    made: dict[str, Path | str] = {}
    for version in VERSIONS:
        found = interpreter_of(version)
        if found is None:
            made[version] = f"unproven: no Python {version} on this machine"
            continue
        folder = tmp_path_factory.mktemp(f"python-{version}")
        install = ["-m", "pip", "install", "-q", "--disable-pip-version-check", "--require-hashes", "--only-binary", ":all:"]
        steps = [
            [str(found), "-m", "venv", str(folder)],
            [str(folder / "bin" / "python"), *install, "-r", str(kit.PROJECT / "requirements" / "run.txt")],
        ]
        done = [subprocess.run(step, capture_output=True, text=True, timeout=300, check=False) for step in steps]
        failed = next((one for one in done if one.returncode), None)
        made[version] = folder / "bin" / "python" if failed is None else f"unproven: {(failed.stderr or failed.stdout).strip()[-200:]}"
    return made


@pytest.mark.parametrize("version", VERSIONS)
def test_the_main_job_works_on_every_supported_python(environments: dict[str, Path | str], tmp_path: Path, version: str) -> None:
    """Files, dataclasses, event loop, threads, streams and failures: the same answers from each."""
    python = environments[version]
    if isinstance(python, str):
        pytest.skip(python)
    made = programs.run(tmp_path, MAIN, variables={"PYTHONPATH": str(kit.PROJECT)}, interpreter=str(python), seconds=150)
    assert made["calls"] == expected(version)


def test_one_declaration_has_one_digest_on_all_of_them(environments: dict[str, Path | str], tmp_path: Path) -> None:
    """What a tool says of itself does not depend on the interpreter that reads it."""
    present = [str(place) for place in environments.values() if isinstance(place, Path)]
    if len(present) < 2:
        pytest.skip("unproven: there is one Python only")
    found = [
        programs.run(tmp_path / str(number), MAIN, variables={"PYTHONPATH": str(kit.PROJECT)}, interpreter=place, seconds=150)["declared"]
        for number, place in enumerate(present)
    ]
    assert all(digests == found[0] for digests in found)
    assert len(found[0]) == 7
