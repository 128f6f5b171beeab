"""Exceptions of the engine, and the one function that makes foreign text safe to print.

EngineError
├── RequestError     the caller asked for something that cannot be done as asked; the engine is unharmed
├── PolicyError      the operator's policy is wrong, or does not grant what is needed
├── ToolError        the tool's author: source, declaration, import or answer
│   └── DeclarationError   raised where a tool is declared, names the tool, the path in the schema and the remedy
├── HostError        this host cannot enforce what is required, or a worker could not be started here
└── EngineBug        our fault: please report

Its job: say what went wrong, whose fault it is and what to do, in one honest line each.
Not its job: outcomes of tool code (those are values, see ``outcome.py``).
Laws:
1. Standard library only, and nothing of the engine: the guest carries this file (tests/house/test_guest_tree.py).
2. No escape, control, bidi or line-separator character survives ``one_line`` (tests/unit/test_errors.py).
"""

import unicodedata

_LINE_LIMIT = 1000  # characters; long enough for a path and an enum, short enough for a log line
_DROPPED = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})  # Unicode general categories, UAX #44


def one_line(text: object, limit: int = _LINE_LIMIT) -> str:
    """One printable line of at most ``limit`` characters; what could drive a terminal or forge a log line becomes a space."""
    # security: without the slice first, a 1 GB message costs 1 GB of work (error bombs)
    raw = (text if isinstance(text, str) else str(text))[: limit * 4]
    raw = _without_escapes(raw)
    kept = "".join(" " if unicodedata.category(c) in _DROPPED else c for c in raw)
    line = " ".join(kept.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def _without_escapes(text: str) -> str:
    """The text without ECMA-48 control sequences, so that no half of one stays readable."""
    if "\x1b" not in text and "\x9b" not in text:
        return text
    import re  # here, because importing tools must not cost it

    return re.sub(r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b.?", " ", text, flags=re.S)


class EngineError(Exception):
    """Base of all: a stable ``code`` (a row of ``outcome.REASONS``), sanitised ``lines``, one problem each."""

    def __init__(self, code: str, *lines: str) -> None:
        self.code = code
        self.lines: tuple[str, ...] = tuple(one_line(line) for line in lines) or (code,)
        super().__init__(f"{code}: " + "; ".join(self.lines))


class RequestError(EngineError):
    """The caller's fault: unknown tool, arguments against the schema, a limit that may only be tightened."""


class PolicyError(EngineError):
    """The operator's fault, or the operator's decision: a malformed policy, or something not granted."""


class ToolError(EngineError):
    """The author's fault: source that cannot be staged, a declaration that breaks a rule, an answer that does not hold."""


class DeclarationError(ToolError):
    """A declaration breaks a rule; raised where the tool is declared, so that it is found before anything runs."""

    def __init__(self, *lines: str) -> None:
        super().__init__("refused.declaration", *lines)


class HostError(EngineError):
    """The host's fault: a protection is missing here, or a worker failed to start (the step is named)."""


class EngineBug(EngineError):
    """Our fault: a law of the engine was broken. All bets on this call are off; please report."""
