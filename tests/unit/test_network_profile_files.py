"""Profile files: what one may say, what refuses, and with which words."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.errors import PolicyError
from engine.places import data_dir
from engine.policy.network import Attachment, EgressBounds, Profile, Rule, Transport, place_of
from engine.policy.profiles import load_profile

HEAD = 'purpose = "p"\n'
TAIL = '[examples]\nallowed = ["a.com:443"]\ndenied = ["b.com:443"]\n'
ALLOW = '[[allow]]\nto = "a.com:443"\nreason = "r"\n'
UPGRADE = ALLOW + 'transport = "upgrade"\n'
CERTIFICATE = "-----BEGIN CERTIFICATE-----\nMAo=\n-----END CERTIFICATE-----\n"


def rule(to: str, *, wildcard: bool = False, **fields: Any) -> Rule:
    """A rule about that place."""
    place = place_of(to)
    return Rule(place=place, wildcard=wildcard, upstream_port=place.port, **fields)


def read(folder: Path, text: str) -> Profile:
    """The profile of this text."""
    (folder / "own.toml").write_text(text)
    return load_profile(folder / "own.toml")


def lines_of(folder: Path, text: str) -> tuple[str, ...]:
    """The lines, without the file's folder, with which a profile of this text refuses."""
    with pytest.raises(PolicyError) as caught:
        read(folder, text)
    assert caught.value.code == "refused.policy"
    return tuple(line.replace(f"{folder}/", "") for line in caught.value.lines)


def test_everything_a_profile_can_say_is_read(tmp_path: Path) -> None:
    """The control of all refusals below: a file with every kind of entry."""
    (tmp_path / "ca.pem").write_text(CERTIFICATE)
    profile = read(
        tmp_path,
        """
        purpose = "all of it"
        trust = { value = "./ca.pem", reason = "r" }
        [[allow]]
        to = "A.com.:443"
        reason = "r"
        [[allow]]
        to = "*.b.com:80"
        reason = "r"
        transport = "http"
        private = ["10.1.2.0/24", "192.168.0.1", "fd00::/8"]
        [[allow]]
        to = "c.com:80"
        reason = "r"
        transport = "upgrade"
        upstream_port = 8443
        attach = [{ secret = "orders", header = "Authorization", form = "Bearer {}" }, { secret = "shop", query = "key" }]
        [[allow]]
        to = "d.com:80"
        reason = "r"
        transport = "upgrade"
        [[allow]]
        to = "10.9.9.9:5432"
        reason = "r"
        [bounds]
        connections = { value = 1, reason = "r" }
        total = { value = 2, reason = "r" }
        denials = { value = 3, reason = "r" }
        out = { value = "4 KiB", reason = "r" }
        in = { value = "5 KiB", reason = "r" }
        rate = { value = "6 KiB", reason = "r" }
        connect = { value = "7 ms", reason = "r" }
        idle = { value = "8 s", reason = "r" }
        [examples]
        allowed = ["a.com:443", "x.b.com:80", "10.9.9.9:5432"]
        denied = ["b.com:80", "a.com:80", "10.9.9.8:5432"]
        """,
    )
    attach = (Attachment(secret="orders", header="Authorization", form="Bearer {}"), Attachment(secret="shop", query="key"))
    c, d = place_of("c.com:80"), place_of("d.com:80")
    assert profile == Profile(
        name="own",
        rules=(
            rule("a.com:443"),
            rule("b.com:80", wildcard=True, transport=Transport.HTTP, private=("10.1.2.0/24", "192.168.0.1/32", "fd00::/8")),
            Rule(place=c, transport=Transport.UPGRADE, upstream_port=8443, attach=attach),
            Rule(place=d, transport=Transport.UPGRADE, upstream_port=443),
            rule("10.9.9.9:5432"),
        ),
        bounds=EgressBounds(connections=1, total=2, denials=3, out_bytes=4096, in_bytes=5120, rate_bytes=6144, connect_ms=7, idle_ms=8000),
        trust=str(tmp_path / "ca.pem"),
        trust_digest=profile.trust_digest,
    )


def test_what_a_profile_does_not_say_is_the_default(tmp_path: Path) -> None:
    """The smallest profile there is."""
    assert read(tmp_path, HEAD + ALLOW + TAIL) == Profile(name="own", rules=(rule("a.com:443"),))


ENTRY = "allow 1: want a table with to and reason; allowed: to, reason, transport, upstream_port, private, attach"
NO_ALLOW = 'allow: want at least one [[allow]]; a policy without network says profile = "none"'
STAR = "allow 1: to: wildcards are for profiles, and there only with their loosening: name each host"
LABELS = "allow 1: to: want a name of at least two labels whose last one begins with a letter; short forms of addresses are none"
ID = "allow 1.attach: secret: a name is a-z, then up to 63 of a-z, 0-9 and '_'; it stands on receipts, so it is never the secret itself"
FIELD = "allow 1.attach: header: want the name of a header (RFC 9110)"
PARAMETER = "allow 1.attach: query: want the name of a parameter: letters, digits and . _ ~ -"
FORM = "allow 1.attach: form: want at most 256 printable ASCII characters with one {} in the secret's place"
FRAME = "allow 1.attach: header: this one belongs to the connection and carries no secret"
REWRITTEN = "allow 1.attach: header: this one is written anew after secrets are attached"
ONE = "allow 1.attach: want a header or a query parameter, one of both"


def attach(entry: str) -> str:
    """A whole profile whose rule attaches this."""
    return HEAD + UPGRADE + f"attach = [{entry}]\n" + TAIL


def no_network(text: str) -> str:
    """The line about a private network that is none."""
    return f"allow 1.private: {text!r} is no network such as 10.1.2.0/24, or has bits set behind its length"


def to(text: str) -> str:
    """A whole profile whose rule is about this."""
    return HEAD + f'[[allow]]\nto = "{text}"\nreason = "r"\n' + TAIL


def bound(entry: str) -> str:
    """A whole profile with this bound."""
    return HEAD + ALLOW + f"[bounds]\n{entry}\n" + TAIL


def examples(allowed: str, denied: str) -> str:
    """A whole profile with these examples."""
    return HEAD + ALLOW + f"[examples]\nallowed = {allowed}\ndenied = {denied}\n"


def allow(*lines: str) -> str:
    """A whole profile whose rule has these further lines."""
    return HEAD + ALLOW + "\n".join(lines) + "\n" + TAIL


@pytest.mark.parametrize(
    ("text", "line"),
    [
        # nothing said is nothing granted, and told
        ("", NO_ALLOW),
        (HEAD + TAIL, NO_ALLOW),
        (HEAD + "allow = []\n" + TAIL, NO_ALLOW),
        (HEAD + 'allow = "*"\n' + TAIL, NO_ALLOW),
        (HEAD + "allow = true\n" + TAIL, NO_ALLOW),
        (HEAD + "[allow]\n" + TAIL, NO_ALLOW),
        (HEAD + 'allow = ["a.com:443"]\n' + TAIL, ENTRY),
        (HEAD + "allow = [{}]\n" + TAIL, ENTRY),
        (HEAD + "[[alow]]\n" + ALLOW + TAIL, "alow: unknown key; allowed: purpose, trust, allow, bounds, examples"),
        (HEAD + "network = true\n" + ALLOW + TAIL, "network: unknown key; allowed: purpose, trust, allow, bounds, examples"),
        (ALLOW + TAIL, "purpose: it must say in words why"),
        ('purpose = " "\n' + ALLOW + TAIL, "purpose: it must say in words why"),
        # one rule
        (HEAD + '[[allow]]\nto = "a.com:443"\n' + TAIL, ENTRY),
        (HEAD + '[[allow]]\nto = "a.com:443"\nreason = ""\n' + TAIL, "allow 1: the reason must say in words why"),
        (to(""), "allow 1: to: want 'host.name:port' with a port from 1 to 65535"),
        (to("*:443"), STAR),
        (to("*.*.com:443"), STAR),
        (to("*.com:443"), LABELS),
        (to("*.10.0.0.1:443"), "allow 1: to: there is nothing below an address"),
        (to("a.com\\u0000:443"), "allow 1: to: a host's name has neither blanks nor characters that are not printed"),
        (HEAD + "[[allow]]\nto = 443\nreason = 'r'\n" + TAIL, "allow 1: to: want 'host.name:port' with a port from 1 to 65535"),
        (allow("port = 443"), ENTRY),
        (HEAD + ALLOW + '[[allow]]\nto = "A.COM.:443"\nreason = "r"\n' + TAIL, "allow: a.com:443 has two entries"),
        (HEAD + ALLOW + "".join(f'[[allow]]\nto = "a{n}.com:443"\nreason = "r"\n' for n in range(64)) + TAIL, "allow: at most 64 entries"),
        # how it is carried
        (allow('transport = "tcp"'), "allow 1: transport: 'tcp' is unknown; allowed: tls, http, upgrade"),
        (allow("transport = false"), "allow 1: transport: False is unknown; allowed: tls, http, upgrade"),
        (allow("upstream_port = 443"), 'allow 1: upstream_port goes with transport = "upgrade" alone'),
        (allow('transport = "http"', "upstream_port = 443"), 'allow 1: upstream_port goes with transport = "upgrade" alone'),
        (allow('transport = "upgrade"', "upstream_port = 0"), "allow 1: upstream_port: want a port from 1 to 65535"),
        (allow('transport = "upgrade"', "upstream_port = true"), "allow 1: upstream_port: want a port from 1 to 65535"),
        (allow('transport = "upgrade"', "upstream_port = 65536"), "allow 1: upstream_port: want a port from 1 to 65535"),
        # private networks
        (allow("private = []"), "allow 1.private: want 1 to 16 networks"),
        (allow("private = true"), "allow 1.private: want a list of non-empty texts; [] grants nothing"),
        (allow("private = [10]"), "allow 1.private: want a list of non-empty texts; [] grants nothing"),
        (allow('private = ["10.1.2.3/24"]'), no_network("10.1.2.3/24")),
        (allow('private = ["10.1.2/24"]'), no_network("10.1.2/24")),
        (allow('private = ["db.internal"]'), no_network("db.internal")),
        (allow('private = ["fe80::1%eth0"]'), "allow 1.private: a network has no zone"),
        (allow('private = ["0.0.0.0/0"]'), "allow 1.private: 0.0.0.0/0 is wider than any private network: /8 at the least"),
        (allow('private = ["::/0"]'), "allow 1.private: ::/0 is wider than any private network: /7 at the least"),
        (allow('private = ["10.0.0.1", "10.0.0.1/32"]'), "allow 1.private: the same network is listed twice"),
        # what is attached
        (allow('attach = [{ secret = "a", header = "X" }]'), 'allow 1: attach goes with transport = "upgrade" alone'),
        (allow('transport = "http"', 'attach = [{ secret = "a", header = "X" }]'), 'allow 1: attach goes with transport = "upgrade" alone'),
        (
            HEAD + UPGRADE.replace("a.com", "*.a.com") + 'attach = [{ secret = "a", header = "X" }]\n' + TAIL,
            "allow 1: a secret goes to one exact place, not to a wildcard",
        ),
        (HEAD + UPGRADE + "attach = []\n" + TAIL, "allow 1.attach: want a list of 1 to 8 tables"),
        (attach('"a"'), "allow 1.attach: want a table with secret; allowed: secret, header, query, form"),
        (attach('{ header = "X" }'), "allow 1.attach: want a table with secret; allowed: secret, header, query, form"),
        (attach('{ secret = "a", heder = "X" }'), "allow 1.attach: want a table with secret; allowed: secret, header, query, form"),
        (attach('{ secret = "a" }'), ONE),
        (attach('{ secret = "a", header = "X", query = "x" }'), ONE),
        (attach('{ secret = "sk-hunter2", header = "X" }'), ID),
        *((attach(f'{{ secret = "a", header = "{name}" }}'), FIELD) for name in ("", "X Y", "X:", "X\\r\\nHost", "X\\u0000", "Ä")),
        *(
            (attach(f'{{ secret = "a", header = "{name}" }}'), FRAME)
            for name in ("Host", "hOST", "Content-Length", "Content_Length", "Transfer-Encoding", "Connection", "TE", "Upgrade")
        ),
        *((attach(f'{{ secret = "a", header = "{name}" }}'), REWRITTEN) for name in ("Range", "if-range", "If_Range", "Accept-Encoding")),
        *((attach(f'{{ secret = "a", query = "{name}" }}'), PARAMETER) for name in ("", "a&b", "a=b", "a b", "a#")),
        *(
            (attach(f'{{ secret = "a", header = "X", form = "{form}" }}'), FORM)
            for form in ("", "Bearer", "{}{}", "{0}", "{} {x}", "{}\\r\\nHost: b", "{}\\u0000", "é{}")
        ),
        (
            attach('{ secret = "a", header = "X" }, { secret = "b", header = "x" }'),
            "allow 1.attach: two secrets for one header or query parameter",
        ),
        (
            attach('{ secret = "a", header = "X-Key" }, { secret = "b", header = "x_key" }'),
            "allow 1.attach: two secrets for one header or query parameter",
        ),
        # bounds
        (bound("size = 1"), "bounds.size: unknown key; allowed: connections, total, denials, out, in, rate, connect, idle"),
        (bound("total = 1"), 'bounds.total: want { value = ..., reason = "..." } with these two keys and no other'),
        (bound('total = { value = 1, reason = "" }'), "bounds.total: the reason must say in words why"),
        (bound('total = { value = 0, reason = "r" }'), "bounds.total: want a whole number from 1 to 1048576"),
        (bound('total = { value = "all", reason = "r" }'), "bounds.total: 'all' is not a whole number"),
        (bound('out = { value = "0", reason = "r" }'), f"bounds.out: want a whole number from 1 to {1 << 50}"),
        (bound('idle = { value = 30, reason = "r" }'), "bounds.idle: 30 is not a time such as '200 ms', '30 s' or '2 min'"),
        # examples
        (HEAD + ALLOW, "examples: want a table with allowed and denied; allowed: allowed, denied"),
        (
            HEAD + ALLOW + '[examples]\nallowed = ["a.com:443"]\n',
            "examples: want a table with allowed and denied; allowed: allowed, denied",
        ),
        (examples("[]", '["b.com:1"]'), "examples.allowed: want at least one place, so that the rules are tried"),
        (examples('["a.com:443"]', "[]"), "examples.denied: want at least one place, so that the rules are tried"),
        (examples('["a.com:80"]', '["b.com:1"]'), "examples.allowed: a.com:80 is denied by these rules"),
        (examples('["a.com:443"]', '["A.com:443"]'), "examples.denied: A.com:443 is allowed by these rules"),
        (examples('["a.com:443"]', '["b.com"]'), "examples.denied: 'b.com' is no place: want 'host.name:port' with a port from 1 to 65535"),
    ],
)
def test_what_is_not_exactly_right_refuses(tmp_path: Path, text: str, line: str) -> None:
    """A mistake is answered with file, key and what would be right; no mistake opens anything."""
    lines = lines_of(tmp_path, text)
    assert (f"own.toml: {line}" in lines, [found for found in lines if "hunter2" in found]) == (True, [])


def test_all_mistakes_of_a_profile_come_at_once(tmp_path: Path) -> None:
    """One line per problem, of each rule too."""
    text = 'x = 1\n[[allow]]\nto = "a"\nreason = "r"\n[[allow]]\nto = "b"\nreason = "r"\n[bounds]\nx = 1\ntotal = 1\n'
    assert [line.split(": ")[1] for line in lines_of(tmp_path, text)] == ["x", "purpose", "allow 1", "allow 2", "bounds.x", "bounds.total"]


def test_a_wildcard_and_an_exact_rule_of_one_name_stand_together(tmp_path: Path) -> None:
    """They are about different places."""
    text = HEAD + ALLOW + ALLOW.replace("a.com", "*.a.com") + TAIL
    assert read(tmp_path, text).rules == (rule("a.com:443"), rule("a.com:443", wildcard=True))


@pytest.mark.parametrize("name", ["none", "Own", "own profile", "-own"])
def test_a_profile_has_a_plain_name_of_its_own(tmp_path: Path, name: str) -> None:
    """``none`` is the profile without rules, whatever a file of that name would say."""
    (tmp_path / f"{name}.toml").write_text(HEAD + ALLOW + TAIL)
    with pytest.raises(PolicyError) as caught:
        load_profile(tmp_path / f"{name}.toml")
    assert caught.value.lines[0].endswith("a profile is named by a-z, 0-9, '_' and '-', and 'none' is the one without rules")


TRUSTING = HEAD + 'trust = { value = "./ca.pem", reason = "r" }\n' + ALLOW + TAIL


def test_other_certificates_are_another_profile(tmp_path: Path) -> None:
    """The path is the same, the content is not; the control reads the same twice."""
    (tmp_path / "ca.pem").write_text(CERTIFICATE)
    first, again = read(tmp_path, TRUSTING), read(tmp_path, TRUSTING)
    (tmp_path / "ca.pem").write_text(CERTIFICATE.replace("MAo=", "MAs="))
    changed = read(tmp_path, TRUSTING)
    assert (first.data() == again.data(), first.trust == changed.trust, first.data() == changed.data()) == (True, True, False)


def test_the_certificates_path_is_absolute_and_without_links(tmp_path: Path) -> None:
    """It is what was read, from wherever the engine was started."""
    (tmp_path / "real").mkdir()
    (tmp_path / "real/ca.pem").write_text(CERTIFICATE)
    (tmp_path / "ca.pem").symlink_to("real/ca.pem")
    assert read(tmp_path, TRUSTING).trust == str(tmp_path / "real/ca.pem")


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda path: None, "ca.pem: cannot be read: No such file or directory"),
        (os.mkfifo, "ca.pem: is not a regular file"),
        (Path.mkdir, "ca.pem: is not a regular file"),
        (lambda path: path.symlink_to("/dev/zero"), "/dev/zero: is not a regular file"),
        (lambda path: path.symlink_to(path), "ca.pem: cannot be read: Too many levels of symbolic links"),
        (lambda path: path.write_text(""), "trust: ca.pem holds no certificate in PEM form"),
        (lambda path: path.write_text(CERTIFICATE + " " * (1 << 20)), "ca.pem: is larger than 1048576 bytes"),
        (
            lambda path: path.write_text(CERTIFICATE + "-----BEGIN EC PRIVATE KEY-----\n"),
            "trust: ca.pem holds a private key, and tools are shown this file",
        ),
    ],
)
def test_what_is_no_file_of_certificates_refuses(tmp_path: Path, make: Callable[[Path], object], line: str) -> None:
    """Nothing that would hang the engine is read, and no key is shown to tools."""
    make(tmp_path / "ca.pem")
    assert lines_of(tmp_path, TRUSTING) == (f"own.toml: {line}",)


@pytest.mark.parametrize("value", ["true", '""', "[]", '"a\\u0000b"', '"a\\nb"'])
def test_a_path_that_is_none_refuses(tmp_path: Path, value: str) -> None:
    """Empty, of another type, or not printable."""
    assert lines_of(tmp_path, TRUSTING.replace('"./ca.pem"', value)) == (
        "own.toml: trust: want the path of a file of certificates, from this file's folder",
    )


def test_the_shipped_profile_opens_nothing_more(tmp_path: Path) -> None:
    """It can be read, needs no loosening, and writes the default bounds down."""
    profile = load_profile(data_dir("policies") / "network" / "example.toml")
    assert (profile.name, profile.loosenings, profile.bounds, profile.trust) == ("example", frozenset(), EgressBounds(), None)
