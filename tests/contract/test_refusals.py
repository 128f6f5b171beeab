"""What is stopped before a tool runs: each bad source, declaration, request and limit has its one code, clear lines, and no effect.

Refusals are judged from outside as well: no jail was started for them, and a file that the source or the tool would write is not there.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import trio

from engine.errors import EngineError
from engine.host import Engine
from engine.worker.native import Jail
from tests import kit, moments

TOOL = "from engine import Context, tool\n\n@tool(effect='read', description='d'{})\ndef say() -> str:\n    return 'said'\n"
PLAIN = TOOL.format("")
Files = Mapping[str, str]

# files, the path that is loaded, code, lines; each stops before any of it runs
SOURCES: Mapping[str, tuple[Files, str, str, tuple[str, ...]]] = {
    "no such file": ({}, "tools.py", "refused.source_missing", ("there is no tools.py: name a tool file or a package folder",)),
    "no such folder": ({}, "no/where/tools.py", "refused.source_missing", ("there is no tools.py: name a tool file or a package folder",)),
    "a folder without code": (
        {"pack/notes.txt": ""},
        "pack",
        "refused.source_missing",
        ("pack holds no __init__.py: name a script, or give the package one",),
    ),
    "no Python file": ({"tool.txt": PLAIN}, "tool.txt", "refused.source_missing", ("tool.txt is neither a .py file nor a package folder",)),
    "a name that cannot be imported": (
        {"my-tool.py": PLAIN},
        "my-tool.py",
        "refused.source_path",
        ("my-tool.py cannot be imported under that name: use letters, digits and underscores",),
    ),
    "a syntax error": ({"tools.py": PLAIN + "def broken(:\n"}, "tools.py", "refused.source_syntax", ("tools.py:6: invalid syntax",)),
    "a syntax error in what it imports": (
        {"tools.py": "import part\n" + PLAIN, "part.py": "x = 1\ny = = 2\n"},
        "tools.py",
        "refused.source_syntax",
        ("part.py:2: invalid syntax",),
    ),
    "an import of nothing": (
        {"tools.py": "import nowhere\n" + PLAIN},
        "tools.py",
        "refused.source_import",
        ("tools.py:1: nowhere is neither in the source, nor standard, nor in a granted layer",),
    ),
    "a computed import": (
        {"tools.py": PLAIN + "name = 'os'\n__import__(name)\n"},
        "tools.py",
        "refused.source_open_graph",
        ("tools.py:7: builtins.__import__ of something that is not a literal",),
    ),
    "a name of the standard library": (
        {"tools.py": "import json\n" + PLAIN, "json.py": "dumps = print\n"},
        "tools.py",
        "refused.source_shadows",
        ("json.py would shadow json of the standard library: rename it (tools.py:1)",),
    ),
    "includes that are computed": (
        {"tools.py": "MINE = ['part']\n" + TOOL.format(", includes=MINE")},
        "tools.py",
        "refused.source_literals",
        ("tools.py:4: includes must be a literal list of strings",),
    ),
    "a layer that is not granted": (
        {"tools.py": TOOL.format(", layers=['numbers']")},
        "tools.py",
        "refused.not_granted",
        ("layer numbers is not granted by policy required",),
    ),
    "native code": (
        {"tools.py": "import part\n" + PLAIN, "part.so": ""},
        "tools.py",
        "refused.source_native",
        ("part.so is native code: it may come from a layer only",),
    ),
}
ONE = "from engine import tool\n"
EXTRA = "@tool(effect='read', description='d', name={!r})\ndef {}() -> str:\n    return 'x'\n"
# sources that load nothing after they were imported behind the wall
IMPORTED: Mapping[str, tuple[Files, str, tuple[str, ...]]] = {
    "no tool": ({"tools.py": "x = 1\n"}, "refused.no_tools", ("the source declares no tool: decorate a function with @tool(...)",)),
    "one name for two functions": (
        {"tools.py": ONE + EXTRA.format("a", "f") + EXTRA.format("a", "g")},
        "refused.declaration",
        ('tool a: declared twice, in "tools.f" and "tools.g": rename one',),
    ),
    "a function that is defined again": (
        {"tools.py": ONE + EXTRA.format("a", "f") + EXTRA.format("b", "f")},
        "refused.declaration",
        ("tool b: the function f is declared twice, in tools.py:2 and tools.py:5: rename one",),
    ),
    "no effect": (
        {"tools.py": ONE + "@tool(description='d')\ndef f() -> str:\n    return ''\n"},
        "refused.declaration",
        ('tool f: effect: has no default: must be one of "read", "write", "idempotent", "external"',),
    ),
    "several problems at once": (
        {"tools.py": ONE + "@tool(effect='reed', description='d', timeout_ms=0)\ndef f() -> str:\n    return ''\n"},
        "refused.declaration",
        (
            'tool f: effect: has no default: must be one of "read", "write", "idempotent", "external"',
            "tool f: timeout_ms: must be a whole number of ms from 1 to 86400000",
        ),
    ),
    "an open object in a schema": (
        {
            "tools.py": ONE
            + "@tool(effect='read', description='d', output={'type': 'object', 'properties': {'a': {}}})\ndef f():\n    return {}\n"
        },
        "refused.declaration",
        ("tool f: output: an object that declares keys must be closed: add additionalProperties: false",),
    ),
    "a lambda": (
        {"tools.py": ONE + "f = tool(effect='read', description='d')(lambda: 1)\n"},
        "refused.declaration",
        ("tool <lambda>: is a lambda, which has no name to find it by: declare a function at the top of a module",),
    ),
    "a closure": (
        {
            "tools.py": ONE
            + "def make(secret):\n    @tool(effect='read', description='d')\n    def f() -> str:\n        return secret\n    return f\n"
            "f = make('CANARY')\n"
        },
        "refused.declaration",
        ('tool f: is a closure over "secret", which cannot be carried into a worker: declare a function at the top of a module',),
    ),
    "a reserved name": (
        {"tools.py": ONE + EXTRA.format("cave_f", "f")},
        "refused.declaration",
        ("tool cave_f: name: names that begin with cave_ are reserved: choose another",),
    ),
    "a nested tool that nests": (
        {
            "tools.py": ONE + "@tool(effect='read', description='d', nested_tools=['b'])\ndef a() -> str:\n    return ''\n"
            "@tool(effect='read', description='d', nested_tools=['c'])\ndef b() -> str:\n    return ''\n"
        },
        "refused.declaration",
        ('tool a: nested_tools: "b" has nested tools itself: name those directly',),
    ),
    "includes that differ after import": (
        {"tools.py": TOOL.format(", includes=['part']") + "say.declaration['includes'] = ['other']\n", "part.py": ""},
        "refused.source_literals",
        ("tool say: includes says ['part'] in the source and ['other'] after import",),
    ),
    "data that a ** hides": (
        {"tools.py": "MORE = {'data': ['a.txt']}\n" + TOOL.format(", **MORE"), "a.txt": ""},
        "refused.source_literals",
        ("tool say: data says [] in the source and ['a.txt'] after import",),
    ),
    "layers that come with the import": (
        {"tools.py": PLAIN + "say.declaration['layers'] = ['numbers']\n"},
        "refused.source_literals",
        ("tool say: layers says [] in the source and ['numbers'] after import",),
    ),
}
CANARY = "canary-of-the-caller"
FORM = """
from contextlib import suppress
from typing import Literal
from engine import tool
@tool(effect="write", description="writes a file")
def form(place: str, kind: Literal["a", "b"] = "a", count: int = 1, inner: dict[str, int] | None = None) -> str:
    with suppress(OSError):  # a WebAssembly worker has no place to write to
        open(place, "w").write("written")
    return "done"
@tool(effect="read", description="d", dangerous=True)
def risky() -> str:
    return "done"
"""
KEYS = '"place", "kind", "count", "inner"'
REQUESTS: list[tuple[object, str, tuple[str, ...]]] = [
    ('{"place": "x"', "refused.request", ("the arguments are not JSON: Expecting ',' delimiter at line 1, column 14",)),
    ("[]", "refused.request", ('the arguments must be one JSON object, such as {"key": "value"}',)),
    (b"\xff", "refused.request", ("the arguments are not UTF-8",)),
    ('{"place": "x", "place": "y"}', "refused.request", ('the key "place" stands twice in one object: keep one',)),
    ('{"place": "x", "count": NaN}', "refused.request", ("NaN is no JSON number",)),
    ('{"place": "x", "count": 1' + "0" * 30 + "}", "refused.request", ("a whole number outside 64 bits: send it as text",)),
    ("[" * 200, "refused.request", ("the arguments are nested deeper than 128 levels: flatten them",)),
    ('{"place": "' + "x" * (1 << 20) + '"}', "refused.request_size", ("the arguments have more than 1048576 bytes: send less",)),
    ({"place": "x" * (1 << 20)}, "refused.request_size", ("the arguments are larger than 1048576 bytes",)),
    (None, "refused.request", ("arguments must be an object, not NoneType",)),
    ({"place": b"bytes"}, "refused.request", ("$.place is of type bytes, which is not plain data",)),
    ({"place": "x", "count": 2**70}, "refused.request", ("$.count is an int outside 64 bits, which is not plain data",)),
    ({"place": "x", "count": float("inf")}, "refused.request", ("$.count is a float that is not finite, which is not plain data",)),
    ({"place": "\ud800"}, "refused.request", ("$.place is a text with a lone surrogate, which is not plain data",)),
    ({1: "x"}, "refused.request", ("$ is an object with a key of type int, which is not plain data",)),
    ({}, "refused.arguments", ('$: missing key "place": add it',)),
    ({"place": CANARY, "knid": "a"}, "refused.arguments", (f'$: unknown key "knid": it takes {KEYS}',)),
    ({"place": CANARY, "kind": CANARY}, "refused.arguments", ('$.kind: must be one of "a", "b"',)),
    ({"place": CANARY, "count": True}, "refused.arguments", ("$.count: must be of type integer",)),
    (
        {"place": 1, "kind": CANARY, "extra": CANARY},
        "refused.arguments",
        ("$.place: must be of type string", '$.kind: must be one of "a", "b"', f'$: unknown key "extra": it takes {KEYS}'),
    ),
]
TIMES: list[Any] = [0, -1, float("nan"), float("inf"), True, "5", 1.5, 30_001, 10**30]
LIMITS: list[Any] = [
    {"wall": 0},
    {"memory": -1},
    {"memory": None},
    {"memory": float("nan")},
    {"memory": "1 GiB"},
    {"memory": "64 MB"},
    {"memry": 1},
    {"threads": True},
    {1: 1},
    {"scratch": ""},
    [1],
    "memory",
]  # fmt: skip - amounts side by side


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Every jail that any engine of the test starts, noted when it is asked for."""
    noted: list[object] = []
    start = Jail.start

    async def noting(launcher: Any, plan: Any, *, seconds: float) -> Jail:
        noted.append(plan)
        return await start(launcher, plan, seconds=seconds)

    monkeypatch.setattr(Jail, "start", noting)
    return noted


async def refusal(engine: Engine, place: Path, **options: Any) -> tuple[str, tuple[str, ...]]:
    """Code and lines that loading refuses with."""
    with trio.fail_after(30), pytest.raises(EngineError) as caught:
        await engine.load(place, **options)
    return caught.value.code, caught.value.lines


class TestSources:
    """A source that cannot be run as it is."""

    @pytest.mark.parametrize("case", SOURCES)
    async def test_a_bad_source_is_refused_before_any_of_it_runs(
        self, engine: Engine, tmp_path: Path, started: list[object], case: str
    ) -> None:
        """Exact code and lines; no jail was started, no tool is known; the source without the fault loads."""
        files, place, code, lines = SOURCES[case]
        kit.write(tmp_path / "source", files)
        assert await refusal(engine, tmp_path / "source" / place) == (code, lines)
        assert started == []
        assert (await engine.call("say", {})).reason == "refused.unknown_tool"
        assert [made.name for made in await engine.load(kit.write(tmp_path / "control", PLAIN))] == ["say"]
        assert len(started) == 1

    @pytest.mark.skipif(os.geteuid() == 0, reason="unproven here: root can read every file")
    async def test_an_unreadable_source_is_refused(self, engine: Engine, tmp_path: Path, started: list[object]) -> None:
        """The file is there and closed; opened, it loads."""
        place = kit.write(tmp_path, PLAIN)
        place.chmod(0)
        assert await refusal(engine, place) == ("refused.source_path", ("tools.py cannot be read: Permission denied",))
        assert started == []
        place.chmod(0o600)
        assert [made.name for made in await engine.load(place)] == ["say"]

    @pytest.mark.parametrize("case", IMPORTED)
    async def test_a_bad_declaration_is_refused_with_its_own_lines(self, engine: Engine, tmp_path: Path, case: str) -> None:
        """The author's lines, one for each problem, with nothing of the guest's around them; no tool is known."""
        files, code, lines = IMPORTED[case]
        found = await refusal(engine, kit.write(tmp_path, files))
        assert found == (code, lines)
        assert "CANARY" not in str(found)
        assert (await engine.call("say", {})).reason == "refused.unknown_tool"

    async def test_a_class_that_is_only_named_like_ours_is_an_ordinary_exception(self, engine: Engine, tmp_path: Path) -> None:
        """The code does not follow from a name that the source chose."""
        source = "class DeclarationError(Exception):\n    pass\nraise DeclarationError('tool x: feigned')\n"
        code, lines = await refusal(engine, kit.write(tmp_path, source))
        assert (code, lines[0]) == ("tool_error.import", "DeclarationError: tool x: feigned")

    async def test_a_name_of_another_source_is_refused_and_the_first_one_stays(self, engine: Engine, tmp_path: Path) -> None:
        """Two sources never share a tool's name; the same source may be loaded again."""
        first = kit.write(tmp_path / "one", PLAIN)
        await engine.load(first)
        second = kit.write(tmp_path / "two", PLAIN.replace("said", "other"))
        assert await refusal(engine, second) == ("refused.declaration", ("tool say is loaded already, from tools.py",))
        assert (await engine.call("say", {})).value == "said"
        assert [made.name for made in await engine.load(first)] == ["say"]


class TestPolicyFiles:
    """A policy file with a mistake is an error, never a default."""

    @pytest.mark.parametrize(
        ("text", "line"),
        [
            ('extends = "required"\n[limits]\nmemroy = { value = "1 MiB", reason = "r" }\n', "memroy"),
            ('extends = "required"\n[limts]\nmemory = { value = "1 MiB", reason = "r" }\n', "limts"),
            ('extends = "required"\nmode = { value = "requird", reason = "r" }\n', "mode"),
            ('extends = "required"\n[limits]\nmemory = { value = "1 MB", reason = "r" }\n', "memory"),
            ('extends = "required"\n[limits]\nmemory = { value = "1 MiB" }\n', "reason"),
            ('extends = "required"\n[limits]\nmemory = "1 MiB"\n', "memory"),
            ('extends = "requird"\n', "requird"),
            ("extends = required\n", "TOML"),
        ],
    )
    def test_a_mistake_is_named(self, tmp_path: Path, text: str, line: str) -> None:
        """One code, and a line that names what is wrong; nothing was started."""
        place = tmp_path / "mine.toml"
        place.write_text(text)
        with pytest.raises(EngineError) as caught:
            Engine(policy=place)
        assert caught.value.code == "refused.policy"
        assert line in " ".join(caught.value.lines)

    def test_the_same_file_without_a_mistake_is_taken(self, tmp_path: Path) -> None:
        """The control."""
        Engine(policy=moments.policy(tmp_path, {"limits": {"memory": "1 MiB"}}))

    async def test_a_mistake_in_the_policy_of_one_source_refuses_that_source(
        self, engine: Engine, tmp_path: Path, started: list[object]
    ) -> None:
        """Before anything of it is read."""
        place = tmp_path / "mine.toml"
        place.write_text('extends = "requird"\n')
        code, _ = await refusal(engine, kit.write(tmp_path, PLAIN), policy=place)
        assert (code, started) == ("refused.policy", [])


class TestRequests:
    """Arguments, limits and approvals that do not do."""

    @pytest.mark.parametrize(("arguments", "code", "lines"), REQUESTS, ids=lambda value: str(value)[:30])
    async def test_bad_arguments_are_refused_with_all_problems(
        self, engine: Engine, tmp_path: Path, worker_kind: str, arguments: object, code: str, lines: tuple[str, ...]
    ) -> None:
        """Exact code and lines, never a value; no worker, no file."""
        await engine.load(kit.write(tmp_path, FORM))
        outcome = await engine.call("form", arguments)
        assert (outcome.reason, outcome.lines, outcome.value) == (code, lines, None)
        assert (await outcome.concluded())["worker"] == {"kind": worker_kind, "started": False}
        assert CANARY not in repr(outcome)

    async def test_good_arguments_run_as_an_object_and_as_text(self, engine: Engine, tmp_path: Path) -> None:
        """The control: the same tool, once each way."""
        await engine.load(kit.write(tmp_path, FORM))
        for arguments in ({"place": "x", "kind": "b"}, '{"place": "x", "kind": "b"}', b'{"place": "x"}'):
            outcome = await engine.call("form", arguments)
            assert (outcome.reason, outcome.value, (await outcome.concluded())["worker"]["started"]) == ("ok.done", "done", True)

    @pytest.mark.parametrize("name", ["absent", "__proto__", "toString", "", "form\n\x1b[31mred"])
    async def test_an_unknown_tool_is_plainly_unknown(self, engine: Engine, tmp_path: Path, name: str) -> None:
        """The name is escaped, the loaded ones are named, and there is no receipt for what is no tool."""
        await engine.load(kit.write(tmp_path, FORM))
        outcome = await engine.call(name, {})
        assert (outcome.reason, outcome.lines) == ("refused.unknown_tool", (f"there is no tool {name!r}; loaded: form, risky",))
        assert "\x1b" not in outcome.lines[0]
        assert dict(await outcome.concluded()) == {}

    @pytest.mark.parametrize("timeout_ms", TIMES, ids=str)
    async def test_a_timeout_that_is_none_or_too_long_is_refused(self, engine: Engine, tmp_path: Path, timeout_ms: Any) -> None:
        """Nothing that is not a whole number within the granted time means "no timeout"."""
        await engine.load(kit.write(tmp_path, FORM))
        outcome = await engine.call("form", {"place": "x"}, timeout_ms=timeout_ms)
        assert (outcome.reason, (await outcome.concluded())["worker"]["started"], len(outcome.lines)) == ("refused.limits", False, 1)

    @pytest.mark.parametrize("limits", LIMITS, ids=str)
    async def test_a_limit_that_is_none_or_too_large_is_refused(self, engine: Engine, tmp_path: Path, limits: Any) -> None:
        """By value, by unit, by name, and above what is granted."""
        await engine.load(kit.write(tmp_path, FORM))
        outcome = await engine.call("form", {"place": "x"}, limits=limits)
        assert (outcome.reason, (await outcome.concluded())["worker"]["started"], len(outcome.lines)) == ("refused.limits", False, 1)

    async def test_limits_left_out_are_the_policys(self, engine: Engine, tmp_path: Path) -> None:
        """The control: none, nothing in particular, and less than granted all run; the receipt says which held."""
        await engine.load(kit.write(tmp_path, FORM))
        less: dict[str, Any] = {"timeout_ms": 29_000, "limits": {"memory": "128 MiB", "wall": "20 s"}}
        for options, wall, memory in (({"timeout_ms": None, "limits": None}, 30_000, 256 << 20), (less, 20_000, 128 << 20)):
            outcome = await engine.call("form", {"place": "x"}, **options)
            held = (await outcome.concluded())["limits"]
            assert (outcome.reason, held["wall_ms"], held["memory_bytes"]) == ("ok.done", wall, memory)

    @pytest.mark.parametrize("approved", [False, "false", "no", 1, object()], ids=str)
    async def test_only_a_true_approval_approves(self, engine: Engine, tmp_path: Path, approved: Any) -> None:
        """A text is no approval, whatever it says; the control is approved."""
        await engine.load(kit.write(tmp_path, FORM))
        outcome = await engine.call("risky", {}, approved=approved)
        assert (outcome.reason, (await outcome.concluded())["worker"]["started"]) == ("refused.approval", False)
        assert (await engine.call("risky", {}, approved=True)).value == "done"

    @pytest.mark.parametrize("tenant", [5, "", "two\nlines", "\ud800", "\u202ereversed", "x" * 257, b"bytes"], ids=ascii)
    async def test_a_tenant_is_one_printable_line(self, engine: Engine, tmp_path: Path, tenant: Any) -> None:
        """Anything else could be another tenant in a worker's key than it is to the caller; it is not written down either."""
        await engine.load(kit.write(tmp_path, FORM))
        outcome = await engine.call("form", {"place": "x"}, tenant=tenant)
        receipt = await outcome.concluded()
        assert (outcome.reason, receipt["worker"]["started"], receipt["tenant"]) == ("refused.request", False, None)
        assert (await (await engine.call("form", {"place": "x"}, tenant="x" * 256)).concluded())["tenant"] == "x" * 256
