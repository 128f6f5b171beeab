"""Looking for secrets in what leaves a call: megabytes a second by what the data is, and what it adds to one small call.

The data holds no secret, as nearly all data does: what is found has been looked for. Each kind is looked through once more with a secret at
its end, which has to be found. The small call's share is clocked where it is done, in an engine that works as always.
"""

import base64
import functools
import importlib
import json
import random
import string
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from pydoc_data.topics import topics
from types import MappingProxyType
from typing import Any

import trio

from bench import payload
from bench.case import OURS, Case, Metric, Target
from bench.measurement import Absent, Run, lookup_policy
from bench.sources import records

HELD = (0, 1, 20)  # secrets
SIZE = 8_000_000
_LEAST = 200  # MB/s
# arguments in; the payload and its texts; what was printed; the receipt's line
_PARTS = ("look", "arguments", "result", "text", "line")


def _records() -> bytes:
    return json.dumps(records(SIZE), separators=(",", ":")).encode()


def _text() -> bytes:
    pages = "\n".join(topics.values()).encode()
    return (pages * (SIZE // len(pages) + 1))[:SIZE]


def _base64() -> bytes:
    return base64.b64encode(random.Random(1).randbytes(SIZE * 3 // 4))


KINDS: Mapping[str, Callable[[], bytes]] = MappingProxyType({"records": _records, "text": _text, "base64": _base64})


def secrets(count: int) -> dict[str, str]:
    """Values by their names, always the same ones: hexadecimal digits, base64, and letters with signs in turns."""
    chance = random.Random(2)
    signs = string.ascii_letters + string.digits + "!$%&/()=?+-_<>"
    forms: list[Callable[[], str]] = [
        lambda: chance.randbytes(16).hex(),
        lambda: base64.b64encode(chance.randbytes(30)).decode(),
        lambda: "".join(chance.choices(signs, k=24)),
    ]
    return {f"s{number}": forms[number % len(forms)]() for number in range(count)}


def policy(folder: Path, count: int) -> Path:
    """A policy with so many secrets, and a file of each."""
    lines = ['extends = "required"', *(["[secrets]"] if count else [])]
    for name, value in secrets(count).items():
        place = folder / name
        place.touch(mode=0o600)
        place.write_text(value, encoding="utf-8")
        lines.append(f'{name} = {{ value = "file:{place}", reason = "the bench looks for it" }}')
    (folder / "own.toml").write_text("\n".join(lines), encoding="utf-8")
    return folder / "own.toml"


def _stockade(run: Run) -> None:
    spent: Counter[str] = Counter()
    for name in _PARTS:
        _clock("engine.leaving", "Leaving", name, spent)
    _passes(run)
    for held in HELD:
        trio.run(_small, run, held, spent)


def _passes(run: Run) -> None:
    from engine.places import data_dir
    from engine.policy.shapes import load_shapes
    from engine.results.redact import Watch

    shapes = load_shapes(data_dir("policies"))
    for held in HELD:
        values = secrets(held)
        watch = Watch(values, shapes)
        for kind, make in KINDS.items():
            data = make()
            for _ in range(run.size(full=10, quick=4)):
                started = time.perf_counter()
                found = [hit.id for hits in watch.slices(data) for hit in hits]
                run.add(kind, len(data) / (time.perf_counter() - started) / 1e6, at=held)
                run.check(found, [], f"{kind} without a secret")
            found = [hit.id for hits in watch.slices(data + "".join(values.values()).encode()) for hit in hits]
            run.check(found, [*values], f"{kind} with every secret at its end")


async def _small(run: Run, held: int, spent: Counter[str]) -> None:
    folder = run.folder / f"held-{held}"
    folder.mkdir()
    part = Run(quick=run.quick, folder=folder)
    async with payload.engine(part, policy=policy(folder, held)) as engine:
        await engine.load(payload.write(folder, payload.LOOKUP))
        for number in range(run.size(full=400, quick=120)):
            spent.clear()
            outcome = await engine.call("lookup_policy", {"region": "EU"})
            await outcome.concluded()
            if number >= 20:  # the first ones warm the path
                run.add("small call", spent.total() / 1000, at=held)
                run.add("receipt", spent["line"] / 1000, at=held)
            run.check(outcome.value, lookup_policy("EU"), outcome.reason)


def _clock(module: str, owner: str, name: str, spent: Counter[str]) -> None:
    """Have a method of the engine add its nanoseconds to those of its name. Raises Absent where there is none."""
    try:
        found: Any = getattr(importlib.import_module(module), owner)
        method: Callable[..., Any] = getattr(found, name)
    except (ModuleNotFoundError, AttributeError):
        raise Absent(f"this engine has no {module}.{owner}.{name}") from None

    @functools.wraps(method)
    def clocked(*arguments: Any, **options: Any) -> Any:
        started = time.perf_counter_ns()
        try:
            return method(*arguments, **options)
        finally:
            spent[name] += time.perf_counter_ns() - started

    setattr(found, name, clocked)


CASE = Case(
    name="redaction",
    title="Looking for secrets in what leaves",
    metrics=(
        Metric(name="records", about="records as JSON", unit="MB/s", better="higher", per="secrets", chart="growth"),
        Metric(name="text", about="English text with code in it", unit="MB/s", better="higher", per="secrets", chart="growth"),
        Metric(name="base64", about="base64 of random bytes", unit="MB/s", better="higher", per="secrets", chart="growth"),
        Metric(name="small call", about="added to one small call, its arguments and its receipt included", unit="us", per="secrets"),
        Metric(name="receipt", about="of that for the receipt's line", unit="us", per="secrets"),
    ),
    subjects={OURS: _stockade},
    targets=tuple(Target(metric=kind, statistic="median", bound=_LEAST, at=held) for kind in KINDS for held in HELD),
    full=3,
    compare=("records", "text", "base64", "small call"),
)
