"""Finds the data files that a declaration lists, by anchored patterns.

Its job: ``rates/*.csv`` and ``rates/**`` beneath the root; ``*`` and ``?`` stay within one name, ``**`` spans folders.
Not its job: reading the files. Names that begin with a dot match only a dot that is written, and code is never data:
``data=["**"]`` must not carry ``.env`` or a module that nobody parsed.
Laws:
1. One walk per pattern, linear in names times pattern length; all walks together are bounded (tests/unit/test_patterns.py).
2. No pattern leaves the root, passes through a link, or takes code (tests/security/test_staging.py).
"""

from engine.outcome import error_for
from engine.staging.sources import Kind, Tree, joined, odd

# a module that comes in as data was never parsed; byte code and native code could not be
_CODE = (".py", ".pyw", ".pyc", ".pyo", ".so", ".pyd", ".dll", ".dylib", ".pth", "._pth", ".egg-link")
_PARTS = 32


def split(pattern: str, where: str) -> tuple[str, ...]:
    """The parts of a pattern. Raises refused.source_literals when it is not one."""
    parts = pattern.split("/")
    plain = [part.replace("*", "x").replace("?", "x") for part in parts]
    if len(parts) > _PARTS or any(
        odd(part) or "[" in part or ("**" in written and written != "**") for part, written in zip(plain, parts, strict=True)
    ):
        raise error_for(
            "refused.source_literals",
            f"{where}: {pattern!r} is no data pattern: write it relative to the root with *, ? and ** between slashes, without ..",
        )
    return tuple(part for at, part in enumerate(parts) if part != "**" or parts[at - 1 : at] != ["**"])


def matching(tree: Tree, pattern: str, where: str, *, below: str | None) -> tuple[str, ...]:
    """The files a pattern names, sorted; with ``below``, in that folder of the root only.

    Raises refused.source_literals when there is none, refused.source_path for a link, a special file or an odd name.
    """
    parts = split(pattern, where)
    found: list[str] = []
    waiting: list[tuple[str, frozenset[int]]] = [("", frozenset({0}))]
    while waiting:
        folder, at = waiting.pop()
        for name in sorted(tree.names(folder)) if folder or below is None else (below,):
            tree.walked += 1
            # security: over all patterns, else a thousand of them walk a large folder a thousand times
            if tree.walked > tree.bounds.walked_entries:
                raise error_for(
                    "refused.source_limits", f"{where}: data patterns walk more than {tree.bounds.walked_entries} names: narrow {pattern!r}"
                )
            following, last = _advance(parts, at, name)
            if following or last:
                _take(tree, joined(folder, name), following, last, found, waiting, passing=_only_spans(parts, at, name))
    if not found:
        start = f"start it with {below}/" if below else "code comes in by import only"
        raise error_for("refused.source_literals", f"{where}: {pattern!r} matches no data file beneath the root: {start}")
    return tuple(sorted(found))


def _take(
    tree: Tree,
    path: str,
    following: frozenset[int],
    last: bool,
    found: list[str],
    waiting: list[tuple[str, frozenset[int]]],
    *,
    passing: bool,
) -> None:
    kind, name = tree.kind(path), path.rpartition("/")[2].lower()
    if kind is Kind.FOLDER:
        if following:
            waiting.append((path, following))
        return
    if kind is Kind.LINK and passing and not last:
        return  # `**` goes around links to folders
    if not last or name.endswith(_CODE) or ".so." in name:
        if kind is Kind.LINK and not last:
            tree.require_file(path, kind)
        return
    tree.require_file(path, kind)
    if any(odd(part) for part in path.split("/")):
        raise error_for("refused.source_path", f"{path} has an odd name: use letters, digits, dashes, dots and underscores")
    found.append(path)


def _spread(parts: tuple[str, ...], at: frozenset[int]) -> frozenset[int]:
    """The positions, and those behind a ``**`` that stands for no folder at all."""
    return at | {place + 1 for place in at if parts[place] == "**" and place + 1 < len(parts)}


def _advance(parts: tuple[str, ...], at: frozenset[int], name: str) -> tuple[frozenset[int], bool]:
    """Positions below this name if it is a folder, and whether the name itself ends the pattern."""
    following: set[int] = set()
    last = False
    if name == "__pycache__":
        return frozenset(), False
    for place in _spread(parts, at):
        ends = place == len(parts) - 1
        if parts[place] == "**":
            if not name.startswith("."):
                following.add(place)
                last = last or ends
        elif fits(parts[place], name):
            last = last or ends
            if not ends:
                following.add(place + 1)
    return frozenset(following), last


def _only_spans(parts: tuple[str, ...], at: frozenset[int], name: str) -> bool:
    return not any(parts[place] != "**" and fits(parts[place], name) for place in _spread(parts, at))


def fits(part: str, name: str) -> bool:
    """Whether one name fits one part of a pattern; at most ``len(part) * len(name)`` steps."""
    if name.startswith(".") and not part.startswith("."):
        return False
    at = place = 0
    star, resume = -1, 0
    while place < len(name):
        if at < len(part) and part[at] == "*":
            star, resume = at, place
            at += 1
        elif at < len(part) and part[at] in ("?", name[place]):
            at += 1
            place += 1
        elif star >= 0:
            resume += 1
            at, place = star + 1, resume
        else:
            return False
    return all(char == "*" for char in part[at:])
