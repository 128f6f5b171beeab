"""The servers that tests of egress share: one by TLS and one plain that a policy allows, and one that none does."""

from collections.abc import Iterator

import pytest

from tests.network import scoped
from tests.network.servers import Authority, Server, serving


@pytest.fixture(scope="module")
def authority() -> Authority:
    """Whom the workers trust."""
    return Authority()


@pytest.fixture(scope="module")
def api(authority: Authority) -> Iterator[Server]:
    """Allowed, by TLS, as ``scoped.API``; it listens on more of loopback than the one address that is allowed."""
    with serving(authority.serving(scoped.API), addresses=(scoped.LOOPBACK, "127.0.0.2")) as made:
        yield made


@pytest.fixture(scope="module")
def web() -> Iterator[Server]:
    """Allowed, plain, as ``scoped.WEB``."""
    with serving() as made:
        yield made


@pytest.fixture(scope="module")
def outsider() -> Iterator[Server]:
    """Allowed by nobody, plain."""
    with serving() as made:
        yield made
