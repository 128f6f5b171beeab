"""The environment that a builder runs in: an interpreter of this machine, and exactly the packages that are pinned by hash.

Its job: the best interpreter there is, a venv of its own in the cache, pip with hashes and without building anything.
Not its job: what the builder does (``worker_images/<image>/build.py``), when (``build.py``).
Laws:
1. The same pins and interpreter are installed once; an installation that was cut short is made anew (tests/unit/test_image_builder.py).
2. What is missing is said in words: which Python, which part of it, or that nothing can be fetched (tests/unit/test_image_builder.py).
3. Nothing is installed that no hash names, and nothing is built (tests/unit/test_image_builder.py).
"""

import dataclasses
import hashlib
import json
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from engine.errors import one_line
from engine.images import running
from engine.images.cache import Cache
from engine.images.fetch import PIP_OPTIONS
from engine.images.telling import Told
from engine.outcome import error_for

_SECONDS = 900  # for all packages together
_COMPLETE = "complete.json"
_LOOK = """
import json, sys
missing = []
for name in ("venv", "ensurepip"):
    try:
        __import__(name)
    except ImportError:
        missing.append(name)
print(json.dumps({"version": list(sys.version_info[:3]), "base": getattr(sys, "_base_executable", sys.executable), "missing": missing}))
"""
_VERSIONS = """
import importlib.metadata, json
print(json.dumps({one.metadata["Name"].lower(): one.version for one in importlib.metadata.distributions()}))
"""
_NOT_REACHED = re.compile(r"could not find a version|no matching distribution|connection|resolution|timed out|unreachable|proxy", re.I)
WAY_OUT = "where nothing can be fetched: `stockade image export NAME FILE` on a machine that has it, `stockade image import FILE` here"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Builder:
    """An environment that is ready: its interpreter, and the versions of what is in it."""

    python: Path
    versions: Mapping[str, str]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Means:
    """What a build is given: the variables by which pip finds its index, and the interpreter to use, where one was named."""

    environment: Mapping[str, str]
    interpreter: Path | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Interpreter:
    path: Path
    version: str


def builder_for(requirements: bytes, least: tuple[int, int], cache: Cache, means: Means, told: Told) -> Builder:
    """The environment with these pins. The caller is the cache's writer. Raises refused.image_build with what is missing."""
    found = _interpreter(least, means)
    key = hashlib.sha256(f"{found.path} {found.version} {hashlib.sha256(requirements).hexdigest()}".encode()).hexdigest()
    folder = cache.builders / key
    try:
        known = json.loads((folder / _COMPLETE).read_bytes())
        return Builder(python=folder / "bin" / "python", versions=known)
    except (OSError, ValueError):
        shutil.rmtree(folder, ignore_errors=True)  # never completed
    told.step(f"installing the builder's packages for Python {found.version}, by their hashes")
    try:
        versions = _install(folder, requirements, found, means, told)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return Builder(python=folder / "bin" / "python", versions=versions)


def keys_in_use(cache: Cache, pins: set[bytes], means: Means, leasts: set[tuple[int, int]]) -> set[str]:
    """The names of the folders that builds of these pins would use."""
    digests = {hashlib.sha256(pin).hexdigest() for pin in pins}
    found = [one for least in leasts for one in _found(least, means)]
    return {hashlib.sha256(f"{one.path} {one.version} {pin}".encode()).hexdigest() for one in found for pin in digests}


def _install(folder: Path, requirements: bytes, found: _Interpreter, means: Means, told: Told) -> dict[str, str]:
    python = folder / "bin" / "python"
    pinned = folder / "requirements.txt"
    pip: list[str | Path] = [python, "-I", "-m", "pip", "install", *PIP_OPTIONS, "--no-input", "--quiet", "--no-compile", "-r", pinned]
    try:
        running.run([found.path, "-I", "-m", "venv", folder], environment={}, seconds=_SECONDS, tick=told.tick)
        pinned.write_bytes(requirements)
        running.run(pip, environment=means.environment, seconds=_SECONDS, tick=told.tick)
        said = running.run([python, "-I", "-c", _VERSIONS], environment={}, seconds=_SECONDS)
    except running.Failed as failed:
        raise error_for("refused.image_build", *lines_of("the builder's packages", failed)) from None
    versions: dict[str, str] = json.loads(said)
    (folder / _COMPLETE).write_text(json.dumps(versions))
    return versions


def lines_of(what: str, failed: running.Failed) -> list[str]:
    """The last words of a program that fetches, and the way out where it did not reach an index."""
    lines = [f"{what}: {one_line(line)}" for line in failed.lines]
    return [*lines, WAY_OUT] if _NOT_REACHED.search(" ".join(failed.lines)) else lines


def _interpreter(least: tuple[int, int], means: Means) -> _Interpreter:
    problems: list[str] = []
    for found in _found(least, means, problems):
        return found
    wanted = f"Python {least[0]}.{least[1]} or newer, with venv and ensurepip"
    told = problems or [f"there is none on PATH or in ~/.pyenv/versions, and this is {sys.version.split()[0]}"]
    hint = f"install it (apt-get install python{least[0]}.{least[1]} python{least[0]}.{least[1]}-venv), or name one with --python"
    raise error_for("refused.image_build", f"the builder needs {wanted}: {hint}", *told[:8])


def _found(least: tuple[int, int], means: Means, problems: list[str] | None = None) -> Iterator[_Interpreter]:
    """The interpreters that can be used, best first: the one that was named alone, else our own, else the newest."""
    seen: set[Path] = set()
    for path in [means.interpreter] if means.interpreter else _candidates(least, means.environment):
        real = path.resolve()
        if real in seen:
            continue
        seen.add(real)
        problem = f"{path} cannot be run"
        try:
            said = json.loads(running.run([path, "-I", "-c", _LOOK], environment={}, seconds=60).strip().splitlines()[-1])
            version = ".".join(str(part) for part in said["version"])
            if tuple(said["version"][:2]) < least:
                problem = f"{path} is {version}"
            elif said["missing"]:
                problem = f"{path} lacks {' and '.join(said['missing'])}"
            else:
                yield _Interpreter(path=Path(said["base"]), version=version)
                continue
        except (running.Failed, ValueError, LookupError, TypeError):
            pass  # a place holder, as pyenv has for each version that some other folder uses
        if problems is not None:
            problems.append(problem)


def _candidates(least: tuple[int, int], environment: Mapping[str, str]) -> Iterator[Path]:
    if sys.version_info[:2] >= least:
        yield Path(sys.executable)
    # pyenv's place holders on PATH need a home of their own; what they stand for lies beside them
    places = [Path(place).parent for place in environment.get("PATH", "").split(":") if place.endswith("/shims")]
    roots = [*([Path(environment["HOME"], ".pyenv")] if environment.get("HOME") else []), *places]
    for minor in range(14, least[1] - 1, -1):
        if found := shutil.which(f"python3.{minor}", path=environment.get("PATH", "")):
            yield Path(found)
        for root in roots:
            yield from sorted(root.glob(f"versions/3.{minor}.*/bin/python3.{minor}"), reverse=True)
    if found := shutil.which("python3", path=environment.get("PATH", "")):
        yield Path(found)
