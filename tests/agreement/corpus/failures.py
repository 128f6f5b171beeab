"""Tools that fail, each in its own way."""

import decimal
import json
import sys
from typing import Any

from engine import tool


class OddError(Exception):
    """An exception of the tool's own."""


@tool(effect="read")
def raises(text: str) -> None:
    """Raise its own exception, from another one."""
    try:
        raise KeyError(text)
    except KeyError as error:
        raise OddError(f"odd: {text}") from error


@tool(effect="read")
def missing(key: str) -> Any:
    """Look for what is not there."""
    return {"a": 1}[key]


@tool(effect="read")
def divided(by: int) -> float:
    """Divide."""
    return 1 / by


@tool(effect="read")
def unparsed(text: str) -> Any:
    """Parse what is no JSON."""
    return json.loads(text)


@tool(effect="read")
def undecoded() -> str:
    """Decode what is no UTF-8."""
    return b"ab\xff".decode()


@tool(effect="read")
def unencoded() -> str:
    """Encode what ASCII does not have."""
    return "é".encode("ascii").hex()


@tool(effect="read")
def left(code: str) -> None:
    """Leave the interpreter."""
    print("going")
    sys.exit(code)


@tool(effect="read")
def raises_several(many: int) -> None:
    """Raise several at once."""
    raise ExceptionGroup("several", [ValueError(str(number)) for number in range(many)])


@tool(effect="read")
def endless() -> Any:
    """Recurse without end."""

    def deeper(depth: int) -> int:
        return deeper(depth + 1) + 1

    return deeper(0)


@tool(effect="read")
def no_data() -> Any:
    """Answer with what is no data."""
    return {"value": object}


@tool(effect="read")
def not_finite() -> float:
    """Answer with a float that is none."""
    return float("inf") - float("inf")


@tool(effect="read")
def too_large() -> Any:
    """Ask for more memory than there is."""
    return len(bytes(1 << 45)) if sys.maxsize > 1 << 32 else len(bytes((1 << 31) - 100))


@tool(effect="read")
def inexact() -> str:
    """Divide decimals by nothing."""
    return str(decimal.Decimal(1) / decimal.Decimal(0))


@tool(effect="read")
def asserted(value: int) -> int:
    """Assert what does not hold."""
    print("before")
    assert value > 100, f"{value} is too small"
    return value


@tool(effect="read")
def half_way() -> Any:
    """Yield, then fail."""
    yield 1
    raise OddError("half way")


@tool(effect="read")
async def in_task() -> None:
    """Fail while others wait."""
    raise OddError("in a task")
