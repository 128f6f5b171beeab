"""Secrets that stand in the source of a tool.

Its job: the files and lines that hold a value, or what certainly looks like one.
Not its job: which files a source has (``staging/``), that such a source is refused (``loading.py``).
Laws:
1. A line names the file, the line in it and the secret's ID, never what stands there (tests/unit/test_redact_sources.py).
2. What is only likely a secret is no problem: examples in documentation look the same (tests/unit/test_redact_sources.py).
"""

from collections.abc import Collection, Mapping

from engine.results.redact import Watch

_MOST_LINES = 20  # a person reads them


def source_problems(files: Mapping[str, bytes], watch: Watch, allowed: Collection[str]) -> list[str]:
    """One line for each place of a secret in files that the operator did not allow to hold one; of very many the first."""
    found = [
        (path, data.count(b"\n", 0, max(hit.start, 0)) + 1, hit.id)
        for path, data in sorted(files.items())
        if path not in allowed
        for hit in watch.look(data)
        if hit.certain
    ]
    # security: a file's name may hold a value as well, and lines go to logs
    lines = [f"{watch.text(path)[0]}:{line}: holds the secret {name}" for path, line, name in dict.fromkeys(found)]
    named = [
        f"the name {watch.text(path)[0]}: holds the secret {hit.id}"
        for path in sorted(files)
        for hit in watch.look(path.encode("utf-8", "surrogatepass"))
        if hit.certain
    ]
    lines += named
    return lines if len(lines) <= _MOST_LINES else [*lines[:_MOST_LINES], f"and {len(lines) - _MOST_LINES} more"]
