"""Loading: what a source may be made of, how its import can end, and that none of it happens in the engine's own process."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import trio

from engine.errors import EngineError
from engine.host import Engine
from engine.staging import layers
from tests import kit, moments, staged
from tests.moments import living

HEAD = 'from engine import tool\n\n@tool(effect="read", description="says it")\n'
SAY = HEAD + "def say() -> str:\n    return "

# what a plain run of the same files answers is what the staged run must answer
SHAPES: Mapping[str, tuple[Mapping[str, str], str]] = {
    "relative imports in a package": (
        {
            "tools.py": "from pack.inner import deep\n" + SAY + "deep.word()\n",
            "pack/__init__.py": "",
            "pack/top.py": "WORD = 'relative'\n",
            "pack/inner/__init__.py": "",
            "pack/inner/deep.py": "from ..top import WORD\nfrom . import other\ndef word():\n    return WORD + other.REST\n",
            "pack/inner/other.py": "REST = ' works'\n",
        },
        "relative works",
    ),
    "an import inside a function": (
        {"tools.py": SAY + "__import__('late').WORD\n", "late.py": "import later\nWORD = later.WORD\n", "later.py": "WORD = 'lazy'\n"},
        "lazy",
    ),
    "an import in one branch": (
        {"tools.py": "import sys\nif sys.maxsize > 1:\n    import here as word\nelse:\n    import there as word\n" + SAY + "word.WORD\n"}
        | {"here.py": "WORD = 'here'\n", "there.py": "WORD = 'there'\n"},
        "here",
    ),
    "modules that import each other": (
        {"tools.py": "import one\n" + SAY + "one.word()\n", "one.py": "import two\nWORD = 'cycle'\ndef word():\n    return two.word()\n"}
        | {"two.py": "import one\ndef word():\n    return one.WORD\n"},
        "cycle",
    ),
    "a star import with __all__": (
        {"tools.py": "from pack import *\n" + SAY + "part.WORD + shown\n"}
        | {"pack/__init__.py": "__all__ = ['part', 'shown']\nshown = '!'\n", "pack/part.py": "WORD = 'star'\n"},
        "star!",
    ),
    "a namespace package": (
        {"tools.py": "from space import part\n" + SAY + "part.WORD\n", "space/part.py": "WORD = 'namespace'\n"},
        "namespace",
    ),
    "a guarded import that is not there": (
        {"tools.py": "try:\n    import numpy_fast_nowhere as fast\nexcept ImportError:\n    fast = None\n" + SAY + "str(fast)\n"},
        "None",
    ),
    "an import for the type checker only": (
        {"tools.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import nowhere\n" + SAY + "'typed'\n"},
        "typed",
    ),
    "annotations as text": (
        {"tools.py": "from __future__ import annotations\n" + HEAD + "def say(word: str = 'later') -> str:\n    return word\n"},
        "later",
    ),
    "one module under two names": (
        {"tools.py": "import pack.part as one\nfrom pack import part as two\n" + SAY + "str(one is two)\n", "pack/__init__.py": ""}
        | {"pack/part.py": ""},
        "True",
    ),
    "data beside the source": (
        {
            "tools.py": "from pathlib import Path\nfrom engine import tool\n\n@tool(effect='read', description='d', data=['texts/*.txt'])\n"
            "def say() -> str:\n    return (Path(__file__).parent / 'texts' / 'a.txt').read_text()\n",
            "texts/a.txt": "data",
        },
        "data",
    ),
    "a computed import among the includes": (
        {
            "tools.py": "import importlib\nfrom engine import tool\n\n@tool(effect='read', description='d', includes=['plug.one'])\n"
            "def say(name: str = 'one') -> str:\n    return importlib.import_module('plug.' + name).WORD\n",
            "plug/__init__.py": "",
            "plug/one.py": "WORD = 'computed'\n",
        },
        "computed",
    ),
    "a computed import from a package that is included whole": (
        {
            "tools.py": "import importlib\nfrom engine import tool\n\n@tool(effect='read', description='d', includes=['plug.*'])\n"
            "def say(name: str = 'one') -> str:\n    return importlib.import_module('plug.' + name).WORD\n",
            "plug/__init__.py": "",
            "plug/one.py": "WORD = 'whole'\n",
        },
        "whole",
    ),
}
RESTRICTED = """
import os, sys
from engine import tool

def facts():
    found = {"uid": getattr(os, "getuid", lambda: None)()}
    for name, act in {
        "fork": getattr(os, "fork", lambda: open("/no fork")),
        "socket": lambda: __import__("_socket").socket(),
        "read the password file": lambda: open("/etc/passwd").read(),
        "write outside": lambda: open("/canary", "w"),
    }.items():
        try:
            if act() == 0:
                os._exit(0)
            found[name] = "went through"
        except OSError as error:
            found[name] = type(error).__name__
    return found

AT_IMPORT = facts()

@tool(effect="read", description="what the import was allowed to do")
def at_import() -> dict:
    return AT_IMPORT
"""
DENIED = ("fork", "socket", "read the password file", "write outside")
ENDINGS = [
    ("import os\nos._exit(3)", "crashed.exit", "the process ended with exit code 3 and no answer"),
    ("import sys\nsys.exit('done')", "tool_error.exit", "SystemExit: done"),
    ("import signal\nsignal.raise_signal(9)", "crashed.signal", "the process died of signal 9"),
    ("import os\nos.abort()", "crashed.signal", "the process died of signal 6"),
    ("raise ValueError('boom\\n\\x1b[31mred')", "tool_error.import", "ValueError: boom red"),
    ("hold = bytearray(1 << 30)", "tool_error.import", "MemoryError:"),
    ("while True:\n    print('x' * 1000)", "limit_exceeded.output", "more than 65536 bytes on stdout"),
    ("import time\ntime.sleep(600)", "limit_exceeded.start", "not ready within 5000 ms"),
    ("import os\nos.write(3, b'\\x00\\x00\\x00\\x01\\xc0')", "violation.protocol", ""),
]  # fmt: skip - one ending a line


async def refusal(engine: Engine, place: Path) -> tuple[str, tuple[str, ...]]:
    """Code and lines that loading refuses with."""
    with trio.fail_after(60), pytest.raises(EngineError) as caught:
        await engine.load(place)
    return caught.value.code, caught.value.lines


class TestShapes:
    """Sources of many kinds run behind the wall as they run without it."""

    @pytest.mark.parametrize("shape", SHAPES)
    async def test_a_staged_run_answers_as_a_plain_run(self, engine: Engine, tmp_path: Path, shape: str) -> None:
        """Nothing is missing at run time, and nothing is found elsewhere."""
        files, answer = SHAPES[shape]
        outcome = await kit.jailed(engine, tmp_path / "source", files, "say")
        assert (outcome.reason, outcome.value, outcome.lines) == ("ok.done", answer, ())
        assert kit.bare(tmp_path / "bare", files, "say").value == answer

    async def test_a_package_folder_is_a_source(self, engine: Engine, tmp_path: Path) -> None:
        """Its tools may lie in its modules, which import each other relatively."""
        files = {
            "pack/__init__.py": "from . import first\n",
            "pack/first.py": HEAD + "def say() -> str:\n    return WORD\nfrom .word import WORD\n",
        }
        kit.write(tmp_path, {**files, "pack/word.py": "WORD = 'package'\n"})
        (declaration,) = await engine.load(tmp_path / "pack")
        assert (declaration.name, declaration.module, declaration.qualname) == ("say", "pack.first", "say")
        assert (await engine.call("say", {})).value == "package"

    async def test_a_relative_path_is_a_source(self, engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """From the folder the caller is in; the tool's own folder is another one."""
        kit.write(tmp_path / "here", SAY + "'relative path'\n")
        monkeypatch.chdir(tmp_path)
        await engine.load("here/tools.py")
        assert (await engine.call("say", {})).value == "relative path"

    async def test_an_installed_package_of_the_host_is_not_found(self, engine: Engine, tmp_path: Path) -> None:
        """A computed import of what the engine itself uses; the control holds such a module."""
        code = "import importlib\nfrom engine import tool\n\n@tool(effect='read', description='d', includes=['mine'])\n"
        code += "def say(name: str) -> str:\n    return importlib.import_module(name).__name__\n"
        source = {"tools.py": code, "mine.py": ""}
        await engine.load(kit.write(tmp_path, source))
        assert (await engine.call("say", {"name": "mine"})).value == "mine"
        for name in ("trio", "pytest", "tests.kit", "engine.host"):
            outcome = await engine.call("say", {"name": name})
            assert outcome.reason == "tool_error.exception"
            assert outcome.lines[0].startswith("ModuleNotFoundError: No module named ")

    @pytest.mark.parametrize(("tag", "fits"), [("py3-none-any", True), (f"cp38-cp38-linux_{os.uname().machine}", False)])
    async def test_a_layer_for_another_python_is_not_imported(self, tmp_path: Path, tag: str, fits: bool) -> None:
        """It refuses by its tag; the control's is for every Python."""
        policy, store = tmp_path / "policy.toml", tmp_path / "state" / "layers"
        policy.write_text('extends = "required"\n[grants]\nlayers = { value = ["words"], reason = "a test" }\n')
        wheel = staged.wheel(tmp_path, {"words.py": b"WORD = 'layered'\n"}, name="words", tag=tag)
        layers.add("words", [wheel], {wheel.name: frozenset({staged.digest_of(wheel)})}, store, native=layers.NativeCode.REFUSED)
        (tmp_path / "state").chmod(0o700)
        source = kit.write(tmp_path / "source", "import words\n" + SAY.replace("@tool(", "@tool(layers=['words'], ") + "words.WORD\n")
        async with kit.clean_engine(tmp_path / "state", policy=policy) as engine:
            if fits:
                await engine.load(source)
                assert (await engine.call("say", {})).value == "layered"
            else:
                code, (line,) = await refusal(engine, source)
                assert (code, line.partition(", the worker")[0]) == ("refused.layer", "layer words is built for cp38")


class TestNeverHere:
    """The engine's own process only ever reads a source as bytes."""

    async def test_no_code_of_a_source_runs_in_the_engine(self, engine: Engine, tmp_path: Path) -> None:
        """Judged by a file that the import writes, by the modules here, and by the path; the control writes the file."""
        canary = tmp_path / "canary"
        source = f"try:\n    open({str(canary)!r}, 'w').write('imported')\nexcept OSError:\n    pass\n" + SAY + "'said'\n"
        modules, path = set(sys.modules), list(sys.path)
        outcome = await kit.jailed(engine, tmp_path / "source", source, "say")
        assert (outcome.value, canary.exists()) == ("said", False)
        assert "tools" not in set(sys.modules) - modules
        assert sys.path == path
        assert kit.bare(tmp_path / "bare", source, "say").value == "said"
        assert canary.read_text() == "imported"

    async def test_staging_alone_starts_nothing(self, engine: Engine, tmp_path: Path) -> None:
        """A dry run parses; its source would end the process that imports it."""
        loaded, graph = await engine.stage(kit.write(tmp_path, "import os\nos._exit(3)\n" + SAY + "'said'\n"))
        assert (graph.tools, loaded.declarations) == (("say",), "")
        assert (await engine.call("say", {})).reason == "refused.unknown_tool"

    async def test_the_wall_stands_before_the_first_byte_of_a_source(self, engine: Engine, tmp_path: Path) -> None:
        """What the import tried was denied then, not only later; the control got through with each."""
        outcome = await kit.jailed(engine, tmp_path / "source", RESTRICTED, "at_import")
        assert outcome.reason == "ok.done"
        assert {outcome.value[name] for name in DENIED} <= {"PermissionError", "FileNotFoundError", "OSError"}
        assert outcome.value["uid"] == 1000 if os.geteuid() and outcome.value["uid"] is not None else outcome.value["uid"] != 0
        bare = kit.bare(tmp_path / "bare", RESTRICTED, "at_import").value
        assert [bare[name] for name in DENIED[:3]] == ["went through"] * 3


class TestEndings:
    """An import that does not end well ends the load with the reason, and leaves nothing."""

    @pytest.mark.parametrize(("code", "reason", "line"), ENDINGS)
    async def test_an_import_that_ends_badly_is_told(
        self, engine: Engine, tmp_path: Path, worker_kind: str, code: str, reason: str, line: str
    ) -> None:
        """The exact code and first line; no process is left, no tool is known, and the next source loads."""
        if worker_kind == "wasm" and reason.startswith("crashed"):  # it traps where a process gets a signal, and its exit tells 0 or 1
            reason, line = "crashed.exit", f"the process ended with exit code {1 if '_exit' in code else 134} and no answer"
        found, lines = await refusal(engine, kit.write(tmp_path / "bad", f"{code}\n{SAY}'never'\n"))
        assert found == reason
        assert lines[0] == line or not line
        assert all("\n" not in text and "\x1b" not in text for text in lines)
        assert moments.Tree(engine).monitors == []
        assert (await engine.call("say", {})).reason == "refused.unknown_tool"
        assert (await kit.jailed(engine, tmp_path / "good", SAY + "'well'\n", "say")).value == "well"

    async def test_a_failing_import_shows_the_authors_own_line(self, engine: Engine, tmp_path: Path) -> None:
        """File, line and text of the author's; nothing of the guest's, no path of the host."""
        source = {"tools.py": "import deep\n" + SAY + "'never'\n", "deep.py": "def go():\n    return {}['absent']\ngo()\n"}
        code, lines = await refusal(engine, kit.write(tmp_path, source))
        assert code == "tool_error.import"
        assert lines[0] == "KeyError: 'absent'"
        assert 'File "/bundle/deep.py", line 2, in go' in lines
        assert not [line for line in lines if "/guest/" in line or str(tmp_path) in line]

    async def test_what_an_import_prints_is_no_answer(self, engine: Engine, tmp_path: Path) -> None:
        """Noise stays apart from the declarations, and goes to the call that takes the child."""
        source = "import os\nprint('noise')\nos.write(1, b'more\\n')\nos.write(2, b'errors\\n')\n" + SAY + "'said'\n"
        outcome = await kit.jailed(engine, tmp_path, source, "say")
        assert (outcome.value, sorted(outcome.stdout.split()), outcome.stderr) == ("said", ["more", "noise"], "errors\n")

    async def test_an_import_without_an_end_costs_its_start_limit_only(self, engine: Engine, tmp_path: Path) -> None:
        """Another source loads and answers while it hangs."""
        kit.write(tmp_path / "slow", "import time\ntime.sleep(600)\n" + SAY + "'never'\n")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(refusal, engine, tmp_path / "slow" / "tools.py")
            outcome = await kit.jailed(engine, tmp_path / "good", SAY + "'meanwhile'\n", "say")
            assert outcome.value == "meanwhile"
            nursery.cancel_scope.cancel()


class TestAgain:
    """A source is loaded again after it changed."""

    async def test_a_changed_source_gets_a_new_digest_and_a_new_worker(self, engine: Engine, tmp_path: Path) -> None:
        """The answer is the new one, the receipt names other bytes, and the worker of the old ones is gone."""
        first = await kit.jailed(engine, tmp_path, SAY + "'old'\n", "say")
        workers = moments.Tree(engine).monitors
        second = await kit.jailed(engine, tmp_path, SAY + "'new'\n", "say")
        assert (first.value, second.value) == ("old", "new")
        assert (await first.concluded())["digests"]["source"] != (await second.concluded())["digests"]["source"]
        assert living(workers) == []

    async def test_an_unchanged_source_keeps_its_digest_and_its_worker(self, engine: Engine, tmp_path: Path) -> None:
        """The control: the same bytes are the same bundle, served by the same worker."""
        first = await kit.jailed(engine, tmp_path, SAY + "'same'\n", "say")
        workers = moments.Tree(engine).monitors
        second = await kit.jailed(engine, tmp_path, SAY + "'same'\n", "say")
        assert (await first.concluded())["digests"]["source"] == (await second.concluded())["digests"]["source"]
        assert moments.Tree(engine).monitors == workers

    async def test_a_change_on_disk_alone_changes_nothing(self, engine: Engine, tmp_path: Path) -> None:
        """What runs is what was loaded, until it is loaded again."""
        await kit.jailed(engine, tmp_path, SAY + "'loaded'\n", "say")
        kit.write(tmp_path, SAY + "'edited'\n")
        assert (await engine.call("say", {})).value == "loaded"

    async def test_a_tool_that_is_gone_from_its_source_is_gone(self, engine: Engine, tmp_path: Path) -> None:
        """Its name is unknown afterwards."""
        await engine.load(
            kit.write(tmp_path, SAY + "'here'\n" + HEAD[len("from engine import tool\n") :] + "def other() -> str:\n    return ''\n")
        )
        await engine.load(kit.write(tmp_path, SAY + "'here'\n"))
        assert (await engine.call("other", {})).reason == "refused.unknown_tool"

    async def test_a_source_that_stopped_loading_keeps_its_tools(self, engine: Engine, tmp_path: Path) -> None:
        """A failing load changes nothing: the tools of the last good one still answer."""
        await engine.load(kit.write(tmp_path, SAY + "'good'\n"))
        assert (await refusal(engine, kit.write(tmp_path, "def (:\n")))[0] == "refused.source_syntax"
        assert (await engine.call("say", {})).value == "good"

    async def test_two_loads_of_one_source_at_once_are_one_source(self, engine: Engine, tmp_path: Path) -> None:
        """Neither refuses the other's names."""
        place = kit.write(tmp_path, SAY + "'both'\n")
        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(engine.load, place)
        assert (await engine.call("say", {})).value == "both"


async def test_an_engine_is_opened_once_and_used_while_it_is_open(tmp_path: Path) -> None:
    """Loading before and after refuses, as does opening it again; the open one works on, and none leaves anything."""
    place = kit.write(tmp_path / "source", SAY + "'open'\n")
    closed = ("refused.request", ("the engine is not open: load within `async with Engine() as engine`",))
    assert await refusal(Engine(state_dir=tmp_path / "other"), place) == closed
    async with kit.clean_engine(tmp_path / "state") as engine:
        await engine.load(place)
        with pytest.raises(EngineError) as caught:
            await engine.__aenter__()
        assert (caught.value.code, caught.value.lines) == ("refused.request", ("an engine is opened once: make another one",))
        assert (await engine.call("say", {})).value == "open"
    assert await refusal(engine, place) == closed
    assert (await engine.call("say", {})).reason == "cancelled.shutdown"
    with pytest.raises(EngineError):
        await engine.__aenter__()
