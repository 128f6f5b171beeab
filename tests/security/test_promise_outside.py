"""Tool code never runs in the engine's process: not by loading, not by its result, not by files that a host would trust."""

# ruff: noqa: ASYNC240 - looking at the host's files while a jail runs is the test, and nobody else waits on this loop

import os
import sys
from pathlib import Path

import psutil

from engine.errors import EngineError
from engine.host import Engine
from engine.jail import bpf, syscalls
from engine.jail.facts import UIDS
from engine.jail.plan import parser_order
from engine.worker.parser import open_parser
from tests import kit
from tests.attempts import given, source
from tests.security.test_promise_identity import facts


async def test_loading_imports_nothing_here(engine: Engine, tmp_path: Path) -> None:
    """The first line of a source runs in another process, as another process's child, and no module of it is loaded in this one."""
    marker = tmp_path / "ran"
    before = f"""
HERE = [os.getpid(), getattr(os, "getppid", lambda: 1)(), tried(write, {str(marker)!r})]
import builtins, sys
builtins.open = None
sys.modules["engine.host"] = None
"""
    modules = set(sys.modules)
    outcome = await kit.jailed(engine, tmp_path / "jailed", source("return HERE", before), "attempt", given())
    assert outcome.value == [
        outcome.value[0],
        1,
        ["refused", "EROFS" if (await outcome.concluded())["worker"]["kind"] == "wasm" else "ENOENT"],
    ]
    assert not marker.exists()
    assert (open is not None, sys.modules["engine.host"] is not None) == (True, True)
    assert [name for name in set(sys.modules) - modules if name.split(".")[0] in ("tools", "attempt")] == []
    bare = kit.bare(tmp_path / "bare", source("return HERE", before.split("import builtins")[0]), "attempt", given()).value
    assert bare[2] == ["done", "written"]


async def test_a_source_that_fails_or_ends_at_import_ends_only_itself(engine: Engine, tmp_path: Path, worker_kind: str) -> None:
    """Exits, aborts, endless recursion and a broken interpreter at import are refusals of that source; the engine goes on."""
    ends = {
        "tool_error.exit": "import sys\nsys.exit(3)",
        "crashed.exit": "os._exit(0)",
        "crashed.signal": "os.abort()",
        "tool_error.import": "def deeper(n):\n    return deeper(n + 1)\ndeeper(0)",
    }
    for number, (code, before) in enumerate(ends.items()):
        try:
            await engine.load(kit.write(tmp_path / f"s{number}", source("return 1", before)))
            got = "loaded"
        except EngineError as error:
            got = error.code
        assert got == ("crashed.exit" if worker_kind == "wasm" and code == "crashed.signal" else code)  # where an abort is a trap
    outcome = await kit.jailed(engine, tmp_path / "good", source("return 1"), "attempt", given())
    assert (outcome.reason, outcome.value) == ("ok.done", 1)


async def test_files_that_start_code_elsewhere_start_none_here(engine: Engine, tmp_path: Path) -> None:
    """Start files, test files, package files of the guest's own names beside a source run neither in the engine nor before the guest."""
    marker = tmp_path / "ran"
    text = f"import os\nopen({str(marker)!r}, 'w').write(str(os.getpid()))\n"
    planted = dict.fromkeys(("sitecustomize.py", "usercustomize.py", "conftest.py", "setup.py", "__main__.py"), text)
    planted["x.pth"] = f"import os; {text}"
    outcome = await kit.jailed(
        engine, tmp_path / "jailed", source("import sys\nreturn sorted(os.listdir('/bundle'))", **planted), "attempt", given()
    )
    assert outcome.value == ["attempt.py", "tools.py"]
    assert not marker.exists()


RESULTS = """
class Evil(str):
    def __reduce__(self):
        return (os.system, ("touch " + given["marker"],))
    def __str__(self):
        return "evil"
values = {"object": Evil, "function": os.stat, "subclass": Evil("text"), "bytes": b"pickle", "set": {1}, "complex": 1j}
return values[given["which"]]
"""


async def test_no_object_comes_back_as_one(engine: Engine, tmp_path: Path) -> None:
    """Classes, functions, bytes and subclasses that carry instructions for a decoder come back as plain text or as an error, never as
    objects.
    """
    marker = str(tmp_path / "ran")
    await engine.load(kit.write(tmp_path / "source", source(RESULTS)))
    reasons = {}
    for which in ("object", "function", "subclass", "bytes", "set", "complex"):
        outcome = await engine.call("attempt", given(which=which, marker=marker))
        reasons[which] = outcome.reason if outcome.value is None else type(outcome.value)
    assert {reasons[which] for which in ("object", "function", "bytes", "set", "complex")} == {"tool_error.result_not_data"}
    assert reasons["subclass"] in (str, "tool_error.result_not_data")
    assert not os.path.exists(marker)


async def test_the_engines_own_hooks_never_fire(engine: Engine, tmp_path: Path) -> None:
    """An audit hook in this process sees no exec, no import and no compile of any file of a source while it is loaded and called."""
    seen: list[str] = []
    watching = [True]

    def hook(event: str, details: tuple[object, ...]) -> None:
        if watching[0] and event in ("import", "exec", "compile", "marshal.loads", "pickle.find_class", "os.system"):
            seen.append(f"{event} {details!r}"[:400])

    sys.addaudithook(hook)
    try:
        outcome = await kit.jailed(engine, tmp_path / "watched_source", source("return 1"), "attempt", given())
    finally:
        watching[0] = False
    assert outcome.reason == "ok.done"
    assert [line for line in seen if "watched_source" in line or "tools" in line or "attempt" in line] == []
    # the control: the hook does see an import
    watching[0] = True
    __import__("this_module_does_not_exist_here") if False else compile("1", "tools", "eval")
    watching[0] = False
    assert any("tools" in line for line in seen)


async def test_the_process_that_parses_is_nobody(engine: Engine, project: Path) -> None:
    """A source is parsed by a process without capabilities, new privileges or, where the engine is root, its user; its filter has no
    file to change.
    """
    launcher = await engine._launchers.native()
    async with open_parser(launcher, engine._state.places) as parse:
        assert (await parse(b"import json", "x.py"))["ok"] is True
        (parser,) = psutil.Process(launcher.pid).children()
        told = facts(parser.pid)
    held = {name: told[name] for name in ("NoNewPrivs", "Seccomp", "CapInh", "CapPrm", "CapEff", "CapAmb")}
    assert held == {"NoNewPrivs": "1", "Seccomp": "2", **dict.fromkeys(("CapInh", "CapPrm", "CapEff", "CapAmb"), "0" * 16)}
    assert set(told["Uid"].split()) == ({str(UIDS.stop)} if os.geteuid() == 0 else {str(os.getuid())})
    order = parser_order(launcher.facts, engine._state.places)
    arch = syscalls.Arch(launcher.facts.machine)
    numbers = {"chmod": 90, "fchmodat": 268, "utimensat": 280, "rename": 82, "mkdir": 83, "fork": 57, "kill": 62, "tgkill": 234}
    numbers = numbers if arch is syscalls.Arch.X86_64 else {"fchmodat": 53, "utimensat": 88, "mkdirat": 34, "kill": 129, "tgkill": 131}
    audit = {syscalls.Arch.X86_64: 0xC000003E, syscalls.Arch.AARCH64: 0xC00000B7}[arch]
    answers = {name: bpf.simulate(bytes.fromhex(order["filter"]), audit, number, [0] * 6) for name, number in numbers.items()}
    assert answers == dict.fromkeys(numbers, 0x00050001)  # SECCOMP_RET_ERRNO with EPERM
