"""Collects the pure Python packages that an image carries: ``python collect.py read|unpack SPEC.json``, where pyodide-build is.

Its job: the packages' recipes, read with pyodide-build's own model; their wheels unpacked and looked through with its tools; the lock file.
Not its job: fetching wheels (``engine/images/fetch.py``), putting them into a component (``python_wasm/build.py``).
Laws:
1. A recipe names one wheel by its SHA-256 and asks for no step that would run code (tests/unit/test_image_packages.py).
2. Native code of any platform refuses, but for the files that the image's recipe leaves out by name (tests/unit/test_image_packages.py).
3. What a package needs is collected with it, or it refuses (tests/unit/test_image_packages.py).
"""

import hashlib
import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename
from pyodide_build.common import check_wasm_magic_number, unpack_wheel
from pyodide_build.recipe.spec import MetaConfig, _BuildSpec
from pyodide_lock.spec import InfoSpec, PackageSpec, PyodideLockSpec

_SHA256 = re.compile(r"[0-9a-f]{64}")
_NATIVE = (".so", ".pyd", ".dll", ".dylib", ".a", ".o", ".lib", ".wasm", ".js", ".exe")
_EXECUTABLE = (b"\x7fELF", b"MZ", b"\xfe\xed\xfa", b"\xcf\xfa\xed\xfe", b"\xce\xfa\xed\xfe", b"\xca\xfe\xba\xbe", b"!<arch>\n")
_STARTS_BY_ITSELF = (".pth", "._pth", ".pyc", ".pyo", ".egg-link")


class Refused(Exception):
    """The text says which package or file, and why."""


def read(spec: dict[str, Any]) -> list[dict[str, Any]]:
    """The packages of these recipes, each with the one wheel that it is made of."""
    found = [_recipe(Path(spec["recipes"]) / name / "meta.yaml", name) for name in spec["names"]]
    names = {package["name"] for package in found}
    for package in found:
        if missing := sorted(set(package["depends"]) - names):
            raise Refused(f"{package['name']}: needs {missing[0]}: add it to the image's recipe")
    return found


def _recipe(path: Path, name: str) -> dict[str, Any]:
    try:
        meta = MetaConfig.from_yaml(path)
    except Exception as error:
        raise Refused(f"{name}: pyodide-build does not take its meta.yaml: {' '.join(str(error).split())[:500]}") from None
    package, source = meta.package, meta.source
    file = source.url or ""
    # security: whatever runs while a package is built, runs as the operator; an address would be a second place that bytes come from
    if not file.endswith(".whl") or "/" in file or "\\" in file or ":" in file or source.path or not _SHA256.fullmatch(str(source.sha256)):
        raise Refused(f"{name}: source: want url: the name of a wheel, without a place, and its sha256")
    plain = _BuildSpec()
    plain.vendor_sharedlib = False  # the model's own setting for wheels
    if meta.build != plain or meta.requirements.executable or meta.requirements.build_extras:
        raise Refused(f"{name}: build: nothing is built here, leave it out")
    wheel, version, _, tags = parse_wheel_filename(file)
    if canonicalize_name(package.name) != wheel or wheel != name or package.version != str(version):
        raise Refused(f"{name}: its folder, name, version and wheel do not agree")
    depends = [canonicalize_name(Requirement(line).name) for line in meta.requirements.run]
    tag = sorted(str(tag) for tag in tags)
    return {"name": name, "version": package.version, "file": file, "tags": tag, "sha256": source.sha256, "depends": depends}


def unpack(spec: dict[str, Any]) -> None:
    """Unpack the wheels, each into a folder of its name below ``into``, and write the lock file."""
    into = Path(spec["into"])
    locked = {}
    for package in spec["packages"]:
        wheel = Path(spec["wheels"]) / package["file"]
        if hashlib.sha256(wheel.read_bytes()).hexdigest() != package["sha256"]:
            raise Refused(f"{package['file']}: its SHA-256 is not the one of its recipe")
        folder = into / package["name"]
        # it checks each file against the wheel's RECORD
        unpack_wheel(wheel, into / ".unpacked", verbose=False)
        (unpacked,) = (into / ".unpacked").iterdir()
        shutil.move(unpacked, folder)
        _leave_out(package["name"], folder, spec["without"].get(package["name"], []))
        _look_through(package["name"], folder)
        _check_needs(package, folder)
        locked[package["name"]] = PackageSpec(
            name=package["name"],
            version=package["version"],
            file_name=package["file"],
            install_dir="site",
            sha256=package["sha256"],
            imports=_tops(folder),
            depends=package["depends"],
        )
    shutil.rmtree(into / ".unpacked", ignore_errors=True)
    lock = PyodideLockSpec(info=InfoSpec(platform="wasip2", python="3.14.0"), packages=locked)
    lock.check_wheel_filenames()
    lock.to_json(Path(spec["lock"]), indent=1)


def _leave_out(name: str, folder: Path, without: list[str]) -> None:
    for path in without:
        file = folder / path
        if ".." in Path(path).parts or not file.is_file() or not _native(file):
            raise Refused(f"{name}: {path} is to be left out, but it is no native file of its wheel")
        file.unlink()


def _look_through(name: str, folder: Path) -> None:
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder).as_posix()
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise Refused(f"{name}: {inside} is a link or a special file")
        if path.is_file() and _native(path):
            raise Refused(
                f"{name}: {inside} is native code, which the image cannot run: name it in the recipe's without, if it has a fallback"
            )
        if inside.lower().endswith(_STARTS_BY_ITSELF) or inside.split("/")[0].endswith(".data"):
            raise Refused(f"{name}: {inside} has no place on a module path")


def _native(path: Path) -> bool:
    with path.open("rb") as file:
        start = file.read(8)
    named = path.name.lower().endswith(_NATIVE) or ".so." in path.name.lower()
    return named or check_wasm_magic_number(path) or start.startswith(_EXECUTABLE)


def _check_needs(package: dict[str, Any], folder: Path) -> None:
    """What its own metadata says that it needs on the guest's platform is among what its recipe says."""
    (metadata,) = folder.glob("*.dist-info/METADATA")
    environment = {
        "extra": "",
        "python_version": "3.14",
        "python_full_version": "3.14.0",
        "sys_platform": "wasi",
        "platform_system": "WASI",
    }
    for line in metadata.read_text(encoding="utf-8").partition("\n\n")[0].splitlines():
        if line.startswith("Requires-Dist:"):
            needed = Requirement(line.removeprefix("Requires-Dist:").strip())
            wanted = needed.marker is None or needed.marker.evaluate(environment)
            if wanted and canonicalize_name(needed.name) not in package["depends"]:
                raise Refused(f"{package['name']}: needs {needed.name}: add it to requirements/run in its meta.yaml")


def _tops(folder: Path) -> list[str]:
    tops = {path.relative_to(folder).parts[0].removesuffix(".py") for path in folder.rglob("*.py")}
    return sorted(top for top in tops if top.isidentifier())


def main(step: str, spec: str) -> None:
    """Do one step. What was read is one line of JSON; what was refused is one line that says why."""
    given = json.loads(Path(spec).read_text(encoding="utf-8"))
    try:
        if step == "read":
            sys.stdout.write(json.dumps(read(given)) + "\n")
        else:
            unpack(given)
    except Refused as refused:
        sys.exit(str(refused))


if __name__ == "__main__":
    main(*sys.argv[1:])
