"""``stockade doctor``: what holds here by effect, what is missing where it does not, what earlier engines left."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Literal

import pytest

from engine.faces import doctor, leftovers, scoped
from engine.host import Engine
from engine.outcome import Outcome, Status
from engine.policy.protections import PROTECTIONS
from tests import kinds, machine
from tests.e2e.commands import Ended, command, environment, stockade
from tests.kit import PROJECT

pytestmark = pytest.mark.slow


def test_this_host_holds_what_required_needs(tmp_path: Path) -> None:
    """Every protection has its row, each attempt from inside was made and held, and nothing was left."""
    ended = stockade(tmp_path, "doctor", "--json")
    value = ended.document["value"]
    assert ended.code == 0, ended.document["lines"]
    assert [row["name"] for row in value["protections"]] == list(PROTECTIONS)
    assert {row["name"] for row in value["inside"]} > set(doctor.ATTEMPTS)
    assert {row["verdict"] for row in value["inside"]} == {"held"}
    assert {row["verdict"] for row in value["protections"]} <= {"held", "extra", "absent"}
    assert all(row["text"] for row in (*value["protections"], *value["inside"]))
    assert value["wasm"]["verdict"] in ("ok", "absent")
    assert (value["network"]["verdict"], value["network"]["needed"]) == ("held", 0)


def test_without_the_other_kind_of_worker_it_still_holds(tmp_path: Path) -> None:
    """One row says that it is absent, and the command that changes that."""
    ended = stockade(tmp_path, "doctor", "--json", variables={"XDG_CACHE_HOME": str(tmp_path / "nothing")})
    row = ended.document["value"]["wasm"]
    assert (ended.code, row["verdict"], "stockade image build python_wasm" in row["text"]) == (0, "absent", True)


def test_the_other_kind_of_worker_is_tried(tmp_path: Path) -> None:
    """Its image is there, may run, and its launcher starts."""
    kinds.require_image()
    ended = stockade(tmp_path, "doctor", "--json", variables={"XDG_CACHE_HOME": str(machine.IMAGE_DIR.parent)})
    assert (ended.code, ended.document["value"]["wasm"]["verdict"]) == (0, "ok")


def test_as_text_it_is_tables_and_a_verdict(tmp_path: Path) -> None:
    """The last line says it in words."""
    ended = stockade(tmp_path, "doctor")
    assert ended.out.splitlines()[-1] == "this host holds what policy required needs"
    assert ended.out.splitlines()[0].split() == ["protection", "needed", "found", "verdict", "what", "was", "seen"]


def test_where_no_jail_can_be_started_the_table_says_what_is_missing(tmp_path: Path) -> None:
    """In a user namespace that may make no further one and maps a single uid, neither way into a jail is open."""
    if shutil.which("unshare") is None:
        pytest.skip("unproven: no unshare(1) here")
    words = " ".join(f"'{word}'" for word in command("doctor", "--json", "--state-dir", str(tmp_path / "state")))
    script = f"echo 0 > /proc/sys/user/max_user_namespaces && exec {words}"
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "/bin/sh", "-c", script],
        cwd=PROJECT,
        env=environment(tmp_path),
        capture_output=True,
        timeout=60,
        check=False,
    )
    if not done.stdout:
        pytest.skip("unproven: no user namespace can be made here")
    ended = Ended(done.returncode, done.stdout.decode(), done.stderr.decode())
    rows = {row["name"]: row for row in ended.document["value"]["protections"]}
    assert (ended.code, ended.document["reason"]) == (5, "refused.cannot_enforce")
    assert (rows["user_namespace_or_root"]["verdict"], rows["user_namespace_or_root"]["found"]) == ("missing", 0)
    assert "user.max_user_namespaces" in rows["user_namespace_or_root"]["remedy"]
    assert (rows["seccomp"]["verdict"], rows["landlock"]["verdict"]) == ("held", "held")
    assert ended.document["value"]["inside"][0]["name"] == "start a jail"
    network = ended.document["value"]["network"]
    assert (network["verdict"], network["remedy"]) == ("absent", scoped.REMEDY)


def test_a_policy_that_needs_more_than_there_is_fails_by_name(tmp_path: Path) -> None:
    """A level that this kernel does not have is missing, with what to do; the rest of the table stands."""
    (tmp_path / "strict.toml").write_text(
        'extends = "required"\n[protections]\nlandlock = { value = 7, reason = "test" }\nmemory_cgroup = { value = 1, reason = "test" }\n'
    )
    ended = stockade(tmp_path, "doctor", "--policy", str(tmp_path / "strict.toml"), "--json")
    rows = {row["name"]: row for row in ended.document["value"]["protections"]}
    lacking = [name for name in ("landlock", "memory_cgroup") if rows[name]["found"] < rows[name]["needed"]]
    assert [name for name, row in rows.items() if row["verdict"] == "missing"] == lacking
    assert ended.code == (5 if lacking else 0)


def test_a_policy_without_a_wall_has_nothing_to_examine(tmp_path: Path) -> None:
    """The attempts are never made outside of a jail."""
    ended = stockade(tmp_path, "doctor", "--policy", "host", "--json")
    assert (ended.code, ended.document["reason"]) == (3, "refused.host_mode")


def test_an_attempt_that_was_not_reported_got_through() -> None:
    """A selfcheck that leaves one out cannot make the table green."""
    reported = [{"name": name, "held": True, "how": "x"} for name in doctor.ATTEMPTS if name != "fork"]
    lines = doctor._reported(Outcome(status=Status.OK, reason="ok.done", value=reported))
    assert [line.name for line in lines if line.verdict != "held"] == ["fork"]


def test_a_selfcheck_that_does_not_answer_is_a_failure() -> None:
    """However its call ended."""
    lines = doctor._reported(Outcome(status=Status.CRASHED, reason="crashed.exit", lines=("gone",)))
    assert [(line.verdict, line.text) for line in lines] == [("missing", "crashed.exit: gone")]


async def test_what_a_living_engine_holds_is_no_leftover(engine: Engine) -> None:
    """Its launcher is found as this process's own, and not among the orphans."""
    own = leftovers.processes_of(os.getpid())
    assert f"process {engine.launcher_pid}" in own
    assert [line for line in leftovers.orphans() if line.startswith(f"process {engine.launcher_pid}:")] == []
    assert [path for path in leftovers.orphaned_cgroups() if f"stockade-{engine.launcher_pid}-" in path] == []


def test_a_policy_with_a_network_needs_one(tmp_path: Path) -> None:
    """Its own profile is not tried, its wall is, loosenings and all; the row says that it is needed."""
    (tmp_path / "network").mkdir()
    (tmp_path / "network" / "shop.toml").write_text(
        'purpose = "a test"\n[[allow]]\nto = "*.example.com:443"\nreason = "a test"\n'
        '[examples]\nallowed = ["api.example.com:443"]\ndenied = ["example.com:443"]\n'
    )
    loosened = "".join(
        f'{name} = {{ value = true, reason = "test" }}\n' for name in ("network_wildcards", "state_kept_warm", "host_name_in_reach")
    )
    (tmp_path / "shop.toml").write_text(
        'extends = "required"\nfreshness = { value = "warm", reason = "test" }\n[protections]\n'
        'uts_namespace = { value = 0, reason = "test" }\n[network]\n'
        f'profile = {{ value = "shop", reason = "test" }}\n[loosenings]\n{loosened}'
    )
    ended = stockade(tmp_path, "doctor", "--policy", str(tmp_path / "shop.toml"), "--json")
    row = ended.document["value"]["network"]
    assert (row["verdict"], row["needed"], row["remedy"]) == ("held", 1, None), row


HELD = [{"name": name, "held": True, "how": "x"} for name in scoped.ATTEMPTS]


def _ok(value: object) -> Outcome:
    return Outcome(status=Status.OK, reason="ok.done", value=value)


@pytest.mark.parametrize(
    ("outcome", "came", "elsewhere", "state"),
    [
        (_ok(HELD), True, [], "held"),
        (_ok(HELD), False, [], "unheld"),
        (_ok([{**HELD[0], "held": False}, *HELD[1:]]), True, [], "unheld"),
        (_ok(HELD), True, ["the listener was reached 1 times"], "leaks"),
        *((_ok([*HELD[:at], *HELD[at + 1 :]]), True, [], "leaks") for at in range(1, len(HELD))),
        *((_ok([*HELD[:at], {**HELD[at], "held": False}, *HELD[at + 1 :]]), True, [], "leaks") for at in range(1, len(HELD))),
        (Outcome(status=Status.REFUSED, reason="refused.network_scoped", lines=("why",)), False, [], "unheld"),
        (Outcome(status=Status.CRASHED, reason="crashed.exit", lines=("why",)), True, [], "unheld"),
    ],
)
def test_a_scoped_network_holds_when_the_place_is_reached_and_nothing_else(
    outcome: Outcome, came: bool, elsewhere: list[str], state: str
) -> None:
    """By what arrived outside and by what the tool reports; what it leaves out got through."""
    assert scoped.judged(outcome, came=came, elsewhere=elsewhere).state == state


@pytest.mark.parametrize(
    ("state", "needed", "verdict"),
    [
        ("held", False, "held"),
        ("held", True, "held"),
        ("unheld", False, "absent"),
        ("unheld", True, "missing"),
        ("leaks", False, "missing"),
        ("leaks", True, "missing"),
    ],
)
def test_a_network_that_cannot_be_held_fails_the_policies_that_have_one(
    state: Literal["held", "unheld", "leaks"], needed: bool, verdict: str
) -> None:
    """One that leaks fails every policy; what would mend it is told of the other kind."""
    line = doctor.scoped_line(scoped.Scoped(state=state, text="x"), needed=needed)
    assert (line.verdict, line.remedy is not None) == (verdict, state == "unheld")
