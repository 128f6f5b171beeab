"""What all tests share: where the project lies."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def project() -> Path:
    """The root of this checkout."""
    return Path(__file__).resolve().parents[1]
