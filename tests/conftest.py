"""What all tests share: where the project lies, and an engine that must leave nothing behind."""

import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from engine.host import Engine
from tests import kit


def pytest_configure() -> None:
    """A shell ignores the interrupt for what it runs in the background, and the programs of tests would inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def project() -> Path:
    """The root of this checkout."""
    return Path(__file__).resolve().parents[1]


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[Engine]:
    """An engine with a state folder of its own; the test fails when anything of it is left."""
    async with kit.clean_engine(tmp_path / "state") as made:
        yield made
