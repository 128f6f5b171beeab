"""Arguments that are packed once: their bytes are the call's, and what is no data is not packed."""

from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.checking import Checker, data_problem
from engine.errors import EngineBug, RequestError
from engine.wire import decoding, messages
from engine.wire.messages import Call, HostReply, Packed
from tests import hosts

TEXT = st.text(st.characters(codec="utf-8"), max_size=10)
SCALARS = st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 63) - 1) | st.floats(allow_nan=False, allow_infinity=False) | TEXT
DATA = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=9) | st.dictionaries(TEXT, inner, max_size=9), max_leaves=30)


@settings(deadline=None, max_examples=30)
@given(st.dictionaries(TEXT, DATA, max_size=9))
def test_a_call_of_packed_arguments_has_the_same_bytes(value: dict[str, Any]) -> None:
    """Whoever reads it cannot tell which way it was made."""
    packed = Packed.of(value)
    assert packed.data == msgpack.packb(value)
    assert messages.encode(Call(tool="t", arguments=packed, call="c")) == messages.encode(Call(tool="t", arguments=value, call="c"))


@pytest.mark.parametrize("value", [{"a": b"x"}, {"a": (1,)}, {1: 2}, {"a": float("nan")}, {"a": 1 << 63}, {"a": "\ud800"}, {"\udfff": 1}])
def test_what_is_no_data_is_not_packed(value: Any) -> None:
    """It is found here or named by ``data_problem``, and the two agree."""
    with pytest.raises(ValueError):
        Packed.of(value)
    assert data_problem(value) is not None


def test_depth_and_number_are_bounded() -> None:
    """Before anything is packed: a value that holds itself would be packed for ever."""
    fan: list[Any] = []
    fan += [fan, fan]
    with pytest.raises(ValueError, match="more values"):
        Packed.of({"a": fan}, nodes=1000)
    with pytest.raises(ValueError, match="deeper"):
        Packed.of({"a": [[]]}, depth=2)
    assert Packed.of({"a": [[]]}, depth=3).data == b"\x81\xa1a\x91\x90"


@pytest.mark.parametrize(("nested", "refused"), [(True, True), (False, False)])
def test_a_tools_own_call_has_fewer_values(nested: bool, refused: bool) -> None:
    """They are packed and checked at once, as often as the tool calls; the control is a caller's."""
    tool = hosts.loaded_tool(input={"type": "object"})
    arguments = {"a": [1] * 100_000}
    if not refused:
        assert tool.checked_arguments(arguments, nested=nested).data
        return
    with pytest.raises(RequestError) as caught:
        tool.checked_arguments(arguments, nested=nested)
    assert (caught.value.code, caught.value.lines) == ("refused.request", ("$: holds more than 100000 values: send less",))


def test_only_a_call_takes_packed_arguments() -> None:
    """A packed value is no data anywhere else."""
    with pytest.raises(EngineBug):
        messages.encode(HostReply(number=1, ok=True, value=[Packed(b"\xc0")]))


def test_its_bytes_are_not_shown() -> None:
    """Arguments may hold what no log should."""
    assert repr(Packed.of({"a": "secret"})) == "Packed()"


@settings(deadline=None)
@given(DATA)
def test_problems_of_data_are_the_problems(value: Any) -> None:
    """A value that is known to be data has the same lines without the walk."""
    schema = {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "integer"}}}, "additionalProperties": False}
    for checker in (Checker(schema), Checker({"anyOf": [schema, {"type": "array", "maxItems": 2}]})):
        assert checker.problems_of_data(value) == checker.problems(value)
        assert Checker.of_text(checker.text).problems(value) == checker.problems(value)


def test_memory_that_ran_out_is_no_fault_of_the_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tool is not accused of a violation because its host was short of memory."""

    def none(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(decoding, "_unpackb", none)
    with pytest.raises(MemoryError):
        messages.decode(memoryview(b"\x92\x17\xc0"), messages.Result)
