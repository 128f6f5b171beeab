"""Fetches wheels with pip, by hash only: those of a layer, and those that an image carries.

Its job: read a requirements file strictly, let pip download those wheels, say which digests each file may have.
Not its job: unpacking or checking wheels (``staging/wheels.py``), keeping layers (``staging/layers.py``), starting pip (``running.py``).
Laws:
1. A requirement without a hash, or a line that is anything but a pinned requirement, refuses before pip runs (tests/unit/test_layers.py).
2. No code of a package runs: wheels only, no dependencies, no builds (tests/security/test_layer_wheels.py).
"""

import dataclasses
import re
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from engine.images import running
from engine.outcome import error_for

# nothing but what a hash names, and nothing that would have to be built, which runs code of the package
PIP_OPTIONS = ("--require-hashes", "--only-binary", ":all:", "--disable-pip-version-check")
_REQUIREMENTS_BYTES = 1 << 20
_SECONDS = 600  # for all wheels together
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_NOTHING: Mapping[str, str] = MappingProxyType({})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pinned:
    """One line of a requirements file: a package, its exact version and the SHA-256 digests its wheel may have."""

    name: str
    text: str
    sha256: frozenset[str]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Download:
    """Wheels on disk, and for each file name the digests that were pinned: what ``layers.add`` takes."""

    wheels: tuple[Path, ...]
    pins: Mapping[str, frozenset[str]]


def read_requirements(text: str) -> tuple[Pinned, ...]:
    """The pinned requirements. Raises refused.layer at the first line that is anything else, options included."""
    pinned: list[Pinned] = []
    for number, line in _logical(text):
        requirement, *hashes = re.split(r"\s+(?=--hash=)", line)
        found = [match[1] for one in hashes if (match := _HASH.fullmatch(one.strip()))]
        # security: an option such as --index-url would let the file choose where its bytes come from
        if not hashes or len(found) != len(hashes):
            raise error_for(
                "refused.layer", f"line {number}: write name==version --hash=sha256:<64 digits>; options and bare names are refused"
            )
        try:
            parsed = Requirement(requirement)
        except InvalidRequirement:
            raise error_for("refused.layer", f"line {number}: not a requirement: write name==version --hash=sha256:<64 digits>") from None
        exact = [one for one in parsed.specifier if one.operator == "==" and not one.version.endswith("*")]
        if parsed.url is not None or len(exact) != 1 or len(parsed.specifier) != 1:
            raise error_for("refused.layer", f"line {number}: {parsed.name} must be pinned with == to one version, without an address")
        pinned.append(Pinned(name=canonicalize_name(parsed.name), text=str(parsed), sha256=frozenset(found)))
    if not pinned:
        raise error_for("refused.layer", "the requirements file names no package")
    return tuple(pinned)


def _logical(text: str) -> list[tuple[int, str]]:
    """Lines with their numbers: continued ones joined, comments and empty ones gone."""
    lines: list[tuple[int, str]] = []
    held, start = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        start = start if held else number
        plain = re.sub(r"(?:^|\s)#.*$", "", line).rstrip()
        if plain.endswith("\\"):
            held += plain[:-1] + " "
            continue
        if (held + plain).strip():
            lines.append((start, (held + plain).strip()))
        held = ""
    if held.strip():
        lines.append((start, held.strip()))
    return lines


def download_wheels(requirements: Path, into: Path, *, environment: Mapping[str, str] = _NOTHING) -> Download:
    """Download each pinned wheel into an empty folder. Raises refused.layer with what pip said, refused.storage for the folder.

    pip sees only ``environment``: where an index is configured by variables, the caller hands those over.
    """
    pinned = read_requirements(_text(requirements))
    into.mkdir(mode=0o700, parents=True, exist_ok=True)
    if any(into.iterdir()):
        raise error_for("refused.storage", f"{into} must be empty")
    with tempfile.TemporaryDirectory() as folder:
        # the very lines that were checked, so that the file cannot change in between
        checked = Path(folder) / "requirements.txt"
        checked.write_text("".join(f"{one.text} {' '.join(f'--hash=sha256:{h}' for h in sorted(one.sha256))}\n" for one in pinned))
        _pip(checked, into, environment)
    wheels = tuple(sorted(into.iterdir()))
    return Download(wheels=wheels, pins=MappingProxyType({wheel.name: _digests_for(wheel.name, pinned) for wheel in wheels}))


def download_exact(wheels: Mapping[str, str], into: Path, *, pip: Path, environment: Mapping[str, str], tick: Callable[[], None]) -> None:
    """Download these files, name -> SHA-256, whatever machine they are built for. Raises ``running.Failed`` with what pip said."""
    into.mkdir(mode=0o700, parents=True, exist_ok=True)
    for file, sha256 in wheels.items():
        name, version, _, tags = parse_wheel_filename(file)
        tag = min(tags, key=str)
        # the wheel for a certain Python and machine has to be asked for by these
        chosen = [
            "--platform",
            tag.platform,
            "--python-version",
            tag.interpreter[2:],
            "--implementation",
            tag.interpreter[:2],
            "--abi",
            tag.abi,
        ]
        with tempfile.TemporaryDirectory() as folder:
            line = Path(folder) / "requirements.txt"
            line.write_text(f"{name}=={version} --hash=sha256:{sha256}\n")
            options = [*PIP_OPTIONS, "--no-deps", "--no-input", "--quiet", *(chosen if tag.platform != "any" else [])]
            command: list[str | Path] = [pip, "-I", "-m", "pip", "download", *options, "--dest", into, "-r", line]
            running.run(command, environment=environment, seconds=_SECONDS, tick=tick)


def _text(requirements: Path) -> str:
    try:
        with open(requirements, "rb") as file:
            content = file.read(_REQUIREMENTS_BYTES + 1)
        if len(content) > _REQUIREMENTS_BYTES:
            raise error_for("refused.layer", f"{requirements.name} is larger than {_REQUIREMENTS_BYTES} bytes")
        return content.decode("utf-8")
    except OSError as error:
        raise error_for("refused.layer", f"{requirements.name} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise error_for("refused.layer", f"{requirements.name} is not UTF-8 text") from None


def _pip(requirements: Path, into: Path, environment: Mapping[str, str]) -> None:
    options = [*PIP_OPTIONS, "--no-deps", "--no-input", "--quiet"]
    command = [sys.executable, "-I", "-m", "pip", "download", *options, "--dest", str(into), "-r", str(requirements)]
    try:
        running.run(command, environment=environment, seconds=_SECONDS)
    except running.Failed as failed:
        raise error_for("refused.layer", *failed.lines) from None


def _digests_for(file: str, pinned: tuple[Pinned, ...]) -> frozenset[str]:
    try:
        name = parse_wheel_filename(file)[0]
    except InvalidWheelFilename:
        raise error_for("refused.layer", f"pip left {file}, which is no wheel") from None
    return frozenset[str]().union(*(one.sha256 for one in pinned if one.name == name))
