"""What the house checks see when they read a file: a check is only as good as its eyes."""

from pathlib import Path

import pytest

from tests.house.reading import imports, sources, uses, write


@pytest.mark.parametrize(
    ("text", "dotted"),
    [
        ("import os\nos.fork()", "os.fork"),
        ("import os as o\no.fork()", "os.fork"),
        ("from os import fork as f\nf()", "os.fork"),
        ("import os\ngetattr(os, 'fork')()", "os.fork"),
        ("import os.path\nos.fork()", "os.fork"),
        ("def f():\n    import os\n    return os.environ['A']", "os.environ"),
        ("eval('1')", "builtins.eval"),
        ("e = eval", "builtins.eval"),
        ("import builtins as b\nb.eval('1')", "builtins.eval"),
        ("from . import wire", "engine.wire"),
        ("from .wire import framing", "engine.wire.framing"),
    ],
)
def test_a_use_is_seen_however_it_is_spelt(tmp_path: Path, text: str, dotted: str) -> None:
    """Aliases, literal getattr, local imports and relative imports do not hide a name."""
    (source,) = sources(write(tmp_path, **{"engine/x.py": text}), "engine")
    assert dotted in {name for _, name in uses(source)}


@pytest.mark.parametrize(
    "text", ["import re\nre.compile('a')", "def compile(x):\n    return x\ncompile(1)", "self.exec(1)", "'eval(1)'  # eval"]
)
def test_a_name_that_only_looks_alike_is_not_a_use(tmp_path: Path, text: str) -> None:
    """Attributes of other things, own functions, strings and comments are not the builtin."""
    (source,) = sources(write(tmp_path, **{"engine/x.py": text}), "engine")
    assert {"builtins.compile", "builtins.exec", "builtins.eval"}.isdisjoint({name for _, name in uses(source)})


def test_imports_are_seen_in_functions_and_for_types_only(tmp_path: Path) -> None:
    """An import counts wherever it stands."""
    text = "if TYPE_CHECKING:\n    import a\ndef f():\n    from b import c\n"
    (source,) = sources(write(tmp_path, **{"engine/x.py": text}), "engine")
    assert [found.full for found in imports(source)] == ["a", "b.c"]


def test_files_left_by_tools_are_not_read(tmp_path: Path) -> None:
    """Hidden folders and byte code folders are no part of the tree."""
    write(tmp_path, **{"engine/.venv/a.py": "", "engine/__pycache__/b.py": "", "engine/c.py": ""})
    assert [source.name for source in sources(tmp_path, "engine")] == ["engine/c.py"]


def test_a_file_is_parsed_once_until_its_text_changes(tmp_path: Path) -> None:
    """The same file is the same source the second time; the control: written anew, it is another one."""
    (first,) = sources(write(tmp_path, **{"engine/a.py": "import os"}), "engine")
    assert sources(tmp_path, "engine")[0] is first
    (second,) = sources(write(tmp_path, **{"engine/a.py": "import re"}), "engine")
    assert [[found.full for found in imports(source)] for source in (first, second)] == [["os"], ["re"]]
