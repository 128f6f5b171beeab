"""What a source asks for beside its ``@tool(...)`` calls: ``[tool.stockade]``, in the script's inline block or in pyproject.toml.

Its job: both tables as ``Written`` rows without a tool, for every tool of the source; a list that is no list of strings refuses.
Not its job: the calls (``facts.py``), whether the imported declarations agree (``loading.py``).
Laws:
1. A table is data: it is read, never run, and its size is bounded before it is parsed (tests/unit/test_tables.py).
2. Nothing but the three lists is taken from either file (tests/unit/test_tables.py).
"""

import tomllib

from engine.outcome import error_for
from engine.staging.facts import ASKED, Written, written
from engine.staging.sources import Kind, Tree

_TABLE_BYTES = 64 << 10  # a TOML reader recurses; a table of three lists is short
_PROJECT = "pyproject.toml"
_PROJECT_BYTES = 256 << 10  # as large as such files get


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
    try:
        table = tomllib.loads(text).get("tool", {})
        asked = table.get("stockade") if isinstance(table, dict) else None
    except (tomllib.TOMLDecodeError, RecursionError):
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
    lines = source.decode("utf-8", "replace").splitlines()
    starts = [at for at, line in enumerate(lines) if line.rstrip() == "# /// script"]
    blocks: list[tuple[int, str]] = []
    for start in starts:
        end = start + 1
        while end < len(lines) and (lines[end] == "#" or lines[end].startswith("# ")):
            end += 1
        closed = [at for at in range(start + 1, end) if lines[at].rstrip() == "# ///"]
        if closed:
            blocks.append((start + 1, "\n".join(line[2:] for line in lines[start + 1 : closed[-1]])))
            if len(blocks) > 1 or len(blocks[0][1]) > _TABLE_BYTES:
                raise error_for("refused.source_literals", f"{file}:{start + 1}: one inline script block of at most 64 KiB")
    return blocks[0] if blocks else None
