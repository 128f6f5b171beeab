"""Whole lives of a guest in children locked as a jail locks them: how they end, what they can reach, what one who broke out could.

Every refusal has its control: the same attempt in the same child without its lock.
"""

import functools
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgpack
import pytest

from engine.jail import plan as plans
from engine.jail import wasm
from engine.places import data_dir
from tests import handmade, hosts
from tests.handmade import number_of

PROBE = Path(__file__).with_name("wasm_probe.py")
CONTENT = plans.Content(source=Path("/state/stage/x/source"))
READY = handmade.ECHO + b"here"  # what is sent before something that never answers
MIB = 1 << 20
TRAPPED, UNFIT = 134, 71


@functools.cache
def landlock() -> list[int]:
    """What this kernel can handle, as a plan says it."""
    sys.path.append(str(data_dir("worker_images")))
    from enter import kernel

    abi = kernel.landlock_abi()
    if abi == 0:
        pytest.skip("unproven here: no Landlock")
    made = wasm.make(hosts.resolved(), hosts.FACTS, hosts.PLACES, CONTENT).order["landlock"]
    files = (1 << {1: 13, 2: 14, 3: 15, 4: 15}.get(abi, 16)) - 1
    return [files & int(made["files"]), 3 if abi >= 4 else 0, 3 if abi >= 6 else 0]


def lived(*lives: dict[str, Any], memory: int = 64 * MIB, clock_ns: int = 0, filters: Any = None, **more: Any) -> dict[str, Any]:
    """What the probe says of these lives."""
    order = wasm.make(
        hosts.resolved(limits=hosts.small_limits(memory_bytes=memory), clock_ms=clock_ns // 1_000_000), hosts.FACTS, hosts.PLACES, CONTENT
    ).order
    with tempfile.TemporaryDirectory() as folder:
        request = {
            "images": str(data_dir("worker_images")),
            "packages": str(Path(str(msgpack.__file__)).parent.parent),
            "image": str(handmade.compiled()),
            "source": folder,
            "folder": folder,
            "landlock": landlock(),
            "plan": {**order, "filters": filters or order["filters"]},
            "lives": lives,
            **more,
        }
        done = subprocess.run(
            [sys.executable, "-I", "-S", PROBE], input=json.dumps(request), capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
        told: dict[str, Any] = json.loads(done.stdout)
        return told


def life(*frames: bytes, **more: Any) -> dict[str, Any]:
    """One that is sent these frames and then hung up on."""
    return {"frames": [frame.hex() for frame in frames], **more}


def only(*frames: bytes, memory: int = 64 * MIB, **more: Any) -> dict[str, Any]:
    """How one such life went."""
    (one,) = lived(life(*frames, **more), memory=memory)["lives"]
    return dict(one)


class TestRelay:
    """What crosses, and how a life ends that nothing ended."""

    def test_bytes_come_out_where_they_are_sent(self) -> None:
        """A frame, both outputs; then the host hangs up, which the guest is told, and it ends by itself."""
        every = bytes(range(256))
        one = only(handmade.ECHO + every, handmade.OUT + every, handmade.ERR + b"no", wasted := handmade.ECHO + b"!", wanted=257)
        assert wasted
        assert one == {"told": (every + b"!").hex(), "out": every.hex(), "err": "noclosed", "ended": 0}

    def test_a_megabyte_goes_both_ways(self) -> None:
        """In one piece, whole, and again with bytes that are two in UTF-8."""
        large = b"x" * MIB
        one = only(handmade.OUT + large, handmade.ECHO + large, handmade.OUT + b"\xff" * MIB, wanted=MIB)
        assert bytes.fromhex(one["told"]) == large
        assert bytes.fromhex(one["out"]) == large + b"\xff" * MIB
        assert one["ended"] == 0

    def test_a_poll_does_not_wait(self) -> None:
        """Nothing is there: no bytes. A frame is there: as many bytes as it has."""
        one = only(handmade.POLL, wanted=16)
        assert number_of(bytes.fromhex(one["told"])) == 0
        one = only(handmade.POLL, b"12345", wanted=16)
        assert number_of(bytes.fromhex(one["told"])) in (0, 5)  # it may have asked before the second was sent

    def test_nobody_reads(self) -> None:
        """A guest that writes for ever blocks, and is ended from outside."""
        one = only(READY, handmade.FLOOD, wanted=4, unread=True, kill=True)
        assert one["ended"] == -9


class TestEnds:
    """Each way a guest ends, and that the next one lives."""

    @pytest.mark.parametrize(
        ("code", "line"),
        [
            (handmade.UNREACHABLE, "wasm trap: wasm `unreachable` instruction executed"),
            (handmade.DIVIDE, "wasm trap: integer divide by zero"),
            (handmade.STRAY, "wasm trap: out of bounds memory access"),
            (handmade.RECURSE, "wasm trap: call stack exhausted"),
            (handmade.ODD_KIND, "there is no such kind of output"),
            (handmade.ODD_REQUEST, "there is no such request"),
            (handmade.NOT_LATIN, "UnicodeEncodeError"),
        ],
    )
    def test_a_trap_ends_the_child_with_a_line(self, code: bytes, line: str) -> None:
        """Its own status, one line, no signal; the next child is as good as new."""
        trapped, following = lived(life(code), life(handmade.ECHO + b"x", wanted=1))["lives"]
        assert (trapped["ended"], trapped["err"].strip().removeprefix("1: ")) == (TRAPPED, line)
        assert (following["told"], following["ended"]) == (b"x".hex(), 0)

    def test_without_its_handlers_a_trap_is_a_signal(self) -> None:
        """The control of the above: resetting all signals, as a native jail does, makes the fault the process's own."""
        ended = [one["ended"] for one in lived(*(life(code, reset_signals=True) for code in b"u d m".split()))["lives"]]
        assert ended == [-4, -8, -11]

    def test_a_guest_that_leaves_keeps_its_status(self) -> None:
        """And one that returns a complaint has the status of that, with its words."""
        assert only(handmade.EXIT)["ended"] == 1
        complained = only(handmade.COMPLAIN)
        assert (complained["ended"], complained["err"]) == (UNFIT, "the guest gave up: not today\n")
        assert only(handmade.END)["ended"] == 0

    @pytest.mark.parametrize("code", [handmade.LOOP, handmade.SLEEP + (1 << 30).to_bytes(4, "little")], ids=["loop", "sleep"])
    def test_nothing_outlives_a_kill(self, code: bytes) -> None:
        """A loop without a check in it, and a sleep inside the host."""
        assert only(READY, code, wanted=4, kill=True)["ended"] == -9


class TestMemory:
    """The guest's bound, and the process's."""

    def test_a_guest_gets_what_it_may_have(self) -> None:
        """Beyond its limit, memory does not grow, and the guest goes on; twice the limit is twice the pages."""
        small, large = (only(handmade.GROW, wanted=16, memory=size) for size in (16 * MIB, 32 * MIB))
        assert (small["ended"], large["ended"]) == (0, 0)
        pages = [number_of(bytes.fromhex(one["told"])) for one in (small, large)]
        assert pages[1] - pages[0] == 16 * MIB >> 16
        assert pages[0] >= 16 * MIB >> 16

    def test_a_table_ends_where_it_may(self) -> None:
        """It grows to a hundred thousand entries, and no further."""
        one = only(handmade.GROW_TABLE, wanted=16)
        assert (number_of(bytes.fromhex(one["told"])), one["ended"]) == (99_001, 0)

    def test_the_kernel_holds_the_process(self) -> None:
        """With a guest's limit out of the way, RLIMIT_DATA makes memory end in the same way: no growth, no death."""
        (free,) = lived(life(handmade.GROW, wanted=16), memory=256 * MIB)["lives"]
        (held,) = lived(life(handmade.GROW, wanted=16), memory=256 * MIB, limits={"data_bytes": 200 * MIB})["lives"]
        pages = [number_of(bytes.fromhex(one["told"])) for one in (free, held)]
        assert (free["ended"], held["ended"]) == (0, 0)
        assert pages[1] < pages[0]
        assert pages[1] << 16 < 200 * MIB

    def test_no_memory_for_a_copy_is_an_end_with_a_reason(self) -> None:
        """The host's own copies find none: the guest's last words, or an abort, and no hang."""
        one = lived(life(handmade.ECHO + b"x" * (24 * MIB), wanted=1), memory=8 * MIB, limits={"data_bytes": 48 * MIB})["lives"][0]
        assert one["ended"] in (0, -6, TRAPPED)
        assert len(one["told"]) < 2 * 24 * MIB


class TestFresh:
    """What two children of one launcher have in common."""

    def test_randomness_differs(self) -> None:
        """Sixteen lives, sixteen numbers."""
        lives = lived(*[life(handmade.RANDOM, wanted=16)] * 16)["lives"]
        assert len({one["told"] for one in lives}) == 16

    def test_a_launcher_that_had_used_the_generator_would_give_it_away(self) -> None:
        """The control, and why a law forbids it: a WASI context made before the fork, and all children draw the same."""
        lives = lived(*[life(handmade.RANDOM, wanted=16)] * 4, seeded=True)["lives"]
        assert len({one["told"] for one in lives}) == 1

    def test_clocks_can_be_coarse(self) -> None:
        """Whole steps, and no more of the time than that; the control is as fine as ever."""
        step = 100_000_000
        coarse = lived(*[life(handmade.CLOCK, wanted=16)] * 4, clock_ns=step)["lives"]
        assert {number_of(bytes.fromhex(one["told"])) % step for one in coarse} == {0}
        fine = lived(*[life(handmade.CLOCK, wanted=16)] * 4)["lives"]
        assert {number_of(bytes.fromhex(one["told"])) % step for one in fine} != {0}


class TestReach:
    """What the process holds, and what it could do if its guest broke out."""

    def test_a_child_holds_five_descriptors_and_no_new_code(self) -> None:
        """Input, outputs, channel, the image; every executable mapping is one that the launcher had, and none can be written."""
        told = lived(life(READY, wanted=4, look=True))
        one = told["lives"][0]
        assert told["kept"] == [4]
        assert (one["descriptors"], one["new code"], one["writable code"], one["threads"]) == ([0, 1, 2, 3, 4], [], [], 1)

    def test_a_sleep_starts_one_thread(self) -> None:
        """And works; without the right to start it the child ends by a signal instead of waiting for ever."""
        nap = handmade.SLEEP + (1).to_bytes(4, "little")
        slept = lived(life(nap, wanted=4, look=True))["lives"][0]
        assert (bytes.fromhex(slept["told"]), slept["threads"]) == (b"full", 2)
        refused = lived(life(nap, wanted=4), limits={"descriptors": 6})["lives"][0]
        assert (refused["told"], refused["ended"]) == ("", -6)

    def test_who_broke_out_is_still_kept_in(self) -> None:
        """Every attempt is refused in a locked child, and most get through in one that is not."""
        free, locked = lived({"escape": True, "locked": False, "wanted": 1}, {"escape": True, "wanted": 1})["lives"]
        here, there = (json.loads(bytes.fromhex(one["told"])) for one in (free, locked))
        assert {
            name: error for name, error in there.items() if error not in ("EPERM", "EACCES", "not allowed to raise maximum limit")
        } == {}
        got_through = {name for name, error in here.items() if not error}
        assert set(there) - got_through <= {"read the sibling", "load a filter"}
