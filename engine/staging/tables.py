"""What a source asks for beside its ``@tool(...)`` calls: ``[tool.stockade]``, in the script's inline block or in pyproject.toml.

Its job: both tables as ``Written`` rows without a tool, for every tool of the source; a list that is no list of strings refuses.
Not its job: the calls (``facts.py``), whether the imported declarations agree (``loading.py``).
Laws:
1. A table is data: it is read, never run, and its size is bounded before it is parsed (tests/unit/test_tables.py).
2. Nothing but the three lists is taken from either file (tests/unit/test_tables.py).
"""

import re
import tomllib

from engine.outcome import error_for
from engine.staging.facts import ASKED, Written, written
from engine.staging.sources import Kind, Tree

_TABLE_BYTES = 64 << 10  # a TOML reader recurses; a table of three lists is short
_PROJECT = "pyproject.toml"
_PROJECT_BYTES = 256 << 10  # as large as such files get
# security: a key of n parts costs the TOML reader n^2 steps, minutes in a file of that size, in which the event loop stands still
_PART = r"""(?:[\w-]++|"(?:[^"\\\n]|\\.){0,64}+"|'[^'\n]*+')"""
_LONG_KEY = re.compile(rf"(?<![\w-]){_PART}(?:[ \t]*+\.[ \t]*+{_PART}){{64}}")


def project_table(tree: Tree) -> Written | None:
    """What ``[tool.stockade]`` in the root's pyproject.toml asks for, if there is one."""
    if tree.kind(_PROJECT) is Kind.MISSING:
        return None
    text = tree.read(_PROJECT, _PROJECT_BYTES).decode("utf-8", "replace")
    return _asked(text, _PROJECT, 1, "it")


def inline_table(source: bytes, file: str) -> Written | None:
    """What ``[tool.stockade]`` in the script's inline block (PEP 723) asks for, if there is one."""
    found = _inline_block(source, file)
    if found is None:
        return None
    line, text = found
    return _asked(text, file, line, "the inline script block")


def _asked(text: str, file: str, line: int, what: str) -> Written | None:
    if _LONG_KEY.search(text):
        raise error_for("refused.source_literals", f"{file}:{line}: {what} holds a key of more than 64 parts")
    try:
        table = tomllib.loads(text).get("tool", {})
        asked = table.get("stockade") if isinstance(table, dict) else None
    except (ValueError, RecursionError):  # TOMLDecodeError is the first, and so is int() refusing thousands of digits
        raise error_for("refused.source_literals", f"{file}:{line}: {what} is not TOML") from None
    if asked is None:
        return None
    if not isinstance(asked, dict) or not set(asked) <= set(ASKED):
        raise error_for("refused.source_literals", f"{file}:{line}: [tool.stockade] takes {', '.join(ASKED)} and nothing else")
    for key, texts in asked.items():
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise error_for("refused.source_literals", f"{file}:{line}: {key} must be a list of strings")
    return written({key: asked.get(key, []) for key in ASKED}, "", line, file)


def _inline_block(source: bytes, file: str) -> tuple[int, str] | None:
    if b"# /// script" not in source:
        return None
    lines = [*source.decode("utf-8", "replace").splitlines(), ""]
    found: list[tuple[int, int]] = []  # first and last line of each block
    starts: list[int] = []
    last = -1
    # security: once over the lines; looking from each start for its end took minutes for a file of nothing but starts
    for at, line in enumerate(lines):
        if line != "#" and not line.startswith("# "):  # the last "# ///" of lines that stand together ends a block (PEP 723)
            found += [(start, last) for start in starts if start < last]
            starts, last = [], -1
        elif line.rstrip() == "# /// script":
            starts.append(at)
        elif line.rstrip() == "# ///":
            last = at
    if not found:
        return None
    start, last = found[0]
    text = "\n".join(line[2:] for line in lines[start + 1 : last])
    if len(found) > 1 or len(text) > _TABLE_BYTES:
        raise error_for("refused.source_literals", f"{file}:{found[:2][-1][0] + 1}: one inline script block of at most 64 KiB")
    return start + 1, text
