"""What a call lets be seen when a secret is in it: withheld or redacted, in every carrier, and told on the receipt by its name alone."""

import base64
import json
import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from engine.events import LogRecord, Progress, ToolEvent
from engine.host import Engine
from engine.outcome import Outcome
from tests import kit

SECRET = secrets.token_hex(16)  # a canary: nothing opens with it
PLAIN = "an ordinary answer"
MARK = "[redacted:orders_key]"
POLICY = """
extends = "required"
on_secret = { value = "%s", reason = "as the test wants it" }

[secrets]
orders_key = { value = "env:ORDERS_KEY", reason = "what must not leave" }
"""
TOOLS = """
import base64, json, sys
from typing import Any
from engine import Context, tool


@tool(effect="read")
def say(text: str) -> Any:
    "What it is told, read from JSON: the arguments themselves hold no secret."
    return json.loads("".join(reversed(text)))


@tool(effect="read", output={"type": "string", "minLength": 32})
def long(text: str) -> str:
    "A text that is longer than any mark."
    return text[::-1]


@tool(effect="read", output={"type": "array", "items": {"type": "string", "maxLength": 16}})
def short(text: str) -> list[str]:
    "Texts that are shorter than any mark."
    return json.loads(text[::-1])


@tool(effect="read", output={"enum": ["a", "b"]})
def choose(text: str) -> str:
    "One of two words."
    return text[::-1]


@tool(effect="read", partial={"type": "string"})
def stream(text: str):
    "A text in pieces."
    for piece in json.loads(text[::-1]):
        yield piece


@tool(effect="read")
def tell(text: str, context: Context) -> str:
    "All that is said beside the answer."
    text = text[::-1]
    print("printed", text)
    print("warned", text, file=sys.stderr)
    context.progress(1, 2, text)
    context.log.info("logged " + text, data=[text])
    return "told"


@tool(effect="read")
def count(text: str, context: Context) -> str:
    "A number as its progress, and in a log record."
    where, number = json.loads(text[::-1])
    if where == "progress":
        context.progress(number, None, "said")
    else:
        context.log.info("said", data={"number": number})
    return "told"


@tool(effect="read")
def emit(text: str, context: Context) -> str:
    "An event."
    context.emit({"event": json.loads(text[::-1])})
    return "emitted"


@tool(effect="read")
def fail(text: str) -> str:
    "An exception with a note and a cause."
    try:
        raise KeyError(text[::-1])
    except KeyError as error:
        raise ValueError("failed with " + text[::-1]) from error
"""


def hidden(text: str) -> str:
    """The text as an argument in which nothing is found: it is written from its end."""
    return text[::-1]


def packed(value: object) -> str:
    """The same of any data, as JSON."""
    return hidden(json.dumps(value))


@pytest.fixture(params=["by_shape"])
async def held(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Engine]:
    """An engine whose vault has the secret, with the tools loaded."""
    monkeypatch.setenv("ORDERS_KEY", SECRET)
    policy = tmp_path / "policy.toml"
    policy.write_text(POLICY % request.param)
    async with kit.clean_engine(tmp_path / "state", policy=policy) as engine:
        await engine.load(kit.write(tmp_path / "source", TOOLS))
        yield engine


async def judged(engine: Engine, name: str, text: str) -> tuple[str, Any, tuple[str, ...], Any]:
    """Reason, value and lines of a call, and what its receipt says of secrets; the secret is nowhere in any of it."""
    outcome = await engine.call(name, {"text": text})
    receipt = dict(await outcome.concluded())
    shown = repr((outcome.value, outcome.lines, outcome.stdout, outcome.stderr, receipt))
    assert SECRET not in shown
    return outcome.reason, outcome.value, outcome.lines, receipt["secrets"]


async def streamed(engine: Engine, name: str, text: str) -> tuple[list[Any], Outcome]:
    """What came before the outcome, and the outcome."""
    async with engine.stream(name, {"text": text}) as items:
        found = [item async for item in items]
    assert SECRET not in repr(found)
    assert isinstance(found[-1], Outcome)
    return [*found[:-1]], found[-1]


BASE64 = [base64.b64encode(b"x" * shift + SECRET.encode() + b"yz").decode() for shift in range(3)]
CARRIERS: dict[str, Any] = {
    "as it is": SECRET,
    "inside a text": f"key={SECRET};",
    "deep inside": {"a": [1, {"b": [f"<{SECRET}>"]}]},
    "as a key": {SECRET: 1},
    "in hexadecimal": SECRET.encode().hex(),
    "in capitals": SECRET.encode().hex().upper(),
    **{f"base64 from {shift}": text for shift, text in enumerate(BASE64)},
    "split over items": [SECRET[:7], SECRET[7:]],
    "split over keys": {SECRET[:7]: 1, SECRET[7:]: 2},
    "split over nested keys": {SECRET[:7]: {SECRET[7:]: 1}},
    "split over a key and its text": {SECRET[:7]: SECRET[7:]},
    "split in the middle of very many": [*["x"] * 3000, SECRET[:7], SECRET[7:], *["x"] * 3000],
    "beyond what is checked at once": ["x" * 60_000, {"deep": [SECRET] * 3}, *range(3000)],
}


@pytest.mark.parametrize("held", ["by_shape", "refuse"], indirect=True)
async def test_an_answer_with_a_secret_is_withheld(held: Engine) -> None:
    """The reason names it, the receipt counts it, nothing shows it; an answer without it passes."""
    found = {name: await judged(held, "say", packed(value)) for name, value in CARRIERS.items()}
    withheld = ("refused.secret_out", None, ("what the tool answered holds orders_key",), {"orders_key": {"result": 1}})
    assert found == dict.fromkeys(CARRIERS, withheld)
    assert await judged(held, "say", packed(PLAIN)) == ("ok.done", PLAIN, (), {})


@pytest.mark.parametrize("held", ["redact"], indirect=True)
async def test_or_it_is_redacted(held: Engine) -> None:
    """Where the policy says so: the mark stands in its place, and what is handed over is fit to be seen."""
    for name, value in CARRIERS.items():
        reason, given, lines, found = await judged(held, "say", packed(value))
        assert (name, reason, lines, MARK in repr(given), found["orders_key"]["result"] >= 1) == (name, "ok.done", (), True, True)
        assert await judged(held, "say", packed(given)) == ("ok.done", given, (), {})


@pytest.mark.parametrize("held", ["redact"], indirect=True)
async def test_where_a_mark_would_break_the_schema_it_is_withheld(held: Engine) -> None:
    """An answer that is handed over fits what the tool declares."""
    assert (await judged(held, "long", hidden(SECRET)))[:2] == ("refused.secret_out", None)
    assert (await judged(held, "long", hidden("x" * 32)))[:2] == ("ok.done", "x" * 32)


@pytest.mark.parametrize("held", ["redact"], indirect=True)
async def test_what_is_no_member_of_an_enumeration_is_not_repeated(held: Engine) -> None:
    """The line says what is allowed, and nothing of what came."""
    assert (await judged(held, "choose", hidden(SECRET)))[:2] == ("tool_error.result_schema", None)
    assert (await judged(held, "choose", "a"))[:2] == ("ok.done", "a")


async def test_words_for_people_are_redacted_and_cost_no_answer(held: Engine) -> None:
    """What was printed, a log record, a progress: each with the mark, and the answer comes."""
    outputs, outcome = await streamed(held, "tell", hidden(SECRET))
    assert outputs == [
        Progress(done=1, total=2, message=MARK),
        LogRecord(level="info", message=f"logged {MARK}", data={"data": [MARK]}),
    ]
    assert (outcome.reason, outcome.value) == ("ok.done", "told")
    assert (outcome.stdout, outcome.stderr) == (f"printed {MARK}\n", f"warned {MARK}\n")
    found = (await outcome.concluded())["secrets"]
    assert found.keys() == {"orders_key"}
    assert found["orders_key"].keys() == {"progress", "log", "stdout", "stderr"}


async def test_an_error_is_redacted(held: Engine) -> None:
    """Its line, and the trace with its causes."""
    outcome = await held.call("fail", {"text": hidden(SECRET)})
    assert (outcome.reason, outcome.lines) == ("tool_error.exception", (f"ValueError: failed with {MARK}",))
    assert SECRET not in outcome.stderr
    assert MARK in outcome.stderr


async def test_an_event_is_withheld(held: Engine) -> None:
    """The call ends before anybody sees it."""
    outputs, outcome = await streamed(held, "emit", packed({"k": SECRET}))
    assert (outputs, outcome.reason) == ([], "refused.secret_out")
    outputs, outcome = await streamed(held, "emit", packed({"k": PLAIN}))
    assert (outputs, outcome.reason) == ([ToolEvent(value={"event": {"k": PLAIN}})], "ok.done")


PIECES = {
    "in two": [SECRET[:10], SECRET[10:]],
    "one character each": [*SECRET],
    "with others around": ["a", f"begin {SECRET[:20]}", f"{SECRET[20:]} end", "b"],
    "in base64": [BASE64[1][:9], BASE64[1][9:]],
}


async def test_a_secret_in_pieces_is_found_with_its_last(held: Engine) -> None:
    """The piece that completes it does not come, and those that came before do not make it."""
    for name, pieces in PIECES.items():
        outputs, outcome = await streamed(held, "stream", packed(pieces))
        came = [item.value for item in outputs]
        assert (name, outcome.reason, came) == (name, "refused.secret_out", pieces[: len(came)])
        assert len(came) < len(pieces)
        assert SECRET not in "".join(came)


@pytest.mark.parametrize("held", ["redact"], indirect=True)
async def test_in_pieces_it_is_redacted_with_its_last(held: Engine) -> None:
    """The stream goes on."""
    outputs, outcome = await streamed(held, "stream", packed([SECRET[:10], SECRET[10:], "after"]))
    assert [item.value for item in outputs] == [SECRET[:10], MARK, "after"]
    assert outcome.reason == "ok.done"


async def test_arguments_with_a_secret_are_not_sent(held: Engine) -> None:
    """Nothing is started; the text names the secret by its id."""
    outcome = await held.call("say", {"text": f"x{SECRET}"})
    receipt = await outcome.concluded()
    assert (outcome.reason, outcome.lines) == ("refused.secret_in", ("the arguments hold the secret orders_key",))
    assert (receipt["worker"]["started"], receipt["secrets"]) == (False, {"orders_key": {"arguments": 1}})


async def test_what_no_mark_can_stand_for_is_withheld(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A number is a secret: under every policy no answer, progress or record shows it; another number passes."""
    digits = str(10**15 + secrets.randbelow(10**15))
    monkeypatch.setenv("ORDERS_KEY", digits)
    for on_secret in ("by_shape", "refuse", "redact"):
        policy = tmp_path / f"{on_secret}.toml"
        policy.write_text(POLICY % on_secret)
        async with kit.clean_engine(tmp_path / "state", policy=policy) as engine:
            await engine.load(kit.write(tmp_path / "source", TOOLS))
            tried = {
                "result": await engine.call("say", {"text": packed({"a": [int(digits)]})}),
                "progress": await engine.call("count", {"text": packed(["progress", int(digits)])}),
                "log": await engine.call("count", {"text": packed(["log", int(digits)])}),
            }
            for where, outcome in tried.items():
                found = (await outcome.concluded())["secrets"]
                assert (where, outcome.reason, outcome.value, found) == (where, "refused.secret_out", None, {"orders_key": {where: 1}})
                assert digits not in repr((outcome.lines, outcome.stdout, outcome.stderr))
            assert (await engine.call("say", {"text": packed(int(digits) + 1)})).value == int(digits) + 1
            assert (await engine.call("count", {"text": packed(["progress", 7])})).reason == "ok.done"


@pytest.mark.parametrize("held", ["redact"], indirect=True)
async def test_codes_that_show_it_in_a_frame_are_withheld(held: Engine) -> None:
    """They are its very bytes there, and nothing in the data can be replaced; of words one mark is left."""
    codes = [*SECRET.encode()]
    withheld = ("refused.secret_out", None, ("what the tool answered holds orders_key",), {"orders_key": {"result": 1}})
    assert await judged(held, "say", packed({"a": codes})) == withheld
    assert (await judged(held, "say", packed({"a": codes[:-1]})))[:2] == ("ok.done", {"a": codes[:-1]})


LIKELY = "://admin:" + secrets.token_hex(8) + "@"


async def test_what_only_looks_like_a_secret_is_redacted(held: Engine) -> None:
    """By default: the answer comes, with a mark."""
    mark = "[redacted:shape:url_password]"
    expected = ("ok.done", {"a": f"postgres{mark}db"}, (), {"shape:url_password": {"result": 1}})
    assert await judged(held, "say", packed({"a": f"postgres{LIKELY}db"})) == expected


@pytest.mark.parametrize("held", ["refuse"], indirect=True)
async def test_or_withheld_where_the_policy_refuses(held: Engine) -> None:
    """The same answer does not come."""
    withheld = ("refused.secret_out", None, ("what the tool answered holds shape:url_password",), {"shape:url_password": {"result": 1}})
    assert await judged(held, "say", packed({"a": f"postgres{LIKELY}db"})) == withheld


async def test_a_line_that_is_made_one_shows_no_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Line breaks, two blanks and signs of no width become one blank: it is looked at again as it is shown."""
    spaced = f"{secrets.token_hex(6)} {secrets.token_hex(6)}"
    monkeypatch.setenv("ORDERS_KEY", spaced)
    policy = tmp_path / "policy.toml"
    policy.write_text(POLICY % "by_shape")
    async with kit.clean_engine(tmp_path / "state", policy=policy) as engine:
        await engine.load(kit.write(tmp_path / "source", TOOLS))
        for between in ("\n", "  ", "\t", "\u200b"):
            outcome = await engine.call("fail", {"text": hidden(spaced.replace(" ", between))})
            assert (between, outcome.lines) == (between, (f"ValueError: failed with {MARK}",))
            async with engine.stream("tell", {"text": hidden(spaced.replace(" ", between))}) as items:
                shown = [item async for item in items][:2]
            assert (between, [item.message for item in shown if isinstance(item, Progress | LogRecord)]) == (
                between,
                [MARK, f"logged {MARK}"],
            )


@pytest.mark.parametrize("held", ["redact"], indirect=True)
async def test_a_refusal_names_the_secret_also_when_it_came_in_parts(held: Engine) -> None:
    """Each part fits the schema, and no mark does."""
    pieces = [SECRET[:16], SECRET[16:]]
    withheld = ("refused.secret_out", None, ("what the tool answered holds orders_key",), {"orders_key": {"result": 1}})
    assert await judged(held, "short", packed(pieces)) == withheld
    assert (await judged(held, "short", packed(["x" * 16])))[:2] == ("ok.done", ["x" * 16])
