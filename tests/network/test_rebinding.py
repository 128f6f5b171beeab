"""What a name server says may change with every question: each connection goes to addresses that were looked at, or nowhere.

Every case runs twice: with a resolver of the test's own that asks the name server, and with the host's, in namespaces of the test's own.
"""

import json
import subprocess
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from engine.host import Engine
from tests import kit
from tests.network import rebound, responder
from tests.network.rebound import CASES, Came
from tests.network.servers import Authority, Server

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def authority() -> Authority:
    """Whom the workers trust."""
    return Authority()


@pytest.fixture(scope="module")
def server(authority: Authority) -> Iterator[Server]:
    """On two addresses, of which one is allowed."""
    with rebound.server_of(authority) as made:
        yield made


@pytest.fixture(scope="module")
def names() -> Iterator[responder.Responder]:
    """The name server."""
    with responder.responding(responder.in_turn(())) as made:
        yield made


@pytest.fixture
async def loaded(tmp_path: Path, authority: Authority, server: Server, names: responder.Responder) -> AsyncIterator[Engine]:
    """An engine that asks the name server for every connection."""
    asking = responder.Asking(names.address)
    async with rebound.loaded(tmp_path, server, authority.write(tmp_path), resolver=asking) as engine:
        yield engine


async def test_each_connection_goes_to_what_was_looked_at(loaded: Engine, server: Server, names: responder.Responder) -> None:
    """Case by case: what the tool had, where the server was reached, what the receipt counts, how often the name server was asked."""
    found = {name: await rebound.came(loaded, server, names, case) for name, case in CASES.items()}
    assert found == {name: Came.wanted(case) for name, case in CASES.items()}


def test_the_second_address_can_be_reached(tmp_path: Path, server: Server) -> None:
    """The control: a plain process connects to the address that no rule names, and the server has its word."""
    code = "import socket\nfrom engine import tool\n@tool(effect='read', description='d')\ndef reach(port: int) -> int:\n"
    code += f"    with socket.create_connection(('{rebound.SECOND}', port), 10) as made:\n        return made.send(b'canary')\n"
    server.forget()
    assert kit.bare(tmp_path, code, "reach", {"port": server.port}).value == 6
    server.wait(lambda server: [one.at for one in server.connections if one.reached] == [rebound.SECOND])


@pytest.fixture(scope="module")
def for_real(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    """What came of each case with the host's own resolver."""
    if (problem := rebound.refusal()) is not None:
        pytest.skip(f"unproven: this host makes no mount and network namespace for the test: {problem}")
    folder = tmp_path_factory.mktemp("rebound")
    done = subprocess.run(rebound.in_namespaces(folder), capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr.decode("utf-8", "replace")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("name", CASES)
def test_the_hosts_resolver_is_believed_no_more(for_real: Mapping[str, Any], name: str) -> None:
    """The same cases, by way of the C library, whose one answer per connection is looked at and used."""
    case, found = CASES[name], for_real[name]
    wanted = Came.wanted(case)
    assert (found["values"], found["at"], found["denied"]) == (list(wanted.values), list(wanted.at), wanted.denied)
    # a C library asks again where there was no answer
    assert found["asked"] == wanted.asked or not any(case.rounds)
