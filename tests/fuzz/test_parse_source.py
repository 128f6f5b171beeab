"""Invariant: for every input the parser answers with facts of a fixed shape, which the host's check takes or refuses by code.

Nothing else comes out: no other exception, no other shape.
"""

from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from engine.errors import ToolError
from engine.staging import facts
from enter import parse

CODES = {"refused.source_syntax", "refused.source_limits", "refused.source_literals"}
PIECES = [
    "import a",
    "from . import b",
    "from ..c import *",
    "\n",
    "    ",
    "def f():",
    "try:",
    "except ImportError:",
    "if TYPE_CHECKING:",
    "else:",
    "import importlib as i",
    "i.import_module",
    "(x)",
    "('.a', __package__)",
    "('a.b')",
    "__import__",
    "=",
    "@tool(",
    "includes=",
    "['a']",
    ")",
    "from engine import tool",
    "data=",
    "layers=[x]",
    "__all__",
    "+= ['q']",
    "lambda: ",
    "(",
    "f'{",
    "}'",
    "\\",
    "#",
    "coding: latin-1",
    ";",
    "\x0c",
    "with suppress(ImportError):",
    "match x:",
    "case _:",
    "class C:",
    "await ",
    "async ",
    "pass",
    "\t",
    "…",
    "\u202e",
    "getattr(i, ",
    "*",
    "**",
]  # fmt: skip - a list of words reads best as one block


def checked(answer: Any) -> str:
    """The line of the refusal, or nothing when the answer is taken."""
    try:
        assert isinstance(facts.check(answer, "pkg/__init__.py"), facts.Facts)
    except ToolError as error:
        refused = error
    else:
        return ""
    assert refused.code in CODES
    return refused.lines[0]


def answered(source: bytes) -> None:
    line = checked(parse.facts(source, "pkg/__init__.py"))
    assert "no parser gives" not in line


@settings(max_examples=400, deadline=None)
@given(st.binary(max_size=2000))
@example(b"\xef\xbb\xbf# coding: latin-1")
@example(b"# coding: utf-8\n\xff")
@example(b"\xff\xfe\x00")
def test_any_bytes_have_an_answer(source: bytes) -> None:
    """Random bytes are parsed or refused."""
    answered(source)


@settings(max_examples=600, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=60))
def test_any_words_have_an_answer(words: list[str]) -> None:
    """Random sequences of the words that matter to staging are parsed or refused."""
    answered("".join(words).encode())


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["(", "[", "-", "not ", "a.", "a+", "lambda:", "f'{", "a if b else ", "**", "x[", "await "]), st.integers(1, 200_000)
)
def test_any_depth_has_an_answer(piece: str, count: int) -> None:
    """Repeated openings of any depth are parsed or refused, and the process lives."""
    answered((piece * count).encode())


@settings(max_examples=300, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-2, 10) | st.text(max_size=8),
        lambda inner: (
            st.lists(inner, max_size=8)
            | st.dictionaries(
                st.sampled_from(["ok", "imports", "dynamic", "tools", "problems", "line", "text", "limit"]), inner, max_size=6
            )
        ),
        max_leaves=30,
    )
)
def test_any_answer_is_checked(answer: object) -> None:
    """An answer that a taken-over parser might give is refused by code or is of the right shape."""
    checked(answer)
