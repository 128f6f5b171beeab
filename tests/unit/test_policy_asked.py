"""What a tool asks for, out of its declaration."""

from types import SimpleNamespace
from typing import Any

import pytest

from engine.errors import EngineError
from engine.policy.model import LIMIT_KEYS
from engine.policy.network import Place
from engine.policy.resolve import Asked


def declared(**fields: Any) -> Any:
    """A declaration as the checker hands it over."""
    plain = {
        "name": "look",
        "effect": "read",
        "timeout_ms": 1000,
        "dangerous": False,
        "read_only": True,
        "layers": ("numbers",),
        "credentials": ("openai",),
        "environment": ("MYAPP_REGION",),
        "network": False,
        "limits": {"memory": "64 MiB"},
    }
    return SimpleNamespace(**{**plain, **fields})


def test_asked_reads_a_declaration() -> None:
    """Every right of a declaration arrives in what is asked."""
    assert Asked.of(declared()) == Asked(
        name="look",
        effect="read",
        timeout_ms=1000,
        dangerous=False,
        read_only=True,
        layers=frozenset({"numbers"}),
        credentials=frozenset({"openai"}),
        environment=frozenset({"MYAPP_REGION"}),
        limits={"memory_bytes": 64 << 20},
    )


@pytest.mark.parametrize(
    ("network", "expected"),
    [
        (False, (frozenset(), False)),
        (True, (frozenset(), True)),
        ((), (frozenset(), False)),
        (["a.b:1", "A.B.:1"], (frozenset({Place(host="a.b", port=1)}), False)),
    ],
)
def test_asked_reads_the_network_exactly(network: Any, expected: tuple[frozenset[Place], bool]) -> None:
    """False and an empty list ask for none, true for all, a list for its hosts."""
    asked = Asked.of(declared(network=network))
    assert (asked.network, asked.network_unbounded) == expected


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"network": None}, "network: want false, true or a list of 'host:port'"),
        ({"network": ""}, "network: want false, true or a list of 'host:port'"),
        ({"network": 1}, "network: want false, true or a list of 'host:port'"),
        ({"network": ["*.hunter2.com:443"]}, "network: wildcards are for profiles, and there only with their loosening: name each host"),
        ({"network": ["hunter2.com"]}, "network: want 'host.name:port' with a port from 1 to 65535"),
        ({"network": ["a.b:1", None]}, "network: want 'host.name:port' with a port from 1 to 65535"),
        ({"limits": {"memory": 0}}, "limits.memory: limit memory_bytes must be a whole number from 1 to 2^53, not 0"),
        ({"limits": {"memry": 1}}, f"limits.memry: unknown limit; allowed: {', '.join(LIMIT_KEYS)}"),
        ({"timeout_ms": 0}, "timeout_ms: want a whole number of milliseconds from 1"),
        ({"timeout_ms": True}, "timeout_ms: want a whole number of milliseconds from 1"),
        ({"effect": "none"}, "effect: want one of external, idempotent, read, write"),
    ],
)
def test_a_declaration_that_asks_in_no_known_way_refuses(fields: dict[str, Any], line: str) -> None:
    """Nothing malformed comes to mean "no bound"."""
    with pytest.raises(EngineError) as caught:
        Asked.of(declared(**fields))
    assert (caught.value.code, caught.value.lines) == ("refused.declaration", (line,))


def test_a_flag_that_is_no_flag_is_read_the_safe_way() -> None:
    """Only a real false is harmless, only a real true is read-only."""
    asked = Asked.of(declared(dangerous=0, read_only=1))
    assert (asked.dangerous, asked.read_only) == (True, False)
