"""Profile files to ``Profile``: where tools may connect to, with a reason for each place.

Its job: the keys of a profile file, its rules and what they attach, its bounds, its own examples, its certificates.
Not its job: which profile a policy has (``load.py``), the form of a place and matching (``network.py``), values of secrets
(``egress/vault.py``).
Laws:
1. What is not exactly right refuses with file and key; an empty list grants nothing and is told (tests/unit/test_network_profile_files.py).
2. The examples of a profile hold whenever it is read (tests/unit/test_network_profile_files.py).
3. A secret goes to one exact place, on the host's side, in a field that frames nothing (tests/unit/test_network_profile_files.py).
4. Another content of the certificates is another profile (tests/unit/test_network_profile_files.py).
"""

import hashlib
import ipaddress
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from engine.errors import PolicyError
from engine.limits import parse_size, parse_time
from engine.policy.network import NO_NETWORK, Attachment, EgressBounds, Place, Profile, Rule, Transport, place_of
from engine.policy.reading import NAME, amount, file_error, read_bytes, read_document, said, strings, value_of
from engine.policy.secrets import secret_id_problem

_RULES = 64  # each place that is asked for has a listener of its own in the jail
_TRUST_BYTES = 1 << 20  # the certificates of all public authorities are about 250 KiB
_ATTACHED = 8
_NETWORKS = 16
_WIDEST = MappingProxyType({4: 8, 6: 7})  # bits: 10.0.0.0/8 (RFC 1918) and fc00::/7 (RFC 4193) are the widest that are private
_UPSTREAM = 443
_KEYS = ("purpose", "trust", "allow", "bounds", "examples")
_RULE_KEYS = ("to", "reason", "transport", "upstream_port", "private", "attach")
_ATTACH_KEYS = ("secret", "header", "query", "form")
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}")  # RFC 9110 section 5.6.2
_PARAMETER = re.compile(r"[A-Za-z0-9._~-]{1,64}")  # RFC 3986 section 2.3
# of the connection or of the frame of a message (RFC 9110 sections 7.2, 7.6.1, 10.1.1; RFC 9112 section 6): setting one can split requests
_FRAMING = frozenset(
    {"host", "connection", "content-length", "transfer-encoding", "keep-alive", "proxy-connection", "te", "trailer", "upgrade", "expect"}
)
# written by the host's side where something is attached, so that an answer comes whole and can be read
_REWRITTEN = frozenset({"range", "if-range", "accept-encoding"})


def _count(value: object) -> int:
    if type(value) is not int:
        raise PolicyError("refused.policy", f"{value!r} is not a whole number")
    return value


_BOUNDS: Mapping[str, tuple[str, Callable[[object], int]]] = MappingProxyType(
    {
        "connections": ("connections", _count),
        "total": ("total", _count),
        "denials": ("denials", _count),
        "out": ("out_bytes", parse_size),
        "in": ("in_bytes", parse_size),
        "rate": ("rate_bytes", parse_size),
        "connect": ("connect_ms", parse_time),
        "idle": ("idle_ms", parse_time),
    }
)  # as written in a profile -> field of EgressBounds, and how its amount is written


def load_profile(path: Path) -> Profile:
    """The profile in that file. Raises PolicyError naming file and key."""
    document = read_document(path)
    if NAME.fullmatch(path.stem) is None or path.stem == NO_NETWORK.name:
        raise file_error(path, ["a profile is named by a-z, 0-9, '_' and '-', and 'none' is the one without rules"])
    lines = [f"{key}: unknown key; allowed: {', '.join(_KEYS)}" for key in document if key not in _KEYS]
    found: dict[str, Any] = {}
    _try(lines, lambda: said("purpose: it", document.get("purpose")))
    _try(lines, lambda: found.update(rules=_rules(document.get("allow"))))
    _try(lines, lambda: found.update(bounds=_bounds(document.get("bounds", {}))))
    if "trust" in document:
        _try(lines, lambda: found.update(_trust(path, document["trust"])))
    if not lines:
        profile = Profile(name=path.stem, **found)
        _try(lines, lambda: _check_examples(profile, document.get("examples")))
        if not lines:
            return profile
    raise file_error(path, lines)


def _try(lines: list[str], step: Callable[[], object]) -> None:
    """Do one step; its problems go to the list, so that a file's mistakes come all at once."""
    try:
        step()
    except PolicyError as error:
        lines.extend(error.lines)


def _refuse_if(why: object, line: str) -> None:
    if why:
        raise PolicyError("refused.policy", line)


def _closed(key: str, entry: object, allowed: tuple[str, ...], needed: tuple[str, ...]) -> dict[str, Any]:
    """A table with the needed keys and none but the allowed."""
    if not isinstance(entry, dict) or not entry.keys() <= {*allowed} or not {*needed} <= entry.keys():
        raise PolicyError("refused.policy", f"{key}: want a table with {' and '.join(needed)}; allowed: {', '.join(allowed)}")
    return entry


def _rules(written: object) -> tuple[Rule, ...]:
    if not isinstance(written, list) or not written:
        raise PolicyError("refused.policy", 'allow: want at least one [[allow]]; a policy without network says profile = "none"')
    _refuse_if(len(written) > _RULES, f"allow: at most {_RULES} entries")
    lines: list[str] = []
    rules: list[Rule] = []
    for number, entry in enumerate(written, 1):
        _try(lines, lambda number=number, entry=entry: rules.append(_rule(f"allow {number}", entry)))  # type: ignore[misc] # bound at once
    places = [(rule.place, rule.wildcard) for rule in rules]
    lines += sorted({f"allow: {_written(rule)} has two entries" for rule in rules if places.count((rule.place, rule.wildcard)) > 1})
    if lines:
        raise PolicyError("refused.policy", *lines)
    return tuple(rules)


def _written(rule: Rule) -> str:
    return f"*.{rule.place}" if rule.wildcard else str(rule.place)


def _rule(key: str, entry: object) -> Rule:
    table = _closed(key, entry, _RULE_KEYS, ("to", "reason"))
    said(f"{key}: the reason", table["reason"])
    place, wildcard = _to(key, table["to"])
    transport = _transport(key, table.get("transport", Transport.TLS))
    upgrade = transport is Transport.UPGRADE
    for name in ("upstream_port", "attach"):
        _refuse_if(name in table and not upgrade, f'{key}: {name} goes with transport = "upgrade" alone')
    # security: a secret for every name below a wildcard would go to whoever comes to own one of them
    _refuse_if("attach" in table and wildcard, f"{key}: a secret goes to one exact place, not to a wildcard")
    return Rule(
        place=place,
        wildcard=wildcard,
        transport=transport,
        upstream_port=_port(key, table.get("upstream_port", _UPSTREAM)) if upgrade else place.port,
        attach=_attached(f"{key}.attach", table["attach"]) if "attach" in table else (),
        private=_private(f"{key}.private", table["private"]) if "private" in table else (),
    )


def _to(key: str, text: object) -> tuple[Place, bool]:
    wildcard = isinstance(text, str) and text.startswith("*.")
    try:
        place = place_of(text.removeprefix("*.") if isinstance(text, str) else text)
    except ValueError as error:
        raise PolicyError("refused.policy", f"{key}: to: {error}") from None
    _refuse_if(wildcard and place.literal, f"{key}: to: there is nothing below an address")
    return place, wildcard


def _transport(key: str, word: object) -> Transport:
    known = [member.value for member in Transport]
    if not isinstance(word, str) or word not in known:
        raise PolicyError("refused.policy", f"{key}: transport: {word!r} is unknown; allowed: {', '.join(known)}")
    return Transport(word)


def _port(key: str, value: object) -> int:
    if type(value) is not int or not 1 <= value <= 65535:
        raise PolicyError("refused.policy", f"{key}: upstream_port: want a port from 1 to 65535")
    return value


def _private(key: str, value: object) -> tuple[str, ...]:
    texts = strings(key, value)
    _refuse_if(not texts or len(texts) > _NETWORKS, f"{key}: want 1 to {_NETWORKS} networks")
    found = {_network(key, text) for text in texts}
    _refuse_if(len(found) < len(texts), f"{key}: the same network is listed twice")
    return tuple(sorted(found))


def _network(key: str, text: str) -> str:
    try:
        network = ipaddress.ip_network(text, strict=True)
    except ValueError:
        raise PolicyError(
            "refused.policy", f"{key}: {text!r} is no network such as 10.1.2.0/24, or has bits set behind its length"
        ) from None
    # security: a zone id is dropped by one parser and kept by another; a network of everything would turn the vetting off
    _refuse_if("%" in text, f"{key}: a network has no zone")
    shortest = _WIDEST[network.version]
    _refuse_if(network.prefixlen < shortest, f"{key}: {text} is wider than any private network: /{shortest} at the least")
    return str(network)


def _attached(key: str, value: object) -> tuple[Attachment, ...]:
    if not isinstance(value, list) or not 1 <= len(value) <= _ATTACHED:
        raise PolicyError("refused.policy", f"{key}: want a list of 1 to {_ATTACHED} tables")
    found = tuple(_attachment(key, entry) for entry in value)
    fields = [_same(one.header) if one.header is not None else f"?{one.query}" for one in found]
    _refuse_if(len({*fields}) < len(fields), f"{key}: two secrets for one header or query parameter")
    return found


def _same(header: str) -> str:
    """Names with one of these are one header to some servers."""
    return header.lower().replace("_", "-")


def _attachment(key: str, entry: object) -> Attachment:
    table = _closed(key, entry, _ATTACH_KEYS, ("secret",))
    if (problem := secret_id_problem(table["secret"])) is not None:
        raise PolicyError("refused.policy", f"{key}: secret: {problem}")
    _refuse_if(("header" in table) == ("query" in table), f"{key}: want a header or a query parameter, one of both")
    header, query, form = table.get("header"), table.get("query"), table.get("form", "{}")
    if "header" in table:
        good = isinstance(header, str) and _TOKEN.fullmatch(header) is not None
        _refuse_if(not good, f"{key}: header: want the name of a header (RFC 9110)")
        # security: another Host or length would send the request, or half of it, to somebody else with the secret in it
        _refuse_if(good and _same(str(header)) in _FRAMING, f"{key}: header: this one belongs to the connection and carries no secret")
        _refuse_if(good and _same(str(header)) in _REWRITTEN, f"{key}: header: this one is written anew after secrets are attached")
    else:
        good = isinstance(query, str) and _PARAMETER.fullmatch(query) is not None
        _refuse_if(not good, f"{key}: query: want the name of a parameter: letters, digits and . _ ~ -")
    plain = isinstance(form, str) and form.isascii() and form.isprintable() and len(form) <= 256
    whole = plain and form.count("{}") == 1 and form.count("{") == form.count("}") == 1
    _refuse_if(not whole, f"{key}: form: want at most 256 printable ASCII characters with one {{}} in the secret's place")
    return Attachment(secret=table["secret"], header=header, query=query, form=form)


def _bounds(written: object) -> EgressBounds:
    if not isinstance(written, dict):
        raise PolicyError("refused.policy", "bounds: want a table of entries")
    lines = [f"bounds.{key}: unknown key; allowed: {', '.join(_BOUNDS)}" for key in written if key not in _BOUNDS]
    found: dict[str, int] = {}
    for key, entry in written.items():
        if key in _BOUNDS:
            _try(lines, lambda key=key, entry=entry: found.update(_bound(key, entry)))  # type: ignore[misc] # bound at once
    if lines:
        raise PolicyError("refused.policy", *lines)
    return EgressBounds(**found)


def _bound(key: str, entry: object) -> dict[str, int]:
    field, parse = _BOUNDS[key]
    value = amount(f"bounds.{key}", value_of(f"bounds.{key}", entry), parse)
    try:
        EgressBounds(**{field: value})  # 0, negative and absurd amounts refuse there
    except PolicyError as error:
        raise PolicyError("refused.policy", *(line.replace(f"bounds.{field}", f"bounds.{key}") for line in error.lines)) from None
    return {field: value}


def _trust(path: Path, entry: object) -> dict[str, str]:
    """The certificates in place of the system's: where they lie, and what they are."""
    name = value_of("trust", entry)
    if not isinstance(name, str) or not name.isprintable() or not name:
        raise PolicyError("refused.policy", "trust: want the path of a file of certificates, from this file's folder")
    file = Path(os.path.realpath(path.parent / name))
    data = read_bytes(file, _TRUST_BYTES)
    _refuse_if(b"-----BEGIN CERTIFICATE-----" not in data, f"trust: {file} holds no certificate in PEM form")
    # security: tools can read this file; a key beside its certificate is a common way to keep both
    _refuse_if(b"PRIVATE KEY-----" in data, f"trust: {file} holds a private key, and tools are shown this file")
    return {"trust": str(file), "trust_digest": f"sha256:{hashlib.sha256(data).hexdigest()}"}


def _check_examples(profile: Profile, written: object) -> None:
    table = _closed("examples", written, ("allowed", "denied"), ("allowed", "denied"))
    lines: list[str] = []
    for word in ("allowed", "denied"):
        key = f"examples.{word}"
        texts = strings(key, table[word])
        lines += [] if texts else [f"{key}: want at least one place, so that the rules are tried"]
        for text in texts:
            _try(lines, lambda key=key, text=text: _check_example(profile, key, text))  # type: ignore[misc] # bound at once
    if lines:
        raise PolicyError("refused.policy", *lines)


def _check_example(profile: Profile, key: str, text: str) -> None:
    try:
        granted = profile.rule_for(place_of(text)) is not None
    except ValueError as error:
        raise PolicyError("refused.policy", f"{key}: {text!r} is no place: {error}") from None
    _refuse_if(granted is not key.endswith(".allowed"), f"{key}: {text} is {'allowed' if granted else 'denied'} by these rules")
