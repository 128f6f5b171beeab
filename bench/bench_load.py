"""Loading a source of 1 to 500 files, and the first call of it.

Every source is new to the engine and to its state folder: it is parsed, staged, published and described in a jail each time.
"""

import trio

from bench import payload
from bench.case import WASM, Case, Metric, Target
from bench.measurement import Run
from bench.walls import Wall, both

FILES = (1, 5, 20, 50, 100, 200, 500)
_TOOL = """
from engine import tool
{imports}

@tool(effect="read", description="Adds up what its modules say.")
def total_{name}() -> int:
    return {total}
"""
_PER_FOLDER = 50  # modules of one package of the source


def source(name: str, files: int) -> dict[str, str]:
    """A tool file that imports ``files - 1`` small modules, each worth its number."""
    modules = [(f"part_{name}_{number // _PER_FOLDER}", f"m{number}", number) for number in range(1, files)]
    imports = "\n".join(f"from {package} import {module}" for package, module, _ in modules)
    total = " + ".join(f"{module}.value()" for _, module, _ in modules) or "0"
    made = {"tools.py": _TOOL.format(imports=imports, name=name, total=total)}
    for package, module, number in modules:
        made[f"{package}/__init__.py"] = ""
        made[f"{package}/{module}.py"] = f"def value() -> int:\n    # of the source {name}\n    return {number}\n"
    return made


async def _all(run: Run, wall: Wall) -> None:
    async with payload.engine(run, wall) as engine:
        await engine.load(payload.write(run.folder / "warm", source("warm", 2)))
        for files in (1, 5, 100) if run.quick else FILES:
            for number in range(run.size(full=8 if files <= 50 else 2, quick=3 if files <= 50 else 1)):
                name = f"{files}_{number}"
                place = payload.write(run.folder / name, source(name, files))
                await trio.sleep(0.05)
                with run.timed("load", at=files):
                    await engine.load(place)
                await trio.sleep(0.05)
                with run.timed("first call", at=files):
                    outcome = await engine.call(f"total_{name}", {})
                run.check(outcome.value, sum(range(files)), outcome.reason)


CASE = Case(
    name="load",
    title="Loading a source, and its first call, by number of files",
    metrics=(
        Metric(name="load", about="from path to declarations", per="files", chart="growth"),
        Metric(name="first call", about="the first call of the loaded source", per="files", chart="growth"),
    ),
    subjects=both(_all),
    targets=(
        Target(metric="load", statistic="median", bound=40, at=5),
        Target(metric="first call", statistic="median", bound=12, at=5),
        Target(metric="first call", statistic="median", bound=60, at=5, subject=WASM),
    ),
    full=3,
    compare=("load", "first call"),
)
