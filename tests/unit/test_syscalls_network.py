"""What the profile of a scoped network adds to a worker's filters, and that it adds nothing else; and rows that are alternatives."""

import errno

import pytest

from engine.jail import bpf
from engine.jail.syscalls import CHILD, SCOPED_CHILD, SCOPED_JAIL, Arch, compose, describe, parse_profiles
from tests.unit.test_syscalls import ERRNO, NUMBER_TABLE, NUMBERS, PROFILES, STACKS, blob_of


@pytest.mark.parametrize("call", ["connect", "setsockopt", "getpeername", "shutdown"])
def test_only_workers_with_places_have_the_calls_of_a_network(call: str) -> None:
    """They are in one profile, which no other filter is made of."""
    assert [name for name, profile in PROFILES.items() if any(entry.name == call for entry in profile.entries)] == ["network"]
    assert [names for names in STACKS if "network" in names] == [SCOPED_JAIL, SCOPED_CHILD]


STREAM, CLOEXEC, NONBLOCK, HIGH = 1, 0x80000, 0x800, 1 << 32


@pytest.mark.parametrize("arch", list(Arch))
def test_a_socket_is_a_stream_over_ipv4_or_none(arch: Arch) -> None:
    """Of families 0 to 64, eleven types and protocols, just that one; the others get what they get in a worker without a network."""
    kinds = {kind | flags for kind in range(11) for flags in (0, CLOEXEC, NONBLOCK, CLOEXEC | NONBLOCK, 0x1000, 0o20000000)}
    protocols = (0, 1, 6, 17, 41, 132, 255, 262)  # of them 0 and 6 are TCP, 262 is MPTCP
    calls = [(family, kind, protocol) for family in range(65) for kind in kinds for protocol in protocols]
    streams = {STREAM | flags for flags in (0, CLOEXEC, NONBLOCK, CLOEXEC | NONBLOCK)}
    wanted = {call for call in calls if call[0] == 2 and call[1] in streams and call[2] in (0, 6)}
    for names in (SCOPED_JAIL, SCOPED_CHILD):
        blob, number = blob_of(names, arch), NUMBERS["socket"][arch]
        answers = {call: bpf.simulate(blob, arch.audit, number, call) for call in calls}
        assert {call for call, answer in answers.items() if answer == bpf.ALLOW} == wanted
        assert {answer for answer in answers.values() if answer != bpf.ALLOW} == {ERRNO | errno.EACCES}
    without = blob_of(CHILD, arch)
    assert {bpf.simulate(without, arch.audit, NUMBERS["socket"][arch], call) for call in calls} == {ERRNO | errno.EACCES}


@pytest.mark.parametrize("arch", list(Arch))
def test_a_worker_with_places_may_set_what_clients_set(arch: Arch) -> None:
    """Of four levels with 64 options each, the six that are listed; of the flags of a message, two that change nothing of its kind."""
    blob = blob_of(SCOPED_CHILD, arch)

    def allowed(call: str, *args: int) -> bool:
        return bpf.simulate(blob, arch.audit, NUMBERS[call][arch], args) == bpf.ALLOW

    options = {(level, option) for level in (0, 1, 6, 41) for option in range(64) if allowed("setsockopt", 3, level, option, 1, 4)}
    assert options == {(1, 9), (6, 1), (6, 4), (6, 5), (6, 6), (6, 18)}
    flags = {bit for bit in range(32) if allowed("sendmsg", 3, 1, 1 << bit)}
    assert flags == {6, 14}  # MSG_DONTWAIT, MSG_NOSIGNAL; not OOB 0, CONFIRM 11, ZEROCOPY 26, FASTOPEN 29
    assert [size for size in range(129) if allowed("connect", 3, 1, size)] == [16]
    denied = ("bind", "listen", "accept", "accept4", "recvmsg", "sendmmsg", "recvmmsg")
    assert [call for call in denied if call in NUMBERS and allowed(call, 3, 1, 0)] == []


def test_any_of_several_entries_allows_a_call() -> None:
    """A list of entries is an alternative each, and the errors of all must agree."""
    rows = '[{ reason = "r", when = [{ arg = 0, one_of = [1] }] }, { reason = "s", when = [{ arg = 1, one_of = [2] }] }]'
    profiles = parse_profiles({"numbers": NUMBER_TABLE, "p": f'purpose = "x"\n[calls]\nread = {rows}\n'})
    assert describe(compose(profiles, ["p"], Arch.X86_64)) == (("read", "allowed if arg0 in (0x1) or arg1 in (0x2), else EPERM"),)
