"""A worker sees its source, its image, its scratch folder and nothing else of the host: no file, name, device or path.

Every attempt runs bare first, as a plain process of this user, where it gets through; what the host itself keeps from this user is named.
"""

# ruff: noqa: ASYNC240 - looking at the host's files while a jail runs is the test, and nobody else waits on this loop

import os
import socket
import stat
import sys
from pathlib import Path

import pytest

from engine.host import Engine
from tests import kit
from tests.attempts import given, said, source

CANARY = "canary-of-the-view"
GONE = {"ENOENT", "EACCES"}


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    """A file of this user's that anybody may read and write, and that no attempt may change."""
    file = tmp_path / "outside" / "canary.txt"
    file.parent.mkdir(mode=0o777)
    file.write_text(CANARY)
    file.chmod(0o666)
    return file


READ = source("return {path: tried(read, path) for path in given['paths']}")


async def test_nothing_of_the_host_can_be_read(engine: Engine, tmp_path: Path, canary: Path, project: Path) -> None:
    """Neither users nor settings, kernel files, the engine's own package, its packages, nor another file of the same user can be read."""
    import msgpack

    paths = [
        str(canary),
        "/etc/passwd",
        "/etc/hostname",
        "/proc/self/environ",
        "/proc/self/status",
        "/proc/self/mountinfo",
        "/proc/1/cmdline",
    ]
    paths += ["/proc/mounts", "/proc/self/cgroup", "/proc/net/dev", "/proc/version", "/sys/kernel/uevent_seqnum", "/sys/class/net/lo/mtu"]
    paths += [str(project / "pyproject.toml"), str(project / "engine" / "host.py"), str(project / "policies" / "required.toml")]
    paths += [msgpack.__file__, sys.executable, f"/proc/{os.getpid()}/stat", "/dev/shm/../../etc/passwd"]
    bare = kit.bare(tmp_path / "bare", READ, "attempt", given(paths=paths))
    assert [path for path, (how, _) in bare.value.items() if how != "done"] == []
    outcome = await kit.jailed(engine, tmp_path / "jailed", READ, "attempt", given(paths=paths))
    assert {path: how for path, how in outcome.value.items() if how[0] != "refused" or how[1] not in GONE} == {}
    assert CANARY not in await said(outcome)


async def test_the_engines_package_is_only_the_authoring_files(engine: Engine, tmp_path: Path, project: Path, worker_kind: str) -> None:
    """Of the engine there is its authoring part, so neither its host side nor its policies can be read or imported from inside."""
    body = """
    import sys
    names = ["engine.host", "engine.worker.native", "engine.policy.secrets", "trio", "psutil", "msgpack", "pytest", "tests.kit", "pip"]
    load = vars(sys.modules["builtins"])["__imp" + "ort__"]
    walked = sorted(os.path.join(top, file) for top, _, files in os.walk("/guest") for file in files if file.endswith(".py"))
    return {"imported": {name: tried(load, name) for name in names}, "walked": walked}
    """
    looked = source(body)
    outcome = await kit.jailed(engine, tmp_path / "jailed", looked, "attempt", given())
    names = ["engine.host", "engine.worker.native", "engine.policy.secrets", "trio", "psutil", "msgpack", "pytest", "tests.kit", "pip"]
    carried = sorted(f"/guest/engine/authoring/{file.name}" for file in (project / "engine" / "authoring").glob("*.py"))
    assert outcome.value == {
        "imported": {name: ["refused", "ModuleNotFoundError"] for name in names},
        # a WebAssembly image shows no folder of its own
        "walked": [] if worker_kind == "wasm" else sorted([*carried, "/guest/engine/__init__.py", "/guest/engine/errors.py"]),
    }
    bare = kit.bare(tmp_path / "bare", looked, "attempt", given())
    assert bare.value["imported"]["engine.policy.secrets"][0] == "done"


LIST = source("return {path: tried(os.listdir, path) for path in given['paths']}")


async def test_only_the_image_and_the_source_can_be_listed(engine: Engine, tmp_path: Path, project: Path, worker_kind: str) -> None:
    """Neither the root nor homes, temporary folders, the kernel's trees, nor the stage of another source can be listed."""
    other = tmp_path / "other"
    await engine.load(kit.write(other, LIST))
    state = tmp_path / "state"
    paths = [
        "/",
        "/home",
        "/tmp",
        "/var",
        "/var/tmp",
        "/run",
        "/var/run",
        "/proc",
        "/proc/self/fd",
        "/sys",
        "/dev",
        "/dev/shm",
        "/etc",
        "/usr",
        "/opt",
    ]
    paths += [str(project), str(state), str(state / "stage"), str(state / "stage" / "sha256"), str(other), str(tmp_path), "/usr/bin"]
    bare = kit.bare(tmp_path / "bare", LIST, "attempt", given(paths=paths))
    assert [path for path, (how, _) in bare.value.items() if how != "done"] == []
    outcome = await kit.jailed(engine, other, LIST, "attempt", given(paths=[*paths, "/bundle", "/guest", "..", "/layers"]))
    listed = {path: how[1] for path, how in outcome.value.items() if how[0] == "done"}
    assert sorted(listed.pop("/bundle")) == ["attempt.py", "tools.py"]
    if worker_kind == "native":
        assert (listed.pop("/guest"), len(listed.pop(".."))) == (["engine"], 1)
    assert listed == {}
    assert {how[1] for how in outcome.value.values() if how[0] == "refused"} <= GONE


async def test_the_hosts_installed_packages_are_not_beside_the_standard_library(engine: Engine, tmp_path: Path) -> None:
    """The standard library is there, and what is installed beside it on the host is not."""
    body = "import sys\nreturn {p: sorted(os.listdir(f'{sys.path[0]}/{p}')) for p in os.listdir(sys.path[0]) if p.endswith('-packages')}"
    outcome = await kit.jailed(engine, tmp_path / "jailed", source(body), "attempt", given())
    assert [names for names in outcome.value.values() if names] == []


async def test_no_way_of_writing_a_path_leads_out(engine: Engine, tmp_path: Path, canary: Path) -> None:
    """Climbing, doubled and trailing slashes, dots in disguise, NUL, lone surrogates and over-long paths reach no file and echo none."""
    climbs = [
        "../" * 40 + "etc/passwd",
        "/bundle/" + "../" * 9 + "etc/passwd",
        "//etc//passwd",
        "/etc/passwd/",
        "/./etc/./passwd",
        "/bundle/../etc/passwd",
    ]
    climbs += [
        "../../../etc/passwd",
        "%2e%2e/" * 9 + "etc/passwd",
        "\uff0e\uff0e/" * 9 + "etc/passwd",
        "/etc/passwd\0.py",
        "/" * 5000 + "etc/passwd",
    ]
    climbs += [
        "./" * 3000 + "etc/passwd",
        "x" * 256,
        "/dev/fd/0/../../../etc/passwd",
        "/dev/../etc/passwd",
        str(canary) + "/",
        "/..%c0%afetc/passwd",
    ]
    outcome = await kit.jailed(engine, tmp_path / "jailed", READ, "attempt", given(paths=climbs))
    reasons = {path: how[1] for path, how in outcome.value.items() if how[0] == "refused"}
    assert sorted(set(outcome.value) - set(reasons)) == []
    assert set(reasons.values()) <= {"ENOENT", "EACCES", "ENAMETOOLONG", "ENOTDIR", "ValueError"}
    bare = kit.bare(tmp_path / "bare", READ, "attempt", given(paths=[climbs[0], climbs[2], climbs[4]]))
    assert {how[0] for how in bare.value.values()} == {"done"}


async def test_no_other_opening_call_leads_out(engine: Engine, tmp_path: Path, canary: Path) -> None:
    """By raw number: creat, open, openat from the root, openat2, handles, and paths opened for reference only give no byte of the host."""
    if os.uname().machine != "x86_64":
        pytest.skip("unproven here: raw numbers are those of x86_64")
    body = """
    path = given["path"].encode()
    how = ctypes.create_string_buffer(24)
    def got(number, *arguments):
        return os.read(raw(number, *arguments), 100).decode()
    def by_reference():
        return os.read(os.open(given["path"], os.O_PATH), 10)
    def from_root():
        return got(257, os.open("/", os.O_PATH), path.lstrip(b"/"), 0)
    return {"open": tried(got, 2, path, 0), "openat": tried(got, 257, -100, path, 0), "openat2": tried(got, 437, -100, path, how, 24),
            "creat": tried(raw, 85, path + b".made", 0o644), "from the root": tried(from_root), "reference": tried(by_reference),
            "handle": tried(raw, 303, -100, path, BUFFER, BUFFER, 0), "execute": tried(raw, 59, path, 0, 0),
            "truncate": tried(raw, 76, path, 1), "link": tried(raw, 86, path, b"linked"), "stat": tried(raw, 4, path, BUFFER)}
    """
    calls = source(body)
    outcome = await kit.jailed(engine, tmp_path / "jailed", calls, "attempt", given(path=str(canary)))
    # reaching for a file that is not there is told as such; calls that no tool needs are not there at all
    gone = ["refused", "ENOENT"]
    denied = ["refused", "EPERM"]
    expected = dict.fromkeys(outcome.value, gone) | dict.fromkeys(("openat2", "creat", "handle", "execute", "link"), denied)
    assert outcome.value == expected
    assert (canary.read_text(), sorted(os.listdir(canary.parent))) == (CANARY, ["canary.txt"])
    work = tmp_path / "work"
    work.mkdir()
    bare = kit.bare(tmp_path / "bare", calls, "attempt", given(path=str(canary)), cwd=work)
    done = {name for name, how in bare.value.items() if how[0] == "done"}
    assert done >= {"open", "openat", "openat2", "creat", "from the root", "truncate", "link", "stat"}


WRITE = source("return {path: tried(write, path) for path in given['paths']}")


async def test_nothing_outside_scratch_can_be_written(engine: Engine, tmp_path: Path, canary: Path, project: Path) -> None:
    """Neither the host's folders nor the jail's own image, source, devices' folder and roots take a file."""
    outside = [
        str(canary),
        str(canary.parent / "new"),
        str(tmp_path / "new"),
        "/tmp/new-file-of-an-attempt",
        "/etc/passwd",
        str(project / "engine" / "x.py"),
    ]
    inside = [
        "/x",
        "/tmp/x",
        "../../x",
        "/dev/x",
        "/bundle/x.py",
        "/bundle/tools.py",
        "/guest/x.py",
        "/guest/engine/errors.py",
        "/usr/share/zoneinfo/UTC",
    ]
    import_path = ["/python/x", f"/python/lib/python{sys.version_info[0]}.{sys.version_info[1]}/os.py"]
    names = ["sitecustomize.py", "usercustomize.py", "x.pth", "conftest.py", ".git/hooks/pre-commit"]
    trusted = [f"{folder}/{name}" for folder in ("/bundle", "/guest", "/python/lib") for name in names]
    outcome = await kit.jailed(engine, tmp_path / "jailed", WRITE, "attempt", given(paths=[*outside, *inside, *import_path, *trusted]))
    assert {path: how for path, how in outcome.value.items() if how[0] != "refused"} == {}
    assert {how[1] for how in outcome.value.values()} <= {"ENOENT", "EACCES", "EROFS"}
    assert (canary.read_text(), os.path.exists("/tmp/new-file-of-an-attempt"), os.listdir(canary.parent)) == (CANARY, False, ["canary.txt"])
    bare = kit.bare(tmp_path / "bare", WRITE, "attempt", given(paths=outside[:3]))
    assert [how[0] for how in bare.value.values()] == ["done"] * 3


LINKS = """
inner = "folder"
os.mkdir(inner)
return {"link": tried(os.symlink, given["path"], "link"), "read": tried(read, "link"),
        "way": tried(os.symlink, given["folder"], "way"), "through": tried(write, "way/new-through-a-link"),
        "hard": tried(os.link, given["own"], "hard"), "hard outside": tried(os.link, given["path"], "hard-outside")}
"""


async def test_no_link_can_be_made(engine: Engine, tmp_path: Path, canary: Path) -> None:
    """Neither a link to a file, nor one as the folder on the way to a new file, nor a second name of a staged or outside file."""
    arguments = {"path": str(canary), "folder": str(canary.parent)}
    outcome = await kit.jailed(engine, tmp_path / "jailed", source(LINKS), "attempt", given(own="/bundle/tools.py", **arguments))
    refused, absent = ["refused", "EPERM"], ["refused", "ENOENT"]
    expected = {"link": refused, "read": absent, "way": refused, "through": absent, "hard": refused, "hard outside": refused}
    assert outcome.value == expected
    assert (canary.read_text(), os.listdir(canary.parent), canary.stat().st_nlink) == (CANARY, ["canary.txt"], 1)
    work = tmp_path / "work"
    work.mkdir()
    own = kit.write(tmp_path / "bare", source(LINKS))
    bare = kit.bare(tmp_path / "bare", source(LINKS), "attempt", given(own=str(own), **arguments), cwd=work)
    assert {how[0] for how in bare.value.values()} == {"done"}
    assert sorted(os.listdir(canary.parent)) == ["canary.txt", "new-through-a-link"]


SETUID = """
os.umask(0)
open("f", "w").close()
made = os.open("g", os.O_CREAT | os.O_WRONLY, 0o6755)
return {"chmod": tried(os.chmod, "f", 0o4755), "fchmod": tried(os.fchmod, made, 0o2755), "mode": os.stat("f").st_mode & 0o7777,
        "owner": tried(os.chown, "f", given["uid"], -1), "attribute": tried(os.setxattr, "f", "user.x", b"1"),
        "bits have no effect": bool(os.statvfs(".").f_flag & os.ST_NOSUID), "exec has none": bool(os.statvfs(".").f_flag & os.ST_NOEXEC)}
"""


async def test_no_file_gets_rights_beyond_its_own(engine: Engine, tmp_path: Path) -> None:
    """Set-id bits, owners and attributes are refused; the mount gives no effect to those that come with a new file."""
    outcome = await kit.jailed(engine, tmp_path / "jailed", source(SETUID), "attempt", given(uid=0))
    refused = ["refused", "EPERM"]
    expected = {"chmod": refused, "fchmod": refused, "mode": 0o666, "owner": refused, "attribute": refused}
    assert outcome.value == {**expected, "bits have no effect": True, "exec has none": True}
    work = tmp_path / "work"
    work.mkdir()
    bare = kit.bare(tmp_path / "bare", source(SETUID), "attempt", given(uid=os.geteuid()), cwd=work).value
    assert (bare["chmod"][0], bare["owner"][0], bare["mode"]) == ("done", "done", 0o4755)


WALK = """
import gc, sys, types
gc.unfreeze()
marks = [mark[::-1] for mark in given["reversed"]]
kept, found, seen = set(marks), set(), set()
todo = [*gc.get_objects(), *sys.modules.values(), sys.path, vars(sys)]
while todo:
    value = todo.pop()
    if isinstance(value, bytes | bytearray):
        value = bytes(value).decode("latin-1")
    if isinstance(value, str):
        if value not in kept and any(mark in value for mark in marks):
            found.add(value[:200])
        continue
    if id(value) in seen or value is marks or value is kept or value is given:
        continue
    seen.add(id(value))
    todo += gc.get_referents(value)
    if isinstance(value, types.CodeType):
        todo += [value.co_filename, *value.co_consts]
return {"found": sorted(found), "path": list(sys.path), "files": sorted({getattr(m, "__file__", None) or "" for m in sys.modules.values()})}
"""


async def test_no_loaded_object_names_a_place_of_the_host(engine: Engine, tmp_path: Path, project: Path, worker_kind: str) -> None:
    """Walking every object the collector knows, from module to code, finds no path of the engine, its state or its interpreter."""
    own = os.path.dirname(os.__file__)
    places = [str(project), str(tmp_path), str(Path.home()) + "/", *([] if own.startswith("/usr/lib/") else [own])]
    reversed_places = [place[::-1] for place in places if len(place) > 2]
    outcome = await kit.jailed(engine, tmp_path / "jailed", source(WALK), "attempt", given(reversed=reversed_places))
    assert outcome.value["found"] == []
    assert [path for path in outcome.value["files"] if path and not path.startswith(("/python/", "/guest/", "/bundle/"))] == []
    library, behind = (outcome.value["path"][:1], ["/packages"]) if worker_kind == "wasm" else (outcome.value["path"][:2], [])
    assert outcome.value["path"] == [*library, "/bundle", *behind]
    assert all(path.startswith("/python/lib/python3.") for path in library)
    bare = kit.bare(tmp_path / "bare", source(WALK), "attempt", given(reversed=reversed_places)).value
    assert any(str(project) in text for text in bare["found"])


DISCOVER = """
name = os.uname().nodename
files = ["/etc/machine-id", "/etc/os-release", "/proc/sys/kernel/random/boot_id", "/proc/uptime", "/proc/cpuinfo", "/proc/version"]
return {"name": name, "files": {path: tried(read, path) for path in files}}
"""


async def test_the_hosts_name_and_marks_are_not_there(engine: Engine, tmp_path: Path, worker_kind: str) -> None:
    """The name is the jail's, and the files that tell one machine from another do not exist. The kernel's version stays visible."""
    outcome = await kit.jailed(engine, tmp_path / "jailed", source(DISCOVER), "attempt", given())
    assert outcome.value["name"] == ("(none)" if worker_kind == "wasm" else "jail")
    assert {tuple(how) for how in outcome.value["files"].values()} == {("refused", "ENOENT")}
    bare = kit.bare(tmp_path / "bare", source(DISCOVER), "attempt", given()).value
    assert (bare["name"], bare["files"]["/proc/version"][0]) == (socket.gethostname(), "done")


async def test_a_library_mapped_writable_stays_as_it_is_on_the_host(engine: Engine, tmp_path: Path) -> None:
    """A private mapping of a file of the image can be patched, a shared one cannot be made, and the host's bytes stay."""
    body = """
    import mmap
    with open(given["path"], "rb") as file:
        own = mmap.mmap(file.fileno(), 4096, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
        own[:6] = b"PATCHED"[:6]
        shared = tried(lambda: mmap.mmap(file.fileno(), 4096, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE))
    return [own[:6].decode(), shared, tried(lambda: open(given["path"], "r+b"))]
    """
    patched = source(body)
    inside = f"/python/lib/python{sys.version_info[0]}.{sys.version_info[1]}/os.py"
    before = Path(os.__file__).read_bytes()
    outcome = await kit.jailed(engine, tmp_path / "jailed", patched, "attempt", given(path=inside))
    assert (outcome.value[0], outcome.value[1], outcome.value[2][0]) == ("PATCHE", ["refused", "EACCES"], "refused")
    assert Path(os.__file__).read_bytes() == before
    mine = tmp_path / "mine"
    mine.write_bytes(b"x" * 4096)
    bare = kit.bare(tmp_path / "bare", patched, "attempt", given(path=str(mine))).value
    assert bare[2][0] == "done"


async def test_a_file_left_in_scratch_is_never_read_by_the_supervisor(engine: Engine, tmp_path: Path) -> None:
    """Scratch is a mount of the jail alone: its files are nowhere on the host while the tool runs, and it is no folder of the state."""
    body = "open('left-behind-by-a-tool.txt', 'w').write('x')\nreturn os.getcwd()"
    outcome = await kit.jailed(engine, tmp_path / "jailed", source(body), "attempt", given())
    assert outcome.reason == "ok.done"
    assert not os.path.exists(outcome.value)
    found = [name for _, _, names in os.walk(tmp_path / "state") for name in names if name.startswith("left-behind")]
    assert found == []
    assert [path for path in (tmp_path / "state").iterdir() if stat.S_IMODE(path.stat().st_mode) & 0o022] == []
