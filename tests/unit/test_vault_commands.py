"""Values that the operator's programs print: what such a program is given, and when it is over."""

import os
import sys
from pathlib import Path

import pytest
import trio
import trio.testing

from engine.egress.vault import Vault
from tests.vaults import CANARY, OTHER, policy, problem_of, read, secret_file

PROGRAM = Path(sys.executable)
# LC_CTYPE is set by Python itself
SHOWING = """
import os, sys
print(sys.argv[1:], sorted((name, value) for name, value in os.environ.items() if name != "LC_CTYPE"), [sys.stdin.read()], os.getcwd())
"""


async def test_a_value_comes_out_of_a_command(tmp_path: Path) -> None:
    """What the program prints; of the environment it has the search path and the home folder, and nothing to read."""
    script = secret_file(tmp_path, SHOWING.encode(), name="show.py")
    vault = Vault({"HOME": "/the/home", "ORDERS": CANARY, "LANG": "C"})
    await vault.hold(policy(tmp_path, {"orders": f'command:{PROGRAM} -I {script} "two words"'}))
    assert vault.secret("orders") == "['two words'] [('HOME', '/the/home'), ('PATH', '/usr/bin:/bin')] [''] /"


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("/no/such/program", "its command cannot be started: No such file or directory"),
        (f"{PROGRAM} -I -c 'raise SystemExit(3)'", "its command failed with exit status 3"),
        (f"{PROGRAM} -I -c 'print(20 * chr(97)); raise SystemExit(1)'", "its command failed with exit status 1"),
        (f"{PROGRAM} -I -c 'while True: print(9999 * chr(97))'", "what it is taken from has more than 65536 bytes"),
        (f"{PROGRAM} -I -c 'pass'", "the value is empty"),
    ],
)
async def test_a_command_that_yields_no_secret_refuses(tmp_path: Path, command: str, problem: str) -> None:
    """Not started, failed, endless, silent: with the ID, without the command line."""
    held = policy(tmp_path, {"orders": "command:" + command.replace("'", '"')})
    assert await problem_of(Vault({}), held) == ("refused.secret", (f"orders: {problem}",))


async def test_a_command_that_does_not_end_refuses(tmp_path: Path, autojump_clock: object) -> None:
    """By the clock of the loop."""
    code = "import time; print(20 * chr(97), flush=True); time.sleep(3600)"
    held = policy(tmp_path, {"orders": f'command:{PROGRAM} -I -c "{code}"'})
    assert await problem_of(Vault({}), held) == ("refused.secret", ("orders: its command did not end within 10 seconds",))


async def test_a_command_that_is_given_up_ends_with_what_it_started(tmp_path: Path) -> None:
    """Two processes hold a pipe; its end is seen when both are gone."""
    os.mkfifo(tmp_path / "pipe", 0o600)
    end = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    code = "import os, sys, time; end = os.open(sys.argv[1], os.O_WRONLY); os.fork(); os.write(end, bytes(1)); time.sleep(3600)"
    held = policy(tmp_path, {"orders": f'command:{PROGRAM} -I -c "{code}" {tmp_path / "pipe"}'})
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(Vault({}).hold, held)
            assert await read(end) + await read(end) == bytes(2)
            nursery.cancel_scope.cancel()
        assert await read(end) == b""
    finally:
        os.close(end)


async def test_what_an_ended_command_left_running_ends_too(tmp_path: Path) -> None:
    """The value is there, and the process that held its pipe is gone."""
    os.mkfifo(tmp_path / "pipe", 0o600)
    end = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    code = "import os, sys, time\nend = os.open(sys.argv[1], os.O_WRONLY)\n"
    code += f"if os.fork():\n    print({CANARY!r})\nelse:\n    os.write(end, bytes(1))\n    time.sleep(3600)\n"
    script = secret_file(tmp_path, code.encode(), name="leaves.py")
    vault = Vault({})
    try:
        await vault.hold(policy(tmp_path, {"orders": f"command:{PROGRAM} -I {script} {tmp_path / 'pipe'}"}))
        assert vault.secret("orders") == CANARY
        while await read(end):
            continue
    finally:
        os.close(end)


async def test_what_left_the_commands_session_is_not_waited_for(tmp_path: Path) -> None:
    """It holds the pipe for as long as it likes: the command has ended, and what it printed is the value."""
    os.mkfifo(tmp_path / "pipe", 0o600)
    code = "import os, sys\nhere, there = os.pipe()\n"
    code += f"if os.fork():\n    os.close(there)\n    os.read(here, 1)\n    print({CANARY!r})\n"
    code += "else:\n    os.setsid()\n    os.write(there, bytes(1))\n    os.open(sys.argv[1], os.O_RDONLY)\n"
    script = secret_file(tmp_path, code.encode(), name="leaves.py")
    vault = Vault({})
    try:
        await vault.hold(policy(tmp_path, {"orders": f"command:{PROGRAM} -I {script} {tmp_path / 'pipe'}"}))
        assert vault.secret("orders") == CANARY
    finally:
        os.close(os.open(tmp_path / "pipe", os.O_RDWR | os.O_NONBLOCK))  # lets it go


async def test_what_is_held_while_all_is_read_again(tmp_path: Path) -> None:
    """Neither misses the other's values: a policy that comes while a command of another one still runs."""
    os.mkfifo(tmp_path / "begun", 0o600)
    os.mkfifo(tmp_path / "value", 0o600)
    begun = os.open(tmp_path / "begun", os.O_RDWR | os.O_NONBLOCK)  # so that it has no end between two writers
    code = f"import sys; open(sys.argv[1], 'w').write('x'); print({CANARY!r} + open(sys.argv[2]).read())"
    slow = secret_file(tmp_path, code.encode(), name="slow.py")
    environment = {"MORE": CANARY}
    vault = Vault(environment)

    async def answered(text: str) -> None:
        assert await read(begun) == b"x"
        await trio.to_thread.run_sync((tmp_path / "value").write_text, text)

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(answered, "1")
            await vault.hold(policy(tmp_path, {"slow": f"command:{PROGRAM} -I {slow} {tmp_path / 'begun'} {tmp_path / 'value'}"}))
        environment["MORE"] = OTHER
        async with trio.open_nursery() as nursery:
            nursery.start_soon(vault.reload)
            assert await read(begun) == b"x"
            nursery.start_soon(vault.hold, policy(tmp_path, {"more": "env:MORE"}, name="more"))
            await trio.testing.wait_all_tasks_blocked()
            await trio.to_thread.run_sync((tmp_path / "value").write_text, "2")
    finally:
        os.close(begun)
    assert dict(vault.held()) == {"slow": CANARY + "2", "slow~1": CANARY + "1", "more": OTHER}
