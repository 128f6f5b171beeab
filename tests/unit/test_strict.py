"""Which schemas a declaration may hold."""

from typing import Any

import pytest

from engine.authoring.expansion import Expansion
from engine.authoring.strict import FORMATS, KEYWORDS, schema_problems

CLOSED = {"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": False}


def refused(schema: Any) -> list[str]:
    """The lines for a schema that stands at ``input``."""
    return schema_problems(schema, "input")


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "object"},
        {"type": "object", "properties": {}},
        {"type": "object", "additionalProperties": {"type": "integer"}},
        CLOSED,
        {**CLOSED, "required": ["a"]},
        {**CLOSED, "allOf": [{"if": {"properties": {"a": {"const": "x"}}}, "then": {"required": ["a"]}}]},
        {
            "type": "object",
            "properties": {"a": {}},
            "allOf": [{"properties": {"b": {}}, "required": ["b"]}],
            "unevaluatedProperties": False,
        },
        {"type": "object", "patternProperties": {"^x": {}}, "additionalProperties": False},
        {"anyOf": [{"enum": ["a"]}, {"type": "integer"}]},
        {"anyOf": [{"enum": ["a", "b"]}, {"type": "null"}]},
        {"$defs": {"n": {"type": "array", "items": {"$ref": "#/$defs/n"}}}, "$ref": "#/$defs/n"},
        {"type": ["string", "null"], "pattern": "^[a-z]{1,20}$", "format": "date"},
        {"prefixItems": [True, {"type": "null"}], "items": False},
        {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "t", "examples": [{"additionalProperties": 3}]},
        {"enum": [1, True, 1.0, "1", None, [], {}]},
    ],
    ids=str,
)
def test_good_schemas_pass(schema: Any) -> None:
    """Control: closed objects, open empty ones, enums, local recursion, conditions below a closed object."""
    assert refused(schema) == []


@pytest.mark.parametrize(
    ("schema", "line"),
    [
        (3, "input: a schema is a dict such as {'type': 'object'}, not int"),
        (
            {"type": "object", "properties": {"a": {}}},
            "input: an object that declares keys must be closed: add additionalProperties: false",
        ),
        (
            {**CLOSED, "additionalProperties": {"type": "string"}},
            "input: an object that declares keys must be closed: add additionalProperties: false",
        ),
        ({**CLOSED, "type": ["string"]}, "input: declares keys but would let any text or number pass: add type: object"),
        (
            {"type": "array", "items": {"type": "object", "properties": {"a b": {"type": "object", "properties": {"c": {}}}}}},
            "input.items: an object that declares keys must be closed: add additionalProperties: false",
        ),
        ({**CLOSED, "required": ["b"]}, 'input.required: "b" is not among properties: declare it there'),
        ({"type": "object", "required": ["b"]}, 'input.required: "b" is not among properties: declare it there'),
        (
            {"anyOf": [{"const": "a"}, {"const": "b"}]},
            "input.anyOf: a union of literals must be one enum: write enum: [...] with all the values",
        ),
        ({"oneOf": [{"enum": ["a"]}]}, "input.oneOf: a union of literals must be one enum: write enum: [...] with all the values"),
        (
            {"anyOf": [{"const": "a", "description": "x"}, {"const": "b"}, {"type": "null"}]},
            "input.anyOf: a union of literals must be one enum: write enum: [...] with all the values",
        ),
        ({"tpye": "object"}, 'input: unknown keyword "tpye": use one of JSON Schema 2020-12, or put it into description or meta'),
        ({"$id": "http://x/"}, 'input: unknown keyword "$id": use one of JSON Schema 2020-12, or put it into description or meta'),
        ({"$dynamicRef": "#a"}, 'input: unknown keyword "$dynamicRef": use one of JSON Schema 2020-12, or put it into description or meta'),
        ({"$ref": "http://x/y"}, "input.$ref: must name a definition of this schema, such as #/$defs/node: nothing is fetched"),
        ({"$ref": "file:///etc/passwd"}, "input.$ref: must name a definition of this schema, such as #/$defs/node: nothing is fetched"),
        ({"$ref": "#"}, "input.$ref: must name a definition of this schema, such as #/$defs/node: nothing is fetched"),
        ({"$ref": "#/$defs/a"}, 'input.$ref: "#/$defs/a" is not defined: add it to $defs at the root of the schema'),
        ({"items": {"$defs": {}}}, "input.items.$defs: definitions stand at the root of the schema, at most 256: move them there"),
        ({"$defs": {"a/b": {}}}, 'input.$defs: the name "a/b" must be letters, digits, _ and - only'),
        (
            {"type": "text"},
            "input.type: must be one of, or a list of different ones of: null, boolean, integer, number, string, array, object",
        ),
        ({"type": []}, "input.type: must be one of, or a list of different ones of: null, boolean, integer, number, string, array, object"),
        ({"enum": []}, "input.enum: must be a list of at least one value"),
        ({"enum": ["a", "a"]}, "input.enum: names a value twice"),
        ({"minLength": -1}, "input.minLength: must be a whole number from 0 to 2^53"),
        ({"maxItems": True}, "input.maxItems: must be a whole number from 0 to 2^53"),
        ({"maximum": "3"}, "input.maximum: must be a number within 64 bits"),
        ({"multipleOf": 0}, "input.multipleOf: must be a number above 0"),
        ({"uniqueItems": 1}, "input.uniqueItems: must be true or false"),
        ({"required": "a"}, "input.required: must be a list of different names"),
        ({"properties": []}, "input.properties: must map names to schemas"),
        ({"anyOf": []}, "input.anyOf: must be a list of at least one schema"),
        ({"items": 3}, "input.items: a schema is an object, true or false, not int"),
        ({"prefixItems": [{}, "x"]}, "input.prefixItems[1]: a schema is an object, true or false, not str"),
        ({"format": "password"}, "input.format: must be one of: " + ", ".join(sorted(FORMATS))),
        ({"$schema": "http://json-schema.org/draft-07/schema#"}, "input.$schema: must be https://json-schema.org/draft/2020-12/schema"),
        (
            {"default": {1}},
            "input: the schema is not plain JSON data (a set is not plain data): use dict, list, str, int, float, bool and None",
        ),
        (
            {"minimum": float("nan")},
            "input: the schema is not plain JSON data (a float that is not finite): use dict, list, str, int, float, bool and None",
        ),
        ({"dependentRequired": {"a": "b"}}, "input.dependentRequired: must map keys to lists of names"),
    ],
    ids=str,
)
def test_bad_schemas_refuse_with_path_and_remedy(schema: Any, line: str) -> None:
    """Each says where it is and what to do."""
    assert refused(schema)[0] == line


@pytest.mark.parametrize(
    ("pattern", "what"),
    [
        ("(?=a)", "look-ahead"),
        ("a(?!b)", "look-ahead"),
        ("(?<=a)b", "look-behind"),
        ("(?<!a)b", "look-behind"),
        (r"(a)\1", "a back-reference"),
        (r"(?P<x>a)\k<x>", "a back-reference"),
        ("(?P<x>a)(?P=x)", "a back-reference"),
        ("(?(1)a|b)", "a conditional"),
        ("(?>a)", "an atomic group"),
    ],
)
def test_patterns_without_a_linear_time_engine_refuse(pattern: str, what: str) -> None:
    """What needs backtracking is named."""
    line = f"input.pattern: the pattern has {what}, which no linear-time engine can match: write it without"
    assert refused({"pattern": pattern}) == [line]
    inside = {"type": "object", "patternProperties": {pattern: {}}, "additionalProperties": False}
    assert refused(inside) == [line.replace(".pattern:", ".patternProperties:")]


@pytest.mark.parametrize("pattern", [r"^\d{1,1000}$", r"[(?=\1]+", r"\\1", r"(?:a|b)?", "[]1]", r"\(\?=", "a{2}b{,3}", "[^]]x"])
def test_harmless_patterns_pass(pattern: str) -> None:
    """Control: classes, escapes and plain groups that only look alike."""
    assert refused({"pattern": pattern}) == []


@pytest.mark.parametrize(
    ("pattern", "line"),
    [
        ("a{1001}", "input.pattern: the pattern repeats more than 1000 times: use min_length and max_length for sizes"),
        ("a{1,99999}", "input.pattern: the pattern repeats more than 1000 times: use min_length and max_length for sizes"),
        ("a" * 513, "input.pattern: the pattern has 513 characters, at most 512 are allowed: match less, or use an enum"),
    ],
    ids=["count", "digits", "length"],
)
def test_patterns_are_bounded(pattern: str, line: str) -> None:
    """Neither length nor repetition is free."""
    assert refused({"pattern": pattern}) == [line]


def nested(levels: int, keyword: str = "items") -> dict[str, Any]:
    """A schema of that many levels."""
    made: dict[str, Any] = {}
    for _ in range(levels):
        made = {keyword: made}
    return made


def test_depth_is_bounded_and_costs_no_stack() -> None:
    """48 levels pass, 49 refuse, a hundred thousand are no recursion."""
    assert refused(nested(48)) == []
    deep = "input" + ".items" * 49
    assert refused(nested(49)) == [f"{deep}: more than 10000 sub-schemas or 48 levels: split the tool, or describe less"]
    assert refused(nested(100_000)) == [
        "input: the schema is not plain JSON data (data nested deeper than 512 levels): use dict, list, str, int, float, bool and None"
    ]


def test_data_inside_a_schema_is_bounded_too() -> None:
    """A default may not be nested past what the wire takes."""
    deep: Any = []
    for _ in range(130):
        deep = [deep]
    assert refused({"default": deep}) == ["input: nested deeper than 120 containers: flatten it"]


def test_size_is_bounded() -> None:
    """Ten thousand sub-schemas and 256 KiB."""
    many: dict[str, Any] = {"prefixItems": [{}] * 10_000}
    assert refused(many)[0].endswith("more than 10000 sub-schemas or 48 levels: split the tool, or describe less")
    assert refused({"prefixItems": [{}] * 9_999}) == []
    assert refused({"description": "x" * 300_000}) == ["input: the schema has 300018 bytes, at most 262144 are allowed: describe less"]


def test_a_reference_that_only_leads_to_itself_refuses() -> None:
    """Such a schema would accept anything."""
    line = "input: a $ref leads back to itself without going into the value: put it below items or properties"
    assert refused({"$defs": {"a": {"$ref": "#/$defs/a"}}}) == [line]
    assert refused({"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/b"}]}, "b": {"not": {"$ref": "#/$defs/a"}}}}) == [line]


def test_references_that_double_at_each_step_refuse() -> None:
    """Twenty definitions that each name the next twice would apply a million sub-schemas to one value."""
    pairs = {f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}, {"$ref": f"#/$defs/d{i + 1}"}]} for i in range(20)}
    schema = {"$defs": {**pairs, "d20": {"type": "null"}}, "$ref": "#/$defs/d0"}
    assert refused(schema) == ["input: more than 4096 sub-schemas would apply to one value: use fewer alternatives"]


def test_a_chain_of_definitions_costs_no_stack() -> None:
    """256 definitions one after the other, each with its own nesting, are walked without recursion."""
    chain = {f"d{i}": {"allOf": [{"allOf": [{"$ref": f"#/$defs/d{i + 1}"}]}]} for i in range(255)}
    schema = {"$defs": {**chain, "d255": {"type": "null"}}, "$ref": "#/$defs/d0"}
    assert refused(schema) == []
    assert Expansion(schema).largest() == 3 * 255 + 2


def test_the_number_of_problems_told_is_bounded() -> None:
    """Nobody mends more than twenty in one go."""
    assert len(refused({f"x{i}": 1 for i in range(1000)})) == 20


def test_counts_of_patterns_and_unevaluated_are_bounded() -> None:
    """Each pattern is an automaton, each unevaluated keyword one more pass."""
    assert refused({"prefixItems": [{"pattern": "a"}] * 64}) == []
    assert refused({"prefixItems": [{"pattern": "a"}] * 65}) == [
        "input.prefixItems[64]: more than 64 patterns in one schema: use enums or lengths"
    ]
    assert refused({"prefixItems": [{"unevaluatedItems": True}] * 9}) == [
        "input.prefixItems[8]: more than 8 unevaluatedItems and unevaluatedProperties: use additionalProperties and items"
    ]


def test_the_keywords_are_those_of_the_draft() -> None:
    """The allow-list holds no keyword that changes the base address or is resolved while a value is checked."""
    assert not KEYWORDS & {"$id", "$anchor", "$dynamicRef", "$dynamicAnchor", "$vocabulary", "definitions", "dependencies", "$recursiveRef"}
