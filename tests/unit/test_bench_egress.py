"""Both ends of the connections that the bench measures, and what lies between: the same code everywhere, no wrong answer counts."""

import contextlib
import hashlib
import importlib.util
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bench import bench_egress, connections, payload
from bench.bench_egress import CASE
from bench.measurement import Absent, Run
from engine.egress.hello import Reader, judged
from engine.places import data_dir
from engine.policy.load import load_policy
from engine.policy.network import Place, Transport

PLACE = Place(host=connections.HOST, port=8443)


@pytest.fixture
def port() -> Iterator[int]:
    """Of a server in a process of its own."""
    with connections.serving() as listening:
        yield listening


@contextlib.contextmanager
def _answering(change: Callable[[bytes], bytes]) -> Iterator[int]:
    """A server for one connection, in a thread, that answers with something else than the digest; its port."""

    def answer() -> None:
        with listener.accept()[0] as end:
            end.sendall(change(hashlib.sha256(connections.asked(end)).digest()))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(60)
        thread = threading.Thread(target=answer)
        thread.start()
        yield listener.getsockname()[1]
        thread.join()


def test_the_hello_is_one_that_the_relay_lets_through() -> None:
    """It is one whole record that names the host, and no other host's."""
    said = connections.hello()
    found = Reader().take(said)
    assert found is not None
    assert judged(found, PLACE) is None
    assert judged(found, Place(host="other.example.test", port=8443)) == "sni_mismatch"
    assert len(said) == 5 + int.from_bytes(said[3:5], "big")


def test_the_text_is_the_client(port: int) -> None:
    """Alone with its imports, as the tool runs it, it is answered by the same server."""
    space: dict[str, Any] = {}
    exec(f"{connections.IMPORTS}\n{connections.TEXT}", space)
    for client in (space["connect"], connections.connect):
        assert [taken > 0 for taken in client("127.0.0.1", port, 2)] == [True, True]
    for client in (space["download"], connections.download):
        assert client("127.0.0.1", port, 3_000_000) > 0


def test_the_tools_are_granted_the_place_they_connect_to() -> None:
    """Their sources compile; the small tool asks for it as well, and says nothing else than the usual one."""
    made, small = bench_egress.source(8443), bench_egress.scoped(8443)
    for text in (made, small):
        compile(text, "tools.py", "exec")
    asked = f'network=["{PLACE}"]'
    assert (made.count(asked), small.count(asked)) == (2, 1)
    assert {word for word in ("PLACE", "PORT") if word in made} == set()
    assert small.replace(f"\n    {asked},", "") == payload.LOOKUP


def test_another_process_connects_as_well(port: int) -> None:
    """It is asked time after time."""
    with connections.client(port) as plain:
        assert [len(plain.connect(count)) for count in (1, 3)] == [1, 3]


@pytest.mark.parametrize("change", [lambda digest: digest[::-1], lambda digest: digest[:-1]], ids=["another", "a part"])
def test_a_wrong_answer_is_no_time(change: Callable[[bytes], bytes]) -> None:
    """It raises in whoever connected; the right one does not."""
    with _answering(change) as listening, pytest.raises(ValueError, match="the answer is not about this request"):
        connections.connect("127.0.0.1", listening, 1)
    with _answering(bytes) as listening:
        assert len(connections.connect("127.0.0.1", listening, 1)) == 1


def test_a_download_that_ends_early_is_no_time() -> None:
    """The answer alone is not the bytes that were asked for."""
    with _answering(bytes) as listening, pytest.raises(ValueError, match="the answer is not what was asked for"):
        connections.download("127.0.0.1", listening, 1)


def test_who_breaks_off_leaves_the_server_to_the_next(port: int) -> None:
    """In the middle of a hello, and before one."""
    for said in (connections.hello()[:40], b""):
        with socket.create_connection(("127.0.0.1", port), timeout=20) as end:
            end.sendall(said)
    assert len(connections.connect("127.0.0.1", port, 1)) == 1


def test_the_policy_grants_that_place_alone(tmp_path: Path) -> None:
    """By the door for TLS, to the server on loopback, with bounds that do not hold it back."""
    bench_egress.engine(Run(quick=True, folder=tmp_path), PLACE.port)
    profile = load_policy(tmp_path / "policy" / "own.toml", data_dir("policies")).network
    (rule,) = profile.rules
    assert (rule.place, rule.transport, rule.private) == (PLACE, Transport.TLS, ("127.0.0.1/32",))
    downloads = 1 + CASE.full
    assert profile.bounds.in_bytes > downloads * bench_egress.BYTES


def test_an_engine_without_scopes_is_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a commit of before would be, in one line."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(Absent, match="this engine has no scoped network"):
        bench_egress.engine(Run(quick=True, folder=tmp_path), PLACE.port)
