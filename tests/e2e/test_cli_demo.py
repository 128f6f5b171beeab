"""``stockade demo``: the project answers, each attempt is real, and each is stopped and judged from outside."""

import os
from pathlib import Path
from typing import Any

import pytest

from engine.errors import EngineError
from engine.faces import cli, demo
from engine.faces.canary import canary
from engine.faces.printing import Answer
from engine.outcome import Outcome, Status
from engine.places import data_dir
from tests import kit
from tests.e2e.commands import stockade

pytestmark = pytest.mark.slow
MISCHIEF = (data_dir("worker_images") / "demo" / "mischief.py").read_text(encoding="utf-8")
SECRET = "STOCKADE_DEMO_SECRET"


def test_every_attempt_is_stopped_and_every_tool_answers(tmp_path: Path) -> None:
    """Exit code 0, four answers, eleven attempts, limits with their means, and the secret nowhere."""
    ended = stockade(tmp_path, "demo", "--json")
    value = ended.document["value"]
    assert ended.code == 0, ended.document["lines"]
    assert [answer["value"] for answer in value["answers"]][1:3] == [
        {"refund_cents": 12255, "fee_cents": 645, "reason": "within 30 days in US"},
        {"EU": 0, "UK": 0, "US": 9500},
    ]
    assert [(one["attempt"], one["stopped"]) for one in value["attempts"]] == [(name, True) for name in demo.ATTEMPTS]
    assert (value["enforced"]["seccomp"], value["limits"]["cpu"]["means"]) == (1, "RLIMIT_CPU")


def test_it_works_without_a_home(tmp_path: Path) -> None:
    """No folder for the state can be made: a temporary one serves, and the last line says so."""
    ended = stockade(tmp_path, "demo", variables={"HOME": "/proc/none", "XDG_STATE_HOME": "/proc/none"})
    assert (ended.code, ended.out.splitlines()[-1].endswith("(ephemeral journal)")) == (0, True)


@pytest.mark.parametrize(
    "attempt",
    [
        "read a file outside",
        "write a file outside",
        "reach a listener on loopback",
        "fork",
        "start a program",
        "find a secret in the environment",
        "signal the engine",
    ],
)
def test_the_control_gets_through_without_a_wall(tmp_path: Path, attempt: str) -> None:
    """The same attempt in a plain process does what it says, and the look from outside sees it."""
    with canary() as outside:
        target = {"file": str(outside.file), "folder": str(outside.folder), "port": outside.port, "engine_pid": os.getpid()}
        variables = {**os.environ, SECRET: "worth stealing"}
        bare = kit.bare(tmp_path, MISCHIEF, "misbehave", {"attempt": attempt, "target": target}, env=variables)
        assert bare.value["got_through"] is True
        done = Outcome(status=Status.OK, reason="ok.done", value=bare.value)
        assert demo._judged(attempt, done, outside.harm(), (outside.token, "worth stealing"), 1.0).stopped is False


HARMLESS = {"got_through": False, "what": "refused"}


@pytest.mark.parametrize(
    ("attempt", "reason", "value", "harm", "stopped"),
    [
        ("fork", "ok.done", HARMLESS, [], True),
        ("fork", "ok.done", {"got_through": True, "what": "x"}, [], False),
        ("fork", "ok.done", HARMLESS, ["the listener was reached 1 times"], False),
        ("fork", "ok.done", {"got_through": False, "what": "the-token"}, [], False),
        ("fork", "crashed.exit", None, [], False),
        ("never return", "limit_exceeded.wall", None, [], True),
        ("never return", "limit_exceeded.start", None, [], False),
        ("never return", "ok.done", HARMLESS, [], False),
    ],
)
def test_the_judge_believes_effects_first(attempt: str, reason: str, value: Any, harm: list[str], stopped: bool) -> None:
    """What the tool says counts only when nothing outside and nothing in its answer shows the contrary."""
    outcome = Outcome(status=Status(reason.split(".")[0]), reason=reason, value=value)
    assert demo._judged(attempt, outcome, harm, ("the-token",), 1.0).stopped is stopped


def test_one_that_gets_through_is_exit_70() -> None:
    """The show fails loudly, and names what got through."""
    receipt = {"limits": {}, "means": {}, "enforced": {}, "id": "1", "journal": "durable"}
    answers = [{"tool": "lookup_policy", "reason": "ok.done", "value": 1, "ms": 1.0, "lines": []}]
    tried = [demo.Attempted(attempt="fork", stopped=False, what="a second process ran", ms=1.0)]
    answer = demo._told(1.0, answers, tried, receipt)
    assert (answer.exit_code, answer.lines) == (70, ("this got through: fork",))


def test_the_canary_sees_what_is_done_to_it() -> None:
    """A changed file, a new file and a connection are each told; before that there is nothing to tell."""
    with canary() as outside:
        assert outside.harm() == []
        outside.file.write_text("changed")
        (outside.folder / "new").write_text("")
        assert outside.harm() == ["the file outside was changed", "files were made outside: 1"]
    assert not outside.folder.exists()


def test_a_host_without_loopback_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """The listener cannot be made: a reason of the table, not a trace."""

    def refused(*_: object, **__: object) -> None:
        raise OSError(99, "Cannot assign requested address")

    monkeypatch.setattr("engine.faces.canary.socket.create_server", refused)
    with pytest.raises(EngineError) as raised, canary():
        pass
    assert raised.value.code == "refused.start_failed"


def test_the_secret_is_in_the_engines_own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the attempt looks for is there to be found: the command sets it for itself before it starts anything."""
    seen: list[tuple[str | None, str]] = []

    async def show(_: object, __: object, secret: str) -> Answer:
        seen.append((os.environ.get(SECRET), secret))
        return Answer()

    monkeypatch.setattr("engine.faces.demo.demo", show)
    monkeypatch.setenv(SECRET, "before")
    with pytest.raises(SystemExit):
        cli.main(["demo"])
    assert [(found == secret, len(secret)) for found, secret in seen] == [(True, 32)]
