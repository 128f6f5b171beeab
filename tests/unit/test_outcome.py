"""The closed table of reasons, verdicts, and the first one that settles."""

import pytest

from engine import errors
from engine.outcome import REASONS, Fault, Outcome, Settlement, Status, Verdict, error_for


def test_each_code_begins_with_its_status() -> None:
    """Every row's code is its own key and starts with a status; every status has a row."""
    assert {reason.code: reason.status for reason in REASONS.values()} == {code: Status(code.split(".")[0]) for code in REASONS}
    assert {reason.status for reason in REASONS.values()} == set(Status)


def test_aliases_are_unique() -> None:
    """No two rows share a name of the contract, and all begin with cave_sandbox_."""
    aliases = [reason.alias for reason in REASONS.values() if reason.alias]
    assert (len(set(aliases)), all(alias.startswith("cave_sandbox_") for alias in aliases)) == (len(aliases), True)


def test_every_reason_has_advice_and_only_ok_exits_with_0() -> None:
    """Each row says what to do; the exit code 0 means done."""
    assert [reason.code for reason in REASONS.values() if reason.exit_code == 0] == ["ok.done"]
    assert all(reason.advice for reason in REASONS.values())


def test_a_code_outside_the_table_cannot_be_written() -> None:
    """Neither a verdict nor an error can carry an unlisted code."""
    with pytest.raises(KeyError):
        Verdict(code="refused.because")
    with pytest.raises(KeyError):
        error_for("refused.because")


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("refused.arguments", errors.RequestError),
        ("refused.source_syntax", errors.ToolError),
        ("refused.declaration", errors.DeclarationError),
        ("refused.not_granted", errors.PolicyError),
        ("refused.cannot_enforce", errors.HostError),
        ("engine_failed.bug", errors.EngineBug),
    ],
)
def test_the_exception_says_whose_fault(code: str, kind: type[errors.EngineError]) -> None:
    """The class of the exception follows from the row's fault."""
    error = error_for(code, "line")
    assert (type(error), error.code, error.lines) == (kind, code, ("line",))


def test_every_code_but_ok_has_an_exception_of_its_fault() -> None:
    """No row with a fault is without a class."""
    made = {code: error_for(code) for code, reason in REASONS.items() if reason.fault is not Fault.NOBODY}
    assert set(made) == set(REASONS) - {"ok.done"}


def test_the_first_verdict_settles() -> None:
    """A later verdict changes nothing and is told so."""
    settlement = Settlement()
    assert (settlement.settle("limit_exceeded.wall", "a\nb"), settlement.settle("ok.done")) == (True, False)
    assert settlement.verdict == Verdict(code="limit_exceeded.wall", lines=("a b",))


def test_an_outcome_raises_unless_ok() -> None:
    """raise_for_status gives the outcome back, or raises what the reason says."""
    good = Outcome(status=Status.OK, reason="ok.done", value=1)
    assert good.raise_for_status() is good
    with pytest.raises(errors.ToolError) as caught:
        Outcome(status=Status.TOOL_ERROR, reason="tool_error.exit", lines=("it left",)).raise_for_status()
    assert (caught.value.code, caught.value.lines) == ("tool_error.exit", ("it left",))
