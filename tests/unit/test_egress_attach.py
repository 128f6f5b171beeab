"""Attached secrets: one value for a field or parameter, the attached one; what cannot stand there is refused."""

import pytest

from engine.egress.attach import LONGEST, attached, held, plain_answers
from engine.egress.fields import Fields, Head
from engine.egress.traffic import Denied
from engine.policy.network import Attachment
from tests.doors import destination

SECRETS = {"key": "canary-value", "odd": "a b&c=d/é", "line": "canary\nvalue", "most": "k" * LONGEST, "long": "k" * (LONGEST + 1)}


def head(target: bytes = b"/", fields: Fields = ()) -> Head:
    """A request's head."""
    return Head(method=b"GET", target=target, fields=fields, body=False)


@pytest.mark.parametrize("name", [b"Authorization", b"authorization", b"AUTHORIZATION"])
def test_a_field_of_the_tools_is_replaced(name: bytes) -> None:
    """However it is spelt; others stay."""
    rule = [Attachment(secret="key", header="Authorization", form="Bearer {}")]
    found = attached(head(fields=[(name, b"mine"), (b"X", b"1"), (name, b"mine too")]), rule, SECRETS.__getitem__)
    assert found == head(fields=[(b"X", b"1"), (b"Authorization", b"Bearer canary-value")])


def test_a_name_that_servers_take_for_the_attached_one_is_replaced() -> None:
    """An underscore is a hyphen to many."""
    found = attached(head(fields=[(b"X_Api_Key", b"mine")]), [Attachment(secret="key", header="X-Api-Key")], SECRETS.__getitem__)
    assert found.fields == [(b"X-Api-Key", b"canary-value")]


@pytest.mark.parametrize(
    ("target", "found"),
    [
        (b"/a", b"/a?key=canary-value"),
        (b"/a?", b"/a?key=canary-value"),
        (b"/a?b=%20&c", b"/a?b=%20&c&key=canary-value"),
        (b"/a?key=mine&b=1&key", b"/a?b=1&key=canary-value"),
        (b"/a?%6bey=mine", b"/a?key=canary-value"),
        (b"/a?b=1;key=mine", b"/a?b=1&key=canary-value"),
        (b"/a?keys=1", b"/a?keys=1&key=canary-value"),
    ],
)
def test_a_parameter_of_the_tools_is_replaced(target: bytes, found: bytes) -> None:
    """Others stay as they were written."""
    assert attached(head(target), [Attachment(secret="key", query="key")], SECRETS.__getitem__).target == found


def test_a_parameter_is_written_in_percent_signs() -> None:
    """Nothing in a value ends it."""
    found = attached(head(), [Attachment(secret="odd", query="a b", form="<{}>")], SECRETS.__getitem__)
    assert found.target == b"/?a%20b=%3Ca%20b%26c%3Dd%2F%C3%A9%3E"


@pytest.mark.parametrize("secret", ["line", "odd", "missing", "long"])
def test_a_value_that_is_missing_too_long_or_cannot_stand_in_a_field_is_refused(secret: str) -> None:
    """Without being repeated."""
    with pytest.raises(Denied) as caught:
        attached(head(), [Attachment(secret=secret, header="X-Key")], SECRETS.__getitem__)
    assert (caught.value.kind, str(caught.value), caught.value.__suppress_context__) in [
        ("secret", "secret", True),
        ("secret", "secret", False),
    ]


def test_the_values_of_rules_are_those_that_can_be_had() -> None:
    """One that cannot is refused where it is needed, and hides no other one."""
    names = ("missing", "key", "long")
    rule = destination(80, attach=tuple(Attachment(secret=name, query=name) for name in names)).rule
    assert held([rule], SECRETS.__getitem__) == {"key": "canary-value"}


def test_the_longest_value_is_attached() -> None:
    """The control of one that is too long."""
    found = attached(head(), [Attachment(secret="most", header="X-Key")], SECRETS.__getitem__)
    assert found.fields == [(b"X-Key", b"k" * LONGEST)]


def test_an_answer_is_asked_for_whole_and_uncoded() -> None:
    """What would hide a value from the mask is dropped."""
    fields = [(b"Range", b"bytes=0-3"), (b"If-Range", b"x"), (b"accept-encoding", b"gzip"), (b"X", b"1")]
    assert plain_answers(head(fields=fields)).fields == [(b"X", b"1"), (b"Accept-Encoding", b"identity")]
