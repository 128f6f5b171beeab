"""Secrets that stand in the source of a tool, or in what it declares.

Its job: the files and lines that hold a value, or what certainly looks like one; the tools whose declaration does.
Not its job: which files a source has (``staging/``), that such a source is refused (``loading.py``).
Laws:
1. A line names the file, the line in it and the secret's ID, never what stands there (tests/unit/test_redact_sources.py).
2. What is only likely a secret is no problem: examples in documentation look the same (tests/unit/test_redact_sources.py).
3. The work is in proportion to the source, however much of it is secrets (tests/unit/test_redact_work.py).
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from engine.results.redact import Watch, remains

_MOST_LINES = 20  # a person reads them


def source_problems(files: Mapping[str, bytes], watch: Watch, allowed: Collection[str]) -> list[str]:
    """One line for each place of a secret in files that the operator did not allow to hold one; of very many the first."""
    lines = list(islice(_problems(files, watch, allowed), _MOST_LINES + 1))
    return lines if len(lines) <= _MOST_LINES else [*lines[:_MOST_LINES], "and more"]


def declared_problems(told: Sequence[Any], watch: Watch) -> list[str]:
    """One line for each tool that declares a secret: by its place, because its name may be what holds it."""
    found = ((number, remains(watch, tool)) for number, tool in enumerate(told, 1))
    lines = (f"tool {number} of the source: what it declares holds the secret {', '.join(ids)}" for number, ids in found if ids)
    return list(islice(lines, _MOST_LINES))


def _problems(files: Mapping[str, bytes], watch: Watch, allowed: Collection[str]) -> Iterator[str]:
    for path, data in sorted(files.items()):
        # security: a file's name may hold a value as well, and lines go to logs
        shown = watch.text(path)[0]
        if path not in allowed:
            yield from (f"{shown}:{line}: holds the secret {name}" for line, name in _places(data, watch))
        for hit in watch.look(path.encode("utf-8", "surrogatepass")):
            if hit.certain:
                yield f"the name {shown}: holds the secret {hit.id}"


def _places(data: bytes, watch: Watch) -> Iterator[tuple[int, str]]:
    """Line and ID of each certain hit; each pair once."""
    told: set[tuple[int, str]] = set()
    line, at = 1, 0
    for hits in watch.slices(data):
        for hit in hits:
            if not hit.certain:
                continue
            # security: counted on from the last one; from the file's start each time, it would cost the file's length squared
            line += data.count(b"\n", at, hit.start) if hit.start >= at else -data.count(b"\n", hit.start, at)
            at = hit.start
            if (line, hit.id) not in told:
                told.add((line, hit.id))
                yield line, hit.id
