"""The files that the guest carries as ``engine`` stand alone: on every interpreter there is, isolated and without site-packages."""

import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from tests.interpreters import interpreter

VERSIONS = ((3, 11), (3, 12), (3, 13), (3, 14))
HEAVY = ("ssl", "_ssl", "hashlib", "random", "logging", "asyncio", "json", "inspect", "dataclasses", "socket", "subprocess", "ast")

SAMPLE = '''
from __future__ import annotations

from typing import Annotated, Any, Iterator, List, Literal, NamedTuple, NotRequired, Optional, TypedDict
import dataclasses
import enum

from engine import Context, schema, tool


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass
class Node:
    """Doc."""

    value: float
    colour: Colour = Colour.RED
    below: list[Node] = dataclasses.field(default_factory=list)


class Options(TypedDict, total=False):
    depth: int
    label: NotRequired[str | None]


class Pair(NamedTuple):
    first: int
    second: Optional[str]


@tool(effect="read", meta={"é": [1.5, 1e100, -0.0, True, None]}, limits={"memory": "64 MiB"})
def walk(
    node: Node,
    options: Options,
    pair: Pair,
    pick: Literal["a", "b", 3] | None = None,
    many: Annotated[List[int], schema.Bounds(min_items=1, max_items=9)] = (),
    *,
    rest: dict[str, Any],
    ctx: Context,
) -> Iterator[int | str]:
    """Walks the node,
        line by line.

    Not told.
    """
    yield 1
'''


@pytest.fixture(scope="module")
def tree(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Exactly the carried files, beside one sample tool."""
    root = tmp_path_factory.mktemp("guest")
    names = ["__init__.py", "errors.py", *(f"authoring/{path.name}" for path in (project / "engine/authoring").glob("*.py"))]
    for name in names:
        (root / "engine" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(project / "engine" / name, root / "engine" / name)
    (root / "sample.py").write_text(SAMPLE, encoding="utf-8")
    return root


def run(tree: Path, version: tuple[int, int], program: str) -> str:
    """What the program prints on that version with the tree as its only path, or a skip that says what is unproven."""
    python = interpreter(version)
    if python is None:
        text = f"unproven: no Python {version[0]}.{version[1]} was found to import the carried files with"
        warnings.warn(text, stacklevel=2)
        pytest.skip(text)
    whole = f"import sys\nsys.path.insert(0, {str(tree)!r})\n{program}"
    done = subprocess.run([python, "-I", "-S", "-W", "error", "-c", whole], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


@pytest.mark.slow
@pytest.mark.filterwarnings("default:unproven")
@pytest.mark.parametrize("version", VERSIONS, ids=lambda version: f"{version[0]}.{version[1]}")
class TestCarriedFiles:
    """Each on every version."""

    def test_the_root_alone_loads_nothing(self, tree: Path, version: tuple[int, int]) -> None:
        """``import engine`` loads that one file."""
        loaded = run(tree, version, "before = set(sys.modules)\nimport engine\nprint(*sorted(set(sys.modules) - before))")
        assert loaded == "engine"

    def test_the_authoring_names_work_alone(self, tree: Path, version: tuple[int, int]) -> None:
        """tool, schema, artifact, Context and Tool are there; what the host holds is not."""
        program = (
            "from engine import tool, schema, artifact, Context, Tool\n"
            "import engine\n"
            "print(*(sorted(name for name in sys.modules if name.startswith('engine'))), sep='\\n')\n"
            "for name in ('Engine', 'Outcome'):\n"
            "    try:\n        getattr(engine, name)\n"
            "    except ImportError:\n        print('no', name)\n"
        )
        carried = ["canonical", "expansion", "patterns", "rules", "schema", "signature", "strict", "tool"]
        wanted = [
            "engine",
            "engine.authoring",
            *(f"engine.authoring.{name}" for name in carried),
            "engine.errors",
            "no Engine",
            "no Outcome",
        ]
        assert run(tree, version, program).splitlines() == wanted

    def test_http_loads_itself_alone(self, tree: Path, version: tuple[int, int]) -> None:
        """Nothing of the network and nothing heavy, until there is a request and no host to ask."""
        program = (
            "from collections.abc import Mapping\nfrom typing import Any\nbefore = set(sys.modules)\n"
            "from engine import http\nprint(*sorted(set(sys.modules) - before))\n"
            "http.door = lambda name, asked: (True, {**asked, 'status': 200})\n"
            "print(http.post('http://a.b/é', body=b'x', headers={'a': 'b'}).text, *sorted(set(sys.modules) - before))"
        )
        assert run(tree, version, program).splitlines() == [
            "engine engine.authoring engine.authoring.http",
            "x engine engine.authoring engine.authoring.http",
        ]

    def test_importing_them_loads_nothing_heavy(self, tree: Path, version: tuple[int, int]) -> None:
        """Neither the authoring names nor a declaration without records loads TLS, logging, json or inspect."""
        program = (
            f"from engine.authoring import convert, derive, http, schema, tool\nprint(*(name for name in {HEAVY!r} if name in sys.modules))"
        )
        assert run(tree, version, program) == ""

    def test_a_digest_loads_no_openssl(self, tree: Path, version: tuple[int, int]) -> None:
        """The digest comes from the interpreter's own SHA-256."""
        program = "from engine.authoring.canonical import digest\nprint(digest({}))\nassert 'hashlib' not in sys.modules"
        assert run(tree, version, program) == "sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"

    def test_one_declaration_has_one_digest(self, tree: Path, version: tuple[int, int]) -> None:
        """The sample's declaration, derived on this version, has the digest that the running version gives it."""
        program = "import sample\nfrom engine.authoring.canonical import digest\nprint(digest(sample.walk.declaration))"
        assert run(tree, version, program) == run(tree, sys.version_info[:2], program)

    def test_arguments_become_what_the_hints_say(self, tree: Path, version: tuple[int, int]) -> None:
        """The way in and the way out work without the rest of the engine."""
        program = (
            "import sample\nfrom engine.authoring.convert import arguments_for, to_data\n"
            "given = {'node': {'value': 1, 'below': [{'value': 2.5, 'colour': 'blue'}]}, 'options': {}, 'pair': [1, None], 'rest': {}}\n"
            "print(to_data(arguments_for(sample.walk, given)))"
        )
        inner = "{'value': 2.5, 'colour': 'blue', 'below': []}"
        wanted = f"{{'node': {{'value': 1.0, 'colour': 'red', 'below': [{inner}]}}, 'options': {{}}, 'pair': [1, None], 'rest': {{}}}}"
        assert run(tree, version, program) == wanted


@pytest.mark.filterwarnings("default:unproven")
def test_an_unmet_version_is_not_green(tree: Path) -> None:
    """Control: a version that no machine has is a warning and a skip, never a pass."""
    with (
        pytest.warns(UserWarning, match=r"unproven: no Python 3\.99"),
        pytest.raises(pytest.skip.Exception, match=r"unproven: no Python 3\.99"),
    ):
        run(tree, (3, 99), "")
