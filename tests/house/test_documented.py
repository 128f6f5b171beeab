"""Every public name says what it is, a folder's own file says only that, and a proof that is named is there."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.house.reading import PROJECT, Source, files, sources, write

Named = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
# the root's lazy names; packages that are the source of tools, whose own file is where their tools are found
NAMING = frozenset({"engine/__init__.py", "worker_images/demo/__init__.py", "worker_images/selfcheck/__init__.py"})
PROOF = re.compile(r"\btests/[\w/]+\.py\b")
SECOND_HALVES = frozenset({"overload", "setter", "deleter"})  # the first definition carries the docstring


def public(body: list[ast.stmt], prefix: str = "") -> Iterator[tuple[str, Named]]:
    """Public classes, functions and methods of a body, through if and try, not inside functions or private classes."""
    for node in body:
        if isinstance(node, ast.If | ast.Try):
            branches = [*node.body, *node.orelse]
            if isinstance(node, ast.Try):
                branches += [statement for except_ in node.handlers for statement in except_.body]
            yield from public(branches, prefix)
        elif isinstance(node, Named) and not node.name.startswith("_"):
            yield prefix + node.name, node
            if isinstance(node, ast.ClassDef):
                yield from public(node.body, f"{prefix}{node.name}.")


def _second_half(node: Named) -> bool:
    marks = {getattr(mark, "attr", getattr(mark, "id", "")) for mark in node.decorator_list}
    return not SECOND_HALVES.isdisjoint(marks)


def _of(source: Source) -> Iterator[str]:
    body = source.tree.body
    if not ast.get_docstring(source.tree):
        yield f"{source.name}: the file has no docstring"
    for name, node in public(body):
        if not ast.get_docstring(node) and not _second_half(node):
            yield f"{source.name}:{node.lineno} {name} has no docstring"
    if source.is_package and source.name not in NAMING and len(body) > 1:
        yield f"{source.name}:{body[1].lineno} a folder's own file holds nothing but a docstring"


def docstring_problems(root: Path) -> list[str]:
    """One line for each public name without a docstring and for each folder file that holds more than one."""
    return [problem for source in sources(root, "engine", "worker_images") for problem in _of(source)]


def test_every_public_name_is_documented() -> None:
    """No public module, class, function or method of the project is without a docstring."""
    assert not (found := docstring_problems(PROJECT)), "\n".join(found)


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("engine/a.py", "x = 1", "engine/a.py: the file has no docstring"),
        ("engine/a.py", "'''a'''\ndef f(): pass", "engine/a.py:2 f has no docstring"),
        ("engine/a.py", "'''a'''\nasync def f(): pass", "engine/a.py:2 f has no docstring"),
        ("engine/a.py", "'''a'''\nclass A: pass", "engine/a.py:2 A has no docstring"),
        ("engine/a.py", "'''a'''\nclass A:\n  '''a'''\n  def f(self): pass", "engine/a.py:4 A.f has no docstring"),
        ("engine/a.py", "'''a'''\ntry:\n  def f(): pass\nexcept E: pass", "engine/a.py:3 f has no docstring"),
        ("worker_images/guest/a.py", "'''a'''\ndef f(): pass", "worker_images/guest/a.py:2 f has no docstring"),
        ("engine/b/__init__.py", "'''b'''\nfrom x import y", "engine/b/__init__.py:2 a folder's own file holds nothing but a docstring"),
    ],
)
def test_a_name_without_a_docstring_is_reported(tmp_path: Path, name: str, text: str, problem: str) -> None:
    """Each kind of definition is looked at, wherever it stands."""
    assert docstring_problems(write(tmp_path, **{name: text})) == [problem]


def test_private_names_and_second_halves_need_no_docstring(tmp_path: Path) -> None:
    """The control: private names, dunders, inner functions, setters and overloads are left alone."""
    text = (
        "'''a'''\ndef _f(): pass\nclass A:\n  '''a'''\n  def __init__(self): pass\n  @property\n  def p(self): '''p'''\n"
        "  @p.setter\n  def p(self, v): pass\n@overload\ndef g(a): ...\ndef g(a):\n  '''g'''\n  def inner(): pass\n"
    )
    assert docstring_problems(write(tmp_path, **{"engine/a.py": text, "engine/__init__.py": "'''e'''\nx = 1"})) == []


def proof_problems(root: Path) -> list[str]:
    """One line for each test file that a page, or a file of the program, names and that is not there."""
    pages = [path for path in files(root) if path.suffix == ".md"]
    programs = [path for path in files(root, "engine", "worker_images", "policies") if path.suffix in (".py", ".toml")]
    named = [(path, name) for path in (*pages, *programs) for name in PROOF.findall(path.read_text(encoding="utf-8"))]
    return [f"{path.relative_to(root).as_posix()} names {name}" for path, name in named if not (root / name).is_file()]


def promises(page: str) -> list[tuple[str, int]]:
    """Number and text of each promise in a page's table, with how many proofs stand beside it."""
    rows = re.findall(r"^\| (\d+) \| ([^|]+) \| ([^|]*) \|$", page, re.MULTILINE)
    return [(f"{number} {text}", len(PROOF.findall(proofs))) for number, text, proofs in rows]


def test_every_proof_that_is_named_is_there() -> None:
    """Links of the pages and laws in the heads of files lead to tests."""
    assert not (found := proof_problems(PROJECT)), "\n".join(found)


def test_ten_promises_stand_in_both_pages_with_their_proofs() -> None:
    """The front page and the threat model promise the same."""
    front, model = (promises((PROJECT / page).read_text(encoding="utf-8")) for page in ("README.md", "policies/README.md"))
    assert front == model
    assert len(front) == 10
    assert all(proofs for _, proofs in front)


def test_a_proof_that_is_not_there_is_reported(tmp_path: Path) -> None:
    """In a page and in a file; the control is there."""
    tree = {"README.md": "[a](tests/a.py) [b](../tests/b.py)", "engine/c.py": '"""1. a law (tests/d.py)."""', "tests/a.py": ""}
    assert proof_problems(write(tmp_path, **tree)) == ["README.md names tests/b.py", "engine/c.py names tests/d.py"]
