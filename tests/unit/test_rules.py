"""What the fields of a declaration may say, asked where a tool is declared."""

from collections.abc import Callable
from typing import Any

import pytest

from engine.authoring.tool import artifact, tool
from engine.errors import DeclarationError


def refusal(declare: Callable[[], object]) -> tuple[str, ...]:
    """The lines with which declaring refuses."""
    with pytest.raises(DeclarationError) as caught:
        declare()
    return caught.value.lines


def plain(a: int, b: str = "x") -> str:
    """Says what it got."""
    return f"{a}{b}"


@pytest.mark.parametrize(
    ("said", "line"),
    [
        ({"name": "9a"}, 'tool 9a: name: "9a" is no tool name: use a letter, then at most 127 letters, digits, _ and -'),
        ({"name": "a\n"}, 'tool a : name: "a " is no tool name: use a letter, then at most 127 letters, digits, _ and -'),
        (
            {"name": "ä"},
            'tool ä: name: "ä" is no tool name: use a letter, then at most 127 letters, digits, _ and -',
        ),
        ({"name": "cave_x"}, "tool cave_x: name: names that begin with cave_ are reserved: choose another"),
        ({"description": " "}, "tool plain: description: must be a text that is not empty"),
        ({"title": "a\u202eb"}, "tool plain: title: has control, bidi or line-separator characters: remove them"),
        ({"guidelines": "abc"}, "tool plain: guidelines: must be a list of texts"),
        ({"timeout_ms": 0}, "tool plain: timeout_ms: must be a whole number of ms from 1 to 86400000"),
        ({"timeout_ms": True}, "tool plain: timeout_ms: must be a whole number of ms from 1 to 86400000"),
        ({"result": "zip"}, 'tool plain: result: must be one of "auto", "inline", "page", "compress", "exact_ccr", or artifact(...)'),
        ({"result": artifact(max_inline_tokens=0)}, "tool plain: result: max_inline_tokens must be a whole number from 1 to 100000"),
        ({"result": artifact(strategy="x")}, 'tool plain: result: an artifact has the strategy "page" and the recovery "exact_ccr"'),
        ({"nested_tools": ["plain"]}, "tool plain: nested_tools: a tool cannot hold itself"),
        ({"nested_tools": ["a", "a"]}, "tool plain: nested_tools: names an entry twice"),
        ({"nested_tools": "abc"}, "tool plain: nested_tools: must be a list of names of tools"),
        (
            {"read_only": True, "effect": "write"},
            "tool plain: read_only: contradicts the effect write: say effect='read', or leave read_only out",
        ),
        (
            {"cacheable": True, "effect": "external"},
            "tool plain: cacheable: contradicts the effect external: an answer may be kept only when calling again changes nothing",
        ),
        ({"dangerous": 1}, "tool plain: dangerous: must be true or false"),
        ({"meta": {"a": b""}}, "tool plain: meta: must be plain JSON data (a bytes is not plain data)"),
        *(
            (
                {"includes": [bad]},
                f'tool plain: includes: "{bad}": must name a module, such as plugins.one, or all of a package, such as plugins.*',
            )
            for bad in ("a..b", "*", "a.*.b", "a*", ".*")
        ),
        (
            {"data": ["../x"]},
            'tool plain: data: "../x": must be a path below the source\'s folder, with / between its parts and without . and ..',
        ),
        ({"layers": ["a/b"]}, 'tool plain: layers: "a/b": must be letters, digits, . _ and - only'),
        ({"layers": {"a"}}, "tool plain: layers: must be a list of names of layers"),
        ({"network": "a:1"}, 'tool plain: network: must be a list of destinations such as "api.example.com:443", or false'),
        (
            {"credentials": ["sk-SECRET value"]},
            "tool plain: credentials: entry 0: must name a capability in lower case, such as anthropic: values never stand here",
        ),
        ({"environment": ["A=1"]}, "tool plain: environment: entry 0: must be the name of an environment variable: letters, digits and _"),
        (
            {"limits": {"memory": 0}},
            'tool plain: limits: "memory" must be a whole number above 0, a size such as "64 MiB" or a time such as "2 s"',
        ),
        ({"partial": {}}, "tool plain: partial: a tool that yields has a schema for what it yields, another tool has none"),
        (
            {"output": {"tpye": "x"}},
            'tool plain: output: unknown keyword "tpye": use one of JSON Schema 2020-12, or put it into description or meta',
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_fields_refuse_with_the_remedy(said: dict[str, Any], line: str) -> None:
    """One line names the tool, the field and what to do."""
    lines = refusal(lambda: tool(**{"effect": "read", **said})(plain))
    assert (len(lines), lines[0].startswith(line)) == (1, True), lines


@pytest.mark.parametrize("place", ["api.example.com:443", "[2001:db8::1]:8443", "localhost:1", "10.0.0.1:65535", "xn--mnchen-3ya.de:443"])
def test_destinations_are_host_and_port(place: str) -> None:
    """Control: letters, digits, inner hyphens, an address, any port."""
    assert tool(effect="read", network=[place])(plain).declaration["network"] == [place]


@pytest.mark.parametrize(
    "place",
    [
        "api.example.com",
        "api.example.com:0",
        "a:65536",
        "a:+1",
        "a:०",
        "A.com:1",
        "a_b:1",
        "-a.com:1",
        "a..b:1",
        "a.*.b:1",
        "*:1",
        "[::g]:1",
        "[::1%eth0]:1",
        "*.example.com:443",
        "a\n:1",
        "ä.de:1",
        "http://a:1",
        ":1",
        "a:01",
    ],
)
def test_what_is_no_destination(place: str) -> None:
    """A name that two parsers could read differently refuses."""
    assert "must be host:port" in refusal(lambda: tool(effect="read", network=[place])(plain))[0]


@pytest.mark.parametrize("amount", [1, 1 << 53, "64 MiB", "2s", "200 ms", "1 min", "5"])
def test_limits_as_a_policy_writes_them(amount: Any) -> None:
    """Control: whole numbers, sizes and times."""
    assert tool(effect="read", limits={"memory": amount})(plain).declaration["limits"] == {"memory": amount}


@pytest.mark.parametrize(
    "amount", [0, -1, True, 1.5, float("nan"), "0", "-1", "1 MB", "1  s", "", "1e3", "٣", None, (1 << 53) + 1], ids=repr
)
def test_what_is_no_limit(amount: Any) -> None:
    """Nothing that could mean "none" or be rounded is an amount."""
    assert 'limits: "memory" must be a whole number above 0' in refusal(lambda: tool(effect="read", limits={"memory": amount})(plain))[0]
