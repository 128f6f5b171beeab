"""Words: names say what a thing is, and whoever silences a tool says why."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.house.reading import PROJECT, Source, files, sources, write

TREES = ("engine", "worker_images", "bench", "tests", "policies")
UNUSED = frozenset({"manager", "helper", "helpers", "util", "utils", "misc", "common"})  # they name no thing
UNUSED_FILES = UNUSED | {"handler", "handlers"}
IGNORE = re.compile(r"#\s*(?:noqa|type:\s*ignore|pragma:\s*no cover|fmt:\s*(?:off|skip))\b(?P<rest>.*)")
CODES = re.compile(r"^\s*(?::\s*[A-Z]+[0-9]+(?:[,\s]+[A-Z]+[0-9]+)*|\[[a-z0-9, -]+\])?")


def words(name: str) -> set[str]:
    """The words of ``snake_case`` and ``CamelCase`` names, in small letters."""
    return {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)}


def _of(source: Source) -> Iterator[str]:
    for node in ast.walk(source.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            for word in sorted(words(node.name) & UNUSED):
                yield f"{source.name}:{node.lineno} {node.name}: the word {word} names no thing"
    for number, line in enumerate(source.text.splitlines(), 1):
        found = IGNORE.search(line)
        if found and len(re.findall(r"[^\W\d_]{2,}", CODES.sub("", found["rest"], count=1))) < 2:
            yield f"{source.name}:{number} an ignore without a reason in words"


def word_problems(root: Path) -> list[str]:
    """One line for each file or definition named with a word the house does not use, and for each ignore without a reason."""
    problems = []
    for path in files(root, *TREES):
        name = path.relative_to(root).as_posix()
        if any(words(part) & UNUSED_FILES for part in name.split("/")):
            problems.append(f"{name}: a file name the house does not use")
    return problems + [problem for source in sources(root, *TREES) if source.name != "tests/house/test_words.py" for problem in _of(source)]


def test_names_say_what_a_thing_is() -> None:
    """No file or definition of the project has one of the empty words in its name, and each ignore has its reason."""
    assert not (found := word_problems(PROJECT)), "\n".join(found)


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("engine/http_handler.py", "", "engine/http_handler.py: a file name the house does not use"),
        ("bench/utils.py", "", "bench/utils.py: a file name the house does not use"),
        ("engine/a.py", "class PoolManager: pass", "engine/a.py:1 PoolManager: the word manager names no thing"),
        ("engine/a.py", "def f():\n  def common_part(): pass", "engine/a.py:2 common_part: the word common names no thing"),
        ("tests/a.py", "async def _helper(): pass", "tests/a.py:1 _helper: the word helper names no thing"),
        ("engine/a.py", "import x  # noqa: F401", "engine/a.py:1 an ignore without a reason in words"),
        ("engine/a.py", "x = 1  # type: ignore[arg-type]", "engine/a.py:1 an ignore without a reason in words"),
    ],
)
def test_an_empty_word_is_reported(tmp_path: Path, name: str, text: str, problem: str) -> None:
    """Files, classes and functions are looked at in either way of writing names."""
    assert word_problems(write(tmp_path, **{name: text})) == [problem]


def test_words_that_only_contain_one_are_fine(tmp_path: Path) -> None:
    """The control: a whole word counts, not a part of one; an ignore with its reason passes."""
    text = "def futility(): pass\nclass Commons: pass\nimport x  # noqa: F401 - the name is looked up by the test\n"
    text += "y = f()  # type: ignore[misc]  # the stub says Any\n"
    assert word_problems(write(tmp_path, **{"engine/a.py": text})) == []
