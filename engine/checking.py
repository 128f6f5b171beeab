"""Values against schemas: a walk over the data first, then a compiled validator, then lines a model can act on.

Its job: the closed set of data, compiled checkers, and arguments from JSON text.
Not its job: which schemas are allowed (``authoring/strict.py``), the words for a misfit (``misfits.py``), its end (``call.py``).
Laws:
1. No line holds a value; paths, keys and what the schema wants are named (tests/unit/test_checking.py).
2. Depth and count are checked before the validator sees a value: it recurses, and past 20 000 levels it ends the process
   (tests/unit/test_checking.py).
3. The work a schema can make of a value is estimated first, and refused past a budget (tests/unit/test_checking.py).
4. Nothing is fetched, and patterns run in linear time (tests/unit/test_checking.py).
5. What patterns can cost is estimated like other work; more of it is taken in the process for large values (tests/unit/test_matching.py).
"""

import functools
import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

import jsonschema_rs

from engine import misfits, outcome
from engine.authoring.canonical import canonical
from engine.authoring.expansion import Expansion
from engine.authoring.strict import quoted, schema_problems
from engine.errors import DeclarationError
from engine.matching import Matching

DEPTH = 128  # containers around a value, itself included, as on the wire; jsonschema-rs takes about 250
NODES = 1_000_000
_INT_MIN, _INT_MAX = -(1 << 63), (1 << 63) - 1
_REGEX_BYTES = 1 << 20  # of one compiled pattern
_BUDGET = 50_000_000  # sub-schema applications per value; at some 20 ns each one second, in which the interpreter stands still
_TELLING_BUDGET = 50_000  # the same for finding all errors: each costs 7 us and some hundred bytes
_STATES = 4_000_000  # of patterns, for a value that is checked on the event loop; at most some 5 ns each
_STATES_ASIDE = 400_000_000  # the same in a process that has nothing else to do
_TELLING_STATES = 1_000_000  # the same for finding all errors: it matches anew
_LINES = 20  # problems told at once
_SHAPES = 64  # of values whose work is remembered, each at most DEPTH + 1 numbers: those of one tool are much alike


class Checker:
    """A schema compiled once; ``problems`` says what about a value does not fit. Raises DeclarationError for a schema it cannot take."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._schema = dict(schema)
        lines = schema_problems(self._schema, "schema")
        if lines:
            raise DeclarationError(*lines)
        self._expansion = Expansion(self._schema)
        self._applications = functools.lru_cache(maxsize=_SHAPES)(self._expansion.applications)
        self.text = canonical(self._schema).decode("utf-8")  # what another process makes the same checker from
        self._matching = Matching.of(self._schema, self.text)
        self._has_alternatives = '"anyOf"' in self.text or '"oneOf"' in self.text
        try:
            self._validator = jsonschema_rs.Draft202012Validator(
                self._schema,
                offline=True,  # security: the default fetches http:// and file:// references
                validate_formats=True,
                ignore_unknown_formats=False,
                # security: linear time and bounded memory; the default engine backtracks
                pattern_options=jsonschema_rs.RegexOptions(size_limit=_REGEX_BYTES, dfa_size_limit=_REGEX_BYTES),
                mask="<value>",  # security: error texts would otherwise carry what a tool returned, secrets included
            )
        except ValueError as error:  # ValidationError is one
            raise DeclarationError(_uncompiled(error)) from None

    @classmethod
    def of_text(cls, text: str) -> "Checker":
        """The checker whose ``text`` this is."""
        return cls(json.loads(text))

    def problems(self, value: object) -> tuple[str, ...]:
        """One line for each way in which the value does not fit, at most twenty; empty when it fits."""
        counts: list[int] = []
        problem = _walk(value, DEPTH, NODES, counts)
        return self._problems(value, counts) if problem is None else (problem,)

    def problems_of_data(self, value: object, *, aside: bool = False) -> tuple[str, ...]:
        """The same for a value that is known to be plain data within the bounds, as everything is that came in a frame.

        ``aside``: not on the event loop, so that its patterns may take longer.
        """
        return self._problems(value, _counts(value), aside=aside)

    def aside_bytes(self) -> int | None:
        """From how many bytes on a value may be too costly for the event loop by its patterns; None when it has none."""
        return None if self._matching is None else self._matching.bytes_within(_STATES, DEPTH + 1, self._expansion) + 1

    def _problems(self, value: object, counts: list[int], *, aside: bool = False) -> tuple[str, ...]:
        # security: overlapping alternatives multiply with each level, so a few bytes could hold the host for ever
        if self._applications(tuple(counts), remembered=True) > _BUDGET:
            return ("$: too large or too deep for a schema whose alternatives overlap: send less",)
        # security: a pattern of a few bytes has thousands of states, and each byte of a text goes through all of them
        if self._matching is not None and self._matching.states(value) > (_STATES_ASIDE if aside else _STATES):
            return ("$: too large for a schema with such patterns: send less",)
        try:
            return () if self._validator.is_valid(value) else tuple(dict.fromkeys(self._lines(value, counts)))
        except ValueError:  # ValidationError and UnicodeEncodeError are some; the walk should have left nothing that raises
            return ("$: could not be compared with the schema",)

    def _lines(self, value: object, counts: list[int]) -> list[str]:
        work = self._expansion.applications(counts, remembered=False)
        if self._matching is not None and self._matching.states(value, remembered=False) > _TELLING_STATES:
            return ["$: does not fit the schema, and is too large to say where"]
        # security: all errors of a large value, with those of each alternative inside, take more memory than a host has
        if work > _TELLING_BUDGET:
            tellable = work <= _BUDGET and not self._has_alternatives
            return self._first(value) if tellable else ["$: does not fit the schema, and is too large to say where"]
        lines: list[str] = []
        for error in self._validator.iter_errors(value):
            lines += misfits.lines(error, self._schema)
            if len(lines) > _LINES:
                return [*lines[: _LINES - 1], "$: there are further problems: mend these first"]
        return lines

    def _first(self, value: object) -> list[str]:
        try:
            self._validator.validate(value)
        except jsonschema_rs.ValidationError as error:
            return [*misfits.lines(error, self._schema)[: _LINES - 1], "$: there may be further problems: mend this first"]
        return []


def _uncompiled(error: ValueError) -> str:
    """One line for what the validator says of a schema: the place and the rule, mostly a pattern's grammar."""
    place = ".".join(str(part) for part in getattr(error, "instance_path", ()))
    text = str(getattr(error, "message", "does not compile")).replace("<value>", "it")
    return f"schema.{place}: {text}: mend it" if place else f"schema: {text}: mend it"


def data_problem(value: object, *, depth: int = DEPTH, nodes: int = NODES) -> str | None:
    """Why a value is not plain data within bounds, as a path and a type name; None when it is. Never recurses."""
    return _walk(value, depth, nodes, [])


def _walk(value: object, depth: int, nodes: int, counts: list[int]) -> str | None:
    """``data_problem``, and into ``counts`` how many values stand at each depth. Level by level, so that depth costs no stack."""
    level: list[Any] = [value]
    left = nodes
    for above in range(depth + 1):
        left -= len(level)
        counts.append(len(level))
        below: list[Any] = []
        for item in level:
            if _foreign(item) is not None:
                return _located(value)
            if type(item) is dict or type(item) is list:
                if above == depth:
                    return f"$: nested deeper than {depth} levels: flatten it"
                below.extend(item.values() if type(item) is dict else item)
            # security: counted before it is looked into, else a value that holds itself many times over is walked for ever
            if len(below) > left:
                return f"$: holds more than {nodes} values: send less"
        if not below:
            return None
        level = below
    return None


def _counts(value: object) -> list[int]:
    """How many values stand at each depth of plain data."""
    level: list[Any] = [value]
    counts: list[int] = []
    while level:
        counts.append(len(level))
        below: list[Any] = []
        for item in level:
            kind = type(item)
            if kind is dict:
                below += item.values()
            elif kind is list:
                below += item
        level = below
    return counts


def _located(value: object) -> str:
    """The line for the first value that is no data, found in the order of ``_walk`` but with paths."""
    level: list[tuple[Any, Any]] = [(value, None)]
    while level:
        below: list[tuple[Any, Any]] = []
        for item, link in level:
            problem = _foreign(item)
            if problem is not None:
                return f"{misfits.path_text(_parts(link))} is {problem}, which is not plain data"
            members = item.items() if type(item) is dict else enumerate(item) if type(item) is list else ()
            below.extend((member, (link, key)) for key, member in members)
        level = below
    return "$ is not plain data"


def _parts(link: Any) -> Iterator[str | int]:
    parts: list[str | int] = []
    while link is not None:
        link, key = link
        parts.append(key)
    return reversed(parts)


def _foreign(item: Any) -> str | None:
    """What makes one value no plain data, its members left out."""
    kind = type(item)
    if kind is str:
        return None if item.isascii() or _encodes(item) else "a text with a lone surrogate"
    if item is None or kind is bool or kind is list:
        return None
    if kind is int:
        return None if _INT_MIN <= item <= _INT_MAX else "an int outside 64 bits"
    if kind is float:
        # security: inf and nan slip past minimum and maximum
        return None if math.isfinite(item) else "a float that is not finite"
    if kind is not dict:
        return f"of type {kind.__name__}"
    for key in item:
        if type(key) is not str:
            return f"an object with a key of type {type(key).__name__}"
        if not (key.isascii() or _encodes(key)):
            return "an object with a lone surrogate in a key"
    return None


def _encodes(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


# -- arguments as JSON text

_OPENINGS = re.compile(r'"(?:[^"\\]|\\.)*+"|[\[{]|[\]}]', re.DOTALL)


def parse_arguments(text: str | bytes, limit: int) -> dict[str, Any]:
    """The one JSON object in the text of at most ``limit`` bytes. Raises RequestError: ``refused.request`` or ``refused.request_size``."""
    if len(text) > limit or (isinstance(text, str) and len(text.encode("utf-8", "surrogatepass")) > limit):
        raise outcome.error_for("refused.request_size", f"the arguments have more than {limit} bytes: send less")
    try:
        plain = text.decode("utf-8") if isinstance(text, bytes) else text
    except UnicodeDecodeError:
        _refuse("the arguments are not UTF-8")
    if _too_deep(plain):
        _refuse(f"the arguments are nested deeper than {DEPTH} levels: flatten them")
    try:
        value = json.loads(plain, object_pairs_hook=_object, parse_constant=_constant, parse_int=_int, parse_float=_float)
    except json.JSONDecodeError as error:
        _refuse(f"the arguments are not JSON: {error.msg} at line {error.lineno}, column {error.colno}")
    if type(value) is not dict:
        _refuse('the arguments must be one JSON object, such as {"key": "value"}')
    problem = data_problem(value)
    if problem is not None:
        _refuse(problem)
    return value


def _refuse(line: str) -> NoReturn:
    raise outcome.error_for("refused.request", line)


def _too_deep(text: str) -> bool:
    # security: the parser recurses, so its own limit is a RecursionError at best
    if text.count("[") + text.count("{") <= DEPTH:
        return False
    depth = 0
    for match in _OPENINGS.finditer(text):
        found = match[0]
        if len(found) == 1:  # a text has two quotes at least
            depth += 1 if found in "[{" else -1
            if depth > DEPTH:
                return True
    return False


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        # security: two readers of one text would each take another value
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]  # add returns None, which is false
        _refuse(f"the key {quoted(twice)} stands twice in one object: keep one")
    return made


def _constant(name: str) -> NoReturn:
    _refuse(f"{name} is no JSON number")


def _int(digits: str) -> int:
    # security: a number of a million digits costs quadratic time
    if len(digits) > 20 or not _INT_MIN <= int(digits) <= _INT_MAX:
        _refuse("a whole number outside 64 bits: send it as text")
    return int(digits)


def _float(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        _refuse("a number too large for a double: send it as text")
    return value
