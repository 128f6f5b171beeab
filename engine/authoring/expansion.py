"""How much work a schema can make of one value.

Its job: the graph of a schema's places, and from it an upper bound of how often sub-schemas are applied.
Not its job: which keywords are allowed (``strict.py``, which runs first: this file trusts the shape).
Laws:
1. A ``$ref`` that leads back to its own place is found (tests/unit/test_strict.py).
2. Neither schema depth nor a chain of definitions costs stack (tests/unit/test_strict.py).
3. Overlapping alternatives multiply, distinct keys do not (tests/unit/test_checking.py).

A *place* is a sub-schema together with all that is applied to the same value (allOf, anyOf, not, ...). Below it lie other places, reached
by a key, by an index, or by a wildcard (additionalProperties, items) which may meet any key or index.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

LISTS_HERE = ("allOf", "anyOf", "oneOf")
ONE_HERE = ("not", "if", "then", "else")
WILD = {
    "additionalProperties": "key",
    "unevaluatedProperties": "key",
    "propertyNames": "key",
    "items": "index",
    "contains": "index",
    "unevaluatedItems": "index",
}
_CEILING = 1 << 60  # past any budget; keeps the numbers small


class Place:
    """One place: its own cost in keyword groups, the definitions applied in place, and the places below by step."""

    __slots__ = ("below", "cost", "refs")

    def __init__(self) -> None:
        self.cost = 0
        self.refs: dict[str, int] = {}
        self.below: dict[tuple[str, Any], list[int]] = {}


class Expansion:
    """The places of one schema: 0 is the root, ``definitions`` maps names of ``$defs`` to theirs.

    ``weigh`` says what one sub-schema costs by itself, when that is not to be in keyword groups.
    """

    def __init__(self, schema: object, weigh: Callable[[dict[str, Any]], int] | None = None) -> None:
        self._weigh = weigh or _keyword_groups
        self.places: list[Place] = [Place()]
        self.definitions: dict[str, int] = {}
        todo: list[tuple[object, int]] = [(schema, 0)]
        if isinstance(schema, dict):
            for name, sub in schema.get("$defs", {}).items():
                self.definitions[name] = self._new()
                todo.append((sub, self.definitions[name]))
        while todo:
            node, number = todo.pop()
            todo.extend(self._node(node, number))
        self._order = self._in_place_order()
        self._applied: dict[bool, list[list[int]]] = {}
        self._recursive: frozenset[str] | None = None  # asked for with each value

    def _new(self) -> int:
        self.places.append(Place())
        return len(self.places) - 1

    def _node(self, node: object, number: int) -> Iterator[tuple[object, int]]:
        place = self.places[number]
        if not isinstance(node, dict):
            place.cost += self._weigh({})
            return
        place.cost += self._weigh(node)
        if "$ref" in node:
            name = node["$ref"].removeprefix("#/$defs/")
            place.refs[name] = place.refs.get(name, 0) + 1
        for sub in _here(node):
            yield sub, number
        for step, sub in _below(node):
            below = self._new()
            place.below.setdefault(step, []).append(below)
            yield sub, below

    def _in_place_order(self) -> list[str] | None:
        """Names of definitions, each after those it applies in place; None when some lead back to themselves."""
        waiting = {name: set(self.places[number].refs) & set(self.definitions) for name, number in self.definitions.items()}
        order: list[str] = []
        while waiting:
            ready = [name for name, needs in waiting.items() if not needs]
            if not ready:
                return None
            for name in ready:
                del waiting[name]
            for needs in waiting.values():
                needs.difference_update(ready)
            order += ready
        return order

    @property
    def leads_back(self) -> bool:
        """Whether some ``$ref`` leads back to its own place without going into the value, so that it says nothing."""
        return self._order is None

    def largest(self) -> int:
        """How many sub-schemas one place applies to one value at most. Not to be asked when ``leads_back``."""
        return max(self._costs(frozenset()))

    def recursive(self) -> frozenset[str]:
        """Names of the definitions that can be reached from themselves."""
        direct = {name: self._reached(number) for name, number in self.definitions.items()}
        found = set()
        for name in direct:
            seen: set[str] = set()
            todo = list(direct[name])
            while todo:
                other = todo.pop()
                if other not in seen:
                    seen.add(other)
                    todo.extend(direct.get(other, ()))
            if name in seen:
                found.add(name)
        return frozenset(found)

    def _reached(self, number: int) -> set[str]:
        refs: set[str] = set()
        todo = [number]
        while todo:
            place = self.places[todo.pop()]
            refs.update(place.refs)
            todo.extend(below for group in place.below.values() for below in group)
        return refs

    def _costs(self, left_out: frozenset[str]) -> list[int]:
        own = [place.cost for place in self.places]
        self._spread(own, left_out)
        return own

    def _spread(self, values: list[int], left_out: frozenset[str]) -> None:
        """Add to each place's value those of the definitions it applies in place."""
        spread: dict[str, int] = {}
        for name in self._order or ():
            number = self.definitions[name]
            spread[name] = values[number] = self._sum(number, values[number], spread, left_out)
        named = set(self.definitions.values())
        for number in range(len(self.places)):
            if number not in named:
                values[number] = self._sum(number, values[number], spread, left_out)

    def _sum(self, number: int, own: int, spread: dict[str, int], left_out: frozenset[str]) -> int:
        refs = self.places[number].refs
        return min(_CEILING, own + sum(times * spread.get(name, 0) for name, times in refs.items() if name not in left_out))

    def applications(self, counts: Sequence[int], *, remembered: bool) -> int:
        """An upper bound of how often sub-schemas are applied to a value with ``counts[d]`` values at depth d.

        ``remembered``: a recursive definition is applied to one value once and its answer kept, as ``is_valid`` of jsonschema-rs does.
        """
        if self._recursive is None:
            self._recursive = self.recursive()
        left_out = self._recursive if remembered else frozenset()
        rows = self._applied.setdefault(remembered, [])
        while len(rows) < len(counts):
            rows.append(self._row(rows[-1], left_out) if rows else self._costs(left_out))
        total, again = 0, 0
        starts = [self.definitions[name] for name in left_out]
        for count, row in zip(counts, rows, strict=False):
            again = min(_CEILING, again + sum(row[number] for number in starts))
            total += count * (row[0] + again)
        return total

    def _row(self, above: list[int], left_out: frozenset[str]) -> list[int]:
        """How often sub-schemas are applied one level further down, for each place, at most over all steps.

        Steps of several places applied to one value are added up place by place, which can only be too much.
        """
        values = []
        for place in self.places:
            most = {"key": 0, "index": 0}
            wild = {"key": 0, "index": 0}
            for (kind, name), group in place.below.items():
                applied = sum(above[number] for number in group)
                if name is None:
                    wild[kind] += applied
                else:
                    most[kind] = max(most[kind], applied)
            values.append(min(_CEILING, max(most["key"] + wild["key"], most["index"] + wild["index"])))
        self._spread(values, left_out)
        return values


def _keyword_groups(node: dict[str, Any]) -> int:
    options = node.get("enum", ())
    # texts and numbers are looked up at some 1 ns each, lists and objects are compared one by one
    listed = len(options) if any(isinstance(option, dict | list) for option in options) else len(options) // 16
    return 1 + listed + len(node.get("required", ())) // 16


def _here(node: dict[str, Any]) -> Iterator[object]:
    for keyword in LISTS_HERE:
        yield from node.get(keyword, ())
    for keyword in ONE_HERE:
        if keyword in node:
            yield node[keyword]
    yield from node.get("dependentSchemas", {}).values()


def _below(node: dict[str, Any]) -> Iterator[tuple[tuple[str, Any], object]]:
    for name, sub in node.get("properties", {}).items():
        yield ("key", name), sub
    for sub in node.get("patternProperties", {}).values():
        yield ("key", None), sub
    for index, sub in enumerate(node.get("prefixItems", ())):
        yield ("index", index), sub
    for keyword, kind in WILD.items():
        if keyword in node:
            yield (kind, None), node[keyword]
