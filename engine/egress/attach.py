"""Secrets that the host's side adds to a request, so that the tool never holds them.

Its job: a head with the attachments of its rule.
Not its job: taking them out of the answer (``mask.py``), holding them (``vault.py``).
Laws:
1. A field or parameter that is attached has one value, the attached one, whatever the tool sent (tests/unit/test_egress_attach.py).
2. A value that is too long or cannot stand in a field is refused, and no error repeats it (tests/unit/test_egress_attach.py).
"""

import contextlib
import dataclasses
import re
import urllib.parse
from collections.abc import Callable, Iterable

from engine.egress.fields import Head
from engine.egress.traffic import Denied
from engine.policy.network import Attachment, Rule

LONGEST = 4096  # characters of a value; every call of a rule pays for the spellings of all that it attaches
_FIELD = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")


def attached(head: Head, attach: Iterable[Attachment], secret: Callable[[str], str]) -> Head:
    """The head with all of them. Raises Denied."""
    for one in attach:
        try:
            found = secret(one.secret)
        except LookupError:
            raise Denied("secret") from None
        if len(found) > LONGEST:
            raise Denied("secret")
        value = one.form.replace("{}", found)
        if one.header is not None:
            head = _with_field(head, one.header, value)
        if one.query is not None:
            head = _with_parameter(head, one.query, value)
    return head


def held(rules: Iterable[Rule], secret: Callable[[str], str]) -> dict[str, str]:
    """The values that those rules attach, by id. Those that cannot be had, or are too long, are refused where they are needed."""
    found = {}
    for name in {one.secret for rule in rules for one in rule.attach}:
        with contextlib.suppress(LookupError):
            found[name] = secret(name)
    return {name: value for name, value in found.items() if len(value) <= LONGEST}


def plain_answers(head: Head) -> Head:
    """The head asking for an answer that can be read as it is, in one piece."""
    # security: a part of an answer, or a coded one, would show a secret to whoever puts it together again
    dropped = {b"accept-encoding", b"range", b"if-range"}
    kept = [(name, value) for name, value in head.fields if name.lower() not in dropped]
    return dataclasses.replace(head, fields=[*kept, (b"Accept-Encoding", b"identity")])


def _with_field(head: Head, name: str, value: str) -> Head:
    if _FIELD.fullmatch(value) is None:
        raise Denied("secret")
    # security: many servers take "X_Key" for "X-Key", and then the tool's for the attached one
    kept = [(key, was) for key, was in head.fields if _same(key) != _same(name.encode("ascii"))]
    return dataclasses.replace(head, fields=[*kept, (name.encode("ascii"), value.encode("ascii"))])


def _same(name: bytes) -> bytes:
    return name.lower().replace(b"_", b"-")


def _with_parameter(head: Head, name: str, value: str) -> Head:
    path, _, query = head.target.partition(b"?")
    # some servers part parameters at semicolons too
    kept = [pair for part in query.split(b"&") if (pair := _without(part, name))]
    pair = f"{urllib.parse.quote(name, safe='')}={urllib.parse.quote(value, safe='')}".encode("ascii")
    return dataclasses.replace(head, target=path + b"?" + b"&".join([*kept, pair]))


def _without(part: bytes, name: str) -> bytes:
    return b";".join(one for one in part.split(b";") if urllib.parse.unquote_plus(one.partition(b"=")[0].decode("latin-1")) != name)
