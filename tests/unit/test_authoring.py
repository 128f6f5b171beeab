"""The tool decorator: what it makes of a function, and what it refuses where it is written."""

import functools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

import engine
from engine.authoring import rules, schema, signature
from engine.authoring.tool import Context, Tool, artifact, tool
from engine.errors import DeclarationError


def refusal(declare: Callable[[], object]) -> tuple[str, ...]:
    """The lines with which declaring refuses."""
    with pytest.raises(DeclarationError) as caught:
        declare()
    return caught.value.lines


@tool(
    description="Read current refund policy.",
    input=schema.object({"region": schema.string()}),
    output=schema.object({"region": schema.string(), "refundWindowDays": schema.integer()}),
    effect="read",
)
def lookup_policy(region: str) -> dict[str, Any]:
    return {"region": region, "refundWindowDays": 14}


def plain(a: int, b: str = "x", *, c: bool = False) -> str:
    """Says what it
    got.

    And more."""
    return f"{a}{b}{c}"


def with_context(a: int, ctx: Context) -> None:
    """Watches."""


def yields(a: int) -> Iterator[int]:
    """Yields."""
    yield a


async def yields_late(a: int) -> AsyncIterator[int]:
    """Yields."""
    yield a


def test_a_declared_tool_is_still_the_function() -> None:
    """Calling it runs the plain function; its names and docstring are the function's."""
    assert lookup_policy("eu") == {"region": "eu", "refundWindowDays": 14}
    assert (lookup_policy.__name__, lookup_policy.__qualname__, lookup_policy.__module__) == ("lookup_policy", "lookup_policy", __name__)
    assert repr(lookup_policy) == "<tool lookup_policy>"


def test_the_declaration_has_exactly_the_fields() -> None:
    """All fields are there, in their order, with the defaults that open nothing."""
    assert list(lookup_policy.declaration) == list(rules.FIELDS)
    assert lookup_policy.declaration == {
        "name": "lookup_policy",
        "description": "Read current refund policy.",
        "title": None,
        "snippet": None,
        "guidelines": [],
        "input": {"type": "object", "properties": {"region": {"type": "string"}}, "additionalProperties": False, "required": ["region"]},
        "output": {
            "type": "object",
            "properties": {"region": {"type": "string"}, "refundWindowDays": {"type": "integer"}},
            "additionalProperties": False,
            "required": ["region", "refundWindowDays"],
        },
        "partial": None,
        "effect": "read",
        "timeout_ms": 30_000,
        "result": {"policy": "auto"},
        "nested_tools": [],
        "allow_repeat": False,
        "dangerous": False,
        "read_only": True,
        "cacheable": False,
        "open_world": False,
        "meta": {},
        "includes": [],
        "data": [],
        "layers": [],
        "network": False,
        "credentials": [],
        "environment": [],
        "worker": None,
        "limits": {},
        "streams": False,
        "context": None,
        "module": __name__,
        "qualname": "lookup_policy",
    }


def test_schemas_and_description_are_derived() -> None:
    """The first paragraph of the docstring on one line, parameters with defaults optional, the return value's hint."""
    made = tool(effect="write")(plain).declaration
    assert {key: made[key] for key in ("description", "input", "output", "read_only")} == {
        "description": "Says what it got.",
        "input": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "string", "default": "x"}, "c": {"type": "boolean", "default": False}},
            "additionalProperties": False,
            "required": ["a"],
        },
        "output": {"type": "string"},
        "read_only": False,
    }


def test_the_context_is_named_and_not_in_the_input() -> None:
    """A parameter annotated Context is the host's to give."""
    made = tool(effect="read")(with_context).declaration
    assert (made["context"], list(made["input"]["properties"])) == ("ctx", ["a"])


@pytest.mark.parametrize("function", [yields, yields_late])
def test_a_generator_streams(function: Callable[..., Any]) -> None:
    """What it yields is the partial schema, its end is null."""
    made = tool(effect="read")(function).declaration
    assert (made["streams"], made["partial"], made["output"]) == (True, {"type": "integer"}, {"type": "null"})


def nested_function() -> Callable[..., Any]:
    """A function that no module holds."""

    def inner(a: int) -> int:
        """Inner."""
        return a

    return inner


def closure(secret: str) -> Callable[..., Any]:
    """A function that holds a value of its maker."""

    def inner(a: int) -> str:
        """Inner."""
        return secret

    return inner


def wrapped() -> Callable[..., Any]:
    """A function behind another decorator."""

    @functools.wraps(plain)
    def inner(a: int) -> str:
        return ""

    return inner


class Holder:
    """Has a method."""

    def method(self, a: int) -> int:
        """Method."""
        return a


def positional(a: int, /) -> None:
    """P."""


def many(*a: int) -> None:
    """M."""


def anything(**a: int) -> None:
    """A."""


anonymous = lambda a: a  # noqa: E731  what it refuses is a lambda with a name


@pytest.mark.parametrize(
    ("function", "line"),
    [
        (anonymous, "tool <lambda>: is a lambda, which has no name to find it by: declare a function at the top of a module"),
        (nested_function(), "tool inner: is nested in another function: declare a function at the top of a module"),
        (
            closure("s"),
            'tool inner: is a closure over "secret", which cannot be carried into a worker: declare a function at the top of a module',
        ),
        (
            wrapped(),
            "tool plain: is the wrapper of another decorator: put @tool nearest to the def, and call what the wrapper did from inside",
        ),
        (Holder.method, "tool method: is a method of a class: declare a function at the top of a module"),
        (
            Holder().method,
            "tool method: is a method and no function: declare a function at the top of a module, with @tool nearest to the def",
        ),
        (
            functools.partial(plain, 1),
            "tool ?: is a partial and no function: declare a function at the top of a module, with @tool nearest to the def",
        ),
        (Holder, "tool Holder: is a type and no function: declare a function at the top of a module, with @tool nearest to the def"),
        (
            lookup_policy,
            "tool lookup_policy: is a Tool and no function: declare a function at the top of a module, with @tool nearest to the def",
        ),
        (positional, "tool positional: has positional-only parameters, but arguments come by name: remove the / from its parameters"),
        (many, "tool many: has *args, but arguments come by name: declare each parameter, or one list"),
        (anything, "tool anything: has **kwargs, so that a misspelt argument would pass: declare each parameter, or one dict"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_a_worker_could_not_find_or_call_refuses(function: Any, line: str) -> None:
    """Each kind of function that is not reachable by module and name is named."""
    assert refusal(lambda: tool(effect="read", description="d")(function)) == (line,)


def test_effect_has_no_default() -> None:
    """Left out, misspelt, or the decorator without parentheses: all say so."""
    line = 'tool plain: effect: has no default: must be one of "read", "write", "idempotent", "external"'
    assert refusal(lambda: tool()(plain)) == (line,)
    assert refusal(lambda: tool(effect="reed")(plain)) == (line,)
    assert refusal(lambda: tool(plain)) == ("tool plain: write @tool(effect=..., ...) with keywords: effect has no default",)


@pytest.mark.parametrize(
    ("keys", "required", "lines"),
    [
        (
            ["a", "b", "d"],
            ["a"],
            (
                'tool plain: input: the key "d" has no parameter: the function takes "a", "b", "c"',
                'tool plain: input: the parameter "c" has no key: declare it, annotate it with Context, or remove it',
            ),
        ),
        (
            ["a", "b", "c"],
            ["b"],
            ('tool plain: input: the key "a" is optional, but its parameter has no default: give it one, or require the key',),
        ),
    ],
)
def test_the_inputs_keys_are_the_parameters(keys: list[str], required: list[str], lines: tuple[str, ...]) -> None:
    """A key without a parameter, a parameter without a key, and an optional key that would miss its argument."""
    given = schema.object({key: {} for key in keys}, required)
    assert refusal(lambda: tool(effect="read", input=given)(plain)) == lines


def test_the_context_is_no_key() -> None:
    """No caller can pass what only the host gives."""
    given = schema.object({"a": {}, "ctx": {}})
    assert refusal(lambda: tool(effect="read", input=given)(with_context)) == (
        'tool with_context: input: "ctx" is the context, which no caller gives: leave it out of the input',
    )


def test_arguments_are_an_object() -> None:
    """An input of another type refuses."""
    assert refusal(lambda: tool(effect="read", input={"type": "array"})(plain)) == (
        "tool plain: input: arguments are one object: begin with type: object",
    )


def test_a_read_holds_only_reads() -> None:
    """A nested tool given as such is looked at: its effect, and that it nests nothing itself."""
    writes: Tool[..., Any] = tool(effect="write", name="writes")(plain)
    composite: Tool[..., Any] = tool(effect="write", name="composite", nested_tools=[writes])(plain)
    assert composite.declaration["nested_tools"] == ["writes"]
    assert refusal(lambda: tool(effect="read", nested_tools=[writes])(plain)) == (
        'tool plain: nested_tools: "writes" has the effect write, but a read holds only reads: change the effect',
    )
    assert refusal(lambda: tool(effect="write", nested_tools=[composite])(plain)) == (
        'tool plain: nested_tools: "composite" has nested tools itself: name those directly',
    )
    assert tool(effect="read", nested_tools=[lookup_policy, "other"])(plain).declaration["nested_tools"] == ["lookup_policy", "other"]


def test_a_description_is_required() -> None:
    """Neither description nor docstring refuses."""
    assert refusal(lambda: tool(effect="read")(wordless)) == (
        "tool wordless: description: say what the tool does and when to call it, in description= or in a docstring",
    )


def wordless(a: int) -> None:
    pass


def test_a_dangerous_read_is_not_read_only_by_itself() -> None:
    """The inference is the narrower one; saying so is allowed."""
    assert tool(effect="read", dangerous=True)(plain).declaration["read_only"] is False
    assert tool(effect="read", dangerous=True, read_only=True)(plain).declaration["read_only"] is True


def test_artifact_has_the_contracts_defaults() -> None:
    """Pages, 1200 tokens inline, exact recovery."""
    made = tool(effect="read", result=artifact())(plain).declaration["result"]
    assert made == {"policy": "artifact", "strategy": "page", "max_inline_tokens": 1200, "recovery": "exact_ccr"}


def test_the_public_names_are_lazy_and_closed() -> None:
    """The package root gives the names of its list, and no other."""
    assert (engine.tool, engine.schema, engine.artifact, engine.Context, engine.Tool) == (tool, schema, artifact, Context, Tool)
    assert (engine.Status.OK, engine.Outcome.__name__) == ("ok", "Outcome")
    assert dir(engine) == ["Context", "Engine", "Outcome", "Status", "Tool", "artifact", "http", "schema", "tool"]
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = engine.nothing


def test_defaults_are_found_by_name() -> None:
    """Positional and keyword-only defaults alike."""
    assert signature.parameters(plain) == {"a": False, "b": True, "c": True}
    assert (signature.default_of(plain, "b"), signature.default_of(plain, "c")) == ("x", False)
