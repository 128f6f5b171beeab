"""Secrets in the source of a tool: which lines are named."""

import secrets

from engine.policy.shapes import Starts, ValueShape, ValueShapes
from engine.results.redact import Watch
from engine.results.sources import declared_problems, source_problems

CANARY = secrets.token_hex(12)
SHAPES = ValueShapes(
    shapes=(
        ValueShape(id="sure", prefixes=("sure-",), starts=Starts.WORD, follows="[a-f]{20,40}", certain=True),
        ValueShape(id="likely", prefixes=("likely-",), starts=Starts.WORD, follows="[a-f]{20,40}", certain=False),
    )
)
WATCH = Watch({"orders": CANARY}, SHAPES)


def test_each_place_is_one_line_without_the_value() -> None:
    """File, line and ID, in the order of files and lines."""
    files = {"b.py": f"one\ntwo = '{CANARY}'\n{CANARY} {CANARY}".encode(), "a/c.txt": b"sure-" + b"abcdef" * 4}
    assert source_problems(files, WATCH, ()) == [
        "a/c.txt:1: holds the secret shape:sure",
        "b.py:2: holds the secret orders",
        "b.py:3: holds the secret orders",
    ]


def test_files_that_the_operator_allowed_are_left_out() -> None:
    """By their exact path, and no other file with them."""
    files = {"fixtures/key.pem": CANARY.encode(), "key.pem": CANARY.encode()}
    assert source_problems(files, WATCH, {"fixtures/key.pem"}) == ["key.pem:1: holds the secret orders"]


def test_what_is_only_likely_a_secret_is_no_problem() -> None:
    """Examples in documentation look the same; nor is ordinary source one."""
    assert source_problems({"a.py": b"likely-" + b"abcdef" * 4, "b.py": b"print('hello')\n"}, WATCH, ()) == []


def test_a_value_in_a_files_name_is_not_repeated() -> None:
    """The name has a mark, and is a problem by itself."""
    assert source_problems({f"{CANARY}.py": b"x"}, WATCH, ()) == ["the name [redacted:orders].py: holds the secret orders"]


def test_of_very_many_places_the_first_are_named() -> None:
    """A person reads them."""
    lines = source_problems({"a.py": f"{CANARY}\n".encode() * 50}, WATCH, ())
    assert (len(lines), lines[19], lines[20]) == (21, "a.py:20: holds the secret orders", "and more")


def test_what_is_declared_with_a_secret_is_named_by_its_place() -> None:
    """In a name, a description, a default, a key; the tool's name is not repeated, it may be what holds the secret."""
    tools = [{"name": "good", "description": "good"}, {"name": CANARY}, {"a": {"default": [CANARY]}}, {"b": {CANARY[:5]: CANARY[5:]}}]
    assert declared_problems(tools, WATCH) == [
        f"tool {number} of the source: what it declares holds the secret orders" for number in (2, 3, 4)
    ]
    assert declared_problems(tools[:1], WATCH) == []
