"""Which kind of worker runs a source: what each can serve, and how one is chosen."""

import dataclasses
from typing import Any

import pytest

from engine.errors import HostError
from engine.policy.model import Freshness, Kind, Mode
from engine.worker.kinds import Needs, choose, doubts, problems


@dataclasses.dataclass(frozen=True)
class Held:
    """An image as far as a choice looks at it."""

    name: str = "python_wasm"
    modules: frozenset[str] = frozenset({"json", "re", "threading", "tempfile"})
    packages: frozenset[str] = frozenset({"jinja2"})


IMAGE = Held()
ABSENT = "image python_wasm is not there"
PLAIN = Needs(standard=frozenset({"json", "re"}))


def needs(**changes: Any) -> Needs:
    """A source that any kind can serve, but for these changes."""
    return dataclasses.replace(PLAIN, **changes)


UNSERVED = [
    ({"standard": frozenset({"json", "ssl"})}, "its image python_wasm has no module ssl"),
    ({"standard": frozenset({"ctypes.util"})}, "its image python_wasm has no module ctypes"),
    ({"externals": frozenset({"yaml"})}, "yaml is neither in a granted layer nor in its image python_wasm"),
    ({"native_layers": ("numbers",)}, "layer numbers holds native code"),
    ({"mode": Mode.HOST}, "the mode host has no wall, and it always has one"),
    ({"freshness": Freshness.WARM}, "freshness warm is not there, every call is fresh"),
    ({"freshness": Freshness.SNAPSHOT}, "freshness snapshot is not there, every call is fresh"),
    ({"folders": ("reports",)}, "the granted folder reports cannot be seen from there"),
    ({"memory_bytes": (64 << 20) - 1}, "it needs limits.memory of 64 MiB"),
]


class TestWasm:
    """What wasm can serve."""

    def test_a_plain_source(self) -> None:
        """The control of all refusals below."""
        assert problems(Kind.WASM, PLAIN, IMAGE) == ()
        assert problems(Kind.WASM, needs(externals=frozenset({"jinja2"}), memory_bytes=64 << 20), IMAGE) == ()

    @pytest.mark.parametrize(("changes", "line"), UNSERVED)
    def test_what_it_cannot_serve_is_named(self, changes: dict[str, Any], line: str) -> None:
        """One line for each feature that is missing."""
        assert problems(Kind.WASM, needs(**changes), IMAGE) == (line,)
        with pytest.raises(HostError) as caught:
            choose({"caller": Kind.WASM}, needs(**changes), IMAGE)
        assert (caught.value.code, caught.value.lines) == ("refused.worker_kind", (f"wasm cannot serve this source: {line}",))

    def test_without_its_image(self) -> None:
        """The way out is in the line."""
        assert problems(Kind.WASM, PLAIN, ABSENT) == (ABSENT,)

    def test_modules_that_fail_when_they_are_used_are_doubts_alone(self) -> None:
        """Whoever asks for wasm gets it; unasked it is not chosen."""
        threaded = needs(standard=frozenset({"threading"}))
        assert doubts(threaded) == ("the source imports threading, and there are no threads",)
        assert choose({"caller": Kind.WASM}, threaded, IMAGE).kind is Kind.WASM
        assert choose({"caller": Kind.AUTO}, threaded, IMAGE).kind is Kind.NATIVE


class TestNative:
    """What native can serve."""

    def test_everything(self) -> None:
        """Whatever a graph was closed with; what is in no layer was refused before."""
        assert problems(Kind.NATIVE, PLAIN, ABSENT) == ()
        assert problems(Kind.NATIVE, needs(freshness=Freshness.WARM, native_layers=("numbers",)), ABSENT) == ()


class TestChoice:
    """Who gets which."""

    def test_the_strongest_that_can_serve(self) -> None:
        """Wasm when it can, native when wasm cannot, with the reason."""
        assert choose({}, PLAIN, IMAGE) == choose({"caller": Kind.AUTO, "policy": Kind.AUTO}, PLAIN, IMAGE)
        found = choose({}, PLAIN, IMAGE)
        assert (found.kind, found.why) == (Kind.WASM, "the strongest there is")
        found = choose({}, PLAIN, ABSENT)
        why = "wasm, which is stronger, cannot serve: image python_wasm is not there"
        assert (found.kind, found.why) == (Kind.NATIVE, why)

    @pytest.mark.parametrize("kind", [Kind.NATIVE, Kind.WASM])
    @pytest.mark.parametrize("who", ["caller", "policy", "declaration"])
    def test_whoever_asks_for_one_gets_that_one(self, who: str, kind: Kind) -> None:
        """And the receipt says who it was."""
        found = choose({"caller": Kind.AUTO, who: kind}, PLAIN, IMAGE)
        assert (found.kind, found.why) == (kind, f"asked for by the {who}")

    def test_two_that_ask_for_different_kinds_are_refused(self) -> None:
        """Nobody's word counts for more."""
        with pytest.raises(HostError) as caught:
            choose({"caller": Kind.NATIVE, "policy": Kind.WASM}, PLAIN, IMAGE)
        assert caught.value.lines == ("the caller asks for native; the policy asks for wasm",)

    def test_coarse_clocks_are_wasms_alone(self) -> None:
        """Where wasm cannot serve either, nobody does: a clock as fine as ever is not what was asked for."""
        coarse = needs(clock_ms=1, standard=frozenset({"threading"}))
        assert choose({}, coarse, IMAGE).kind is Kind.WASM
        for asked in ({"caller": Kind.NATIVE}, {}):
            with pytest.raises(HostError) as caught:
                choose(asked, coarse, ABSENT)
            assert "its clocks cannot be made coarse" in caught.value.lines[-1]
