"""The shapes of values: how strictly the table is read, what the shipped ones find, and what they leave alone.

No literal here is a whole token: each is put together, so that whoever scans this repository finds nothing.
"""

import base64
import random
import re
import string
import sysconfig
import uuid
from collections.abc import Iterator
from pathlib import Path

import msgpack
import pytest

from engine.errors import PolicyError
from engine.policy.shapes import Starts, ValueShape, ValueShapes, load_shapes
from engine.results.redact import Watch

POLICIES = Path("policies")
SHAPES = load_shapes(POLICIES)
WATCH = Watch({}, SHAPES)
RANDOM = random.Random(5)
ALNUM = string.ascii_letters + string.digits
GOOD = '{ value = ["canary-"], starts = "word", follows = "[a-f0-9]{20,40}", certain = true, reason = "a test" }'


def run(letters: str, count: int) -> str:
    return "".join(RANDOM.choice(letters) for _ in range(count))


def pem(kind: str) -> str:
    head = kind + "PRIVATE KEY" + "-----"
    return "-----BEGIN " + head + "\n" + base64.encodebytes(RANDOM.randbytes(200)).decode() + "-----END " + head


URL = ALNUM + "_-"
TOKENS = {
    "anthropic": "sk-" + "ant-api03-" + run(URL, 93),
    "openai": "sk-" + "proj-" + run(URL, 80),
    "openai_user": "sk-" + run(ALNUM, 48),
    "google": "AI" + "za" + run(URL, 35),
    "aws": "AK" + "IA" + run("ABCDEFGHIJKLMNOPQRSTUVWXYZ234567", 16),
    "github": "gh" + "p_" + run(ALNUM, 36),
    "github_fine": "github" + "_pat_" + run(ALNUM, 22) + "_" + run(ALNUM, 59),
    "gitlab": "gl" + "pat-" + run(URL, 20),
    "slack": "xo" + "xb-" + run(string.digits, 12) + "-" + run(ALNUM, 24),
    "stripe": "sk" + "_live_" + run(ALNUM, 24),
    "npm": "np" + "m_" + run(ALNUM, 36),
    "pypi": "py" + "pi-AgEIcHlwaS5vcmc" + run(URL, 100),
    "huggingface": "h" + "f_" + run(string.ascii_letters, 34),
    "sendgrid": "S" + "G." + run(URL, 22) + "." + run(URL, 43),
    "twilio": "S" + "K" + run("0123456789abcdef", 32),
    "age": "AGE-" + "SECRET-KEY-1" + run("QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L", 58),
    "private_key": pem("RSA ").partition("\n-----END")[0],
    "private_key_locked": "Proc-"
    + "Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,0123\n\n"
    + base64.encodebytes(RANDOM.randbytes(200)).decode(),
    "key_file": 'private_key"' + ': "' + run(ALNUM, 64),
    "jwt": "ey" + "J" + run(URL, 30) + ".ey" + "J" + run(URL, 80) + "." + run(URL, 43),
    "url_password": ":" + "//admin:" + run(ALNUM, 12) + "@",
}


def shapes_in(data: bytes) -> list[str]:
    return [hit.id.removeprefix("shape:") for hit in WATCH.look(data)]


def load(folder: Path, text: str) -> ValueShapes:
    (folder / "denied_secrets.toml").write_text(text)
    return load_shapes(folder)


def test_every_shipped_shape_has_a_token_here() -> None:
    """A shape without an example is one that nobody tried."""
    assert TOKENS.keys() == {shape.id for shape in SHAPES.shapes}


@pytest.mark.parametrize("name", TOKENS)
def test_a_token_is_found_whole_and_by_its_shape_alone(name: str) -> None:
    """In quotes, at the start, behind an equals sign; in JSON after an escape; in a frame behind a length of any size."""
    token = TOKENS[name].encode()
    for before, after in ((b"", b""), (b'{"a": "', b'"}'), (b"key=", b"\n"), (b"a\\n", b'"'), (b"a%3d", b"&"), (b"a\\u000a", b'"')):
        hits = WATCH.look(before + token + after)
        assert [(hit.id, hit.start) for hit in hits] == [(f"shape:{name}", len(before))]
        assert hits[0].end >= len(before + token)
    for length in (0, 50, 77, 300, 0x4141, 70_000):
        text = token.decode() + " " * length
        packed = msgpack.packb([text])
        assert (name, shapes_in(packed)) == (name, [name])


@pytest.mark.parametrize("name", sorted(TOKENS.keys() - {"key_file", "url_password", "age"}))
def test_a_token_inside_a_word_is_none(name: str) -> None:
    """A letter, a digit or a dash before its beginning: it is a part of something else."""
    for before in (b"x", b"7", b"_", b"-"):
        assert shapes_in(before + TOKENS[name].encode()) == []


@pytest.mark.parametrize("name", TOKENS)
def test_the_beginning_of_a_token_is_none(name: str) -> None:
    """Documentation names the beginnings; so does this project."""
    shape = next(shape for shape in SHAPES.shapes if shape.id == name)
    assert shapes_in(b" ".join(prefix.encode() for prefix in shape.prefixes) + b" ... ") == []


@pytest.mark.parametrize("letters", ["x", "X", "a", "0", "A2", "abcde", "12345"])
def test_a_placeholder_is_none(letters: str) -> None:
    """What documentation writes in place of a key has up to five different characters; with six it could be one."""
    certain = {name: token for name, token in TOKENS.items() if any(shape.id == name and shape.certain for shape in SHAPES.shapes)}
    for name in ("anthropic", "github", "stripe", "huggingface", "aws"):
        prefix = next(shape.prefixes[0] for shape in SHAPES.shapes if shape.id == name)
        assert (name, shapes_in((prefix + letters * 40)[: len(certain[name])].encode())) == (name, [])
    assert shapes_in(b"gh" + b"p_" + b"abcdef" * 6) == ["github"]


def test_the_examples_that_aws_publishes_are_none() -> None:
    """Exactly these, and no other that ends like them."""
    examples = ["AK" + "IAIOSFODNN7EXAMPLE", "AS" + "IAIOSFODNN7EXAMPLE", "AK" + "IAI44QH8DHBEXAMPLE"]
    assert [shapes_in(f"key = '{text}'".encode()) for text in examples] == [[]] * 3
    assert shapes_in(b"AK" + b"IAIOSFODNM7EXAMPLE") == ["aws"]


def _texts() -> Iterator[tuple[str, bytes]]:
    library = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(library.rglob("*.py")):
        if not {"site-packages", "test", "tests", "idle_test", "__pycache__"} & {*path.relative_to(library).parts}:
            yield f"library/{path.relative_to(library)}", path.read_bytes()
    for folder in ("engine", "worker_images", "policies", "tests", "bench", "requirements"):
        for path in sorted(Path(folder).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                yield str(path), path.read_bytes()


@pytest.mark.slow
def test_no_certain_shape_stands_in_ordinary_sources() -> None:
    """The sources of the standard library and of this project."""
    found = [(name, hit.id) for name, data in _texts() for hit in WATCH.look(data) if hit.certain]
    assert found == []


@pytest.mark.slow
def test_no_shape_stands_in_what_programs_make() -> None:
    """Base64 of both alphabets, digests, UUIDs and bytes, two megabytes of each, always the same ones."""
    source = random.Random(7)
    noise = source.randbytes(2 << 20)
    ids = "\n".join(str(uuid.UUID(int=source.getrandbits(128))) for _ in range(50_000))
    for data in (
        noise,
        base64.b64encode(noise),
        base64.urlsafe_b64encode(noise),
        base64.encodebytes(noise),
        noise.hex().encode(),
        ids.encode(),
    ):
        assert [hit.id for hit in WATCH.look(data)] == []


def test_the_table_is_read_as_it_is_written(tmp_path: Path) -> None:
    """The control: one good entry, and its data for digests."""
    shapes = load(tmp_path, f"[value]\nmade = {GOOD}\n")
    expected = ValueShape(id="made", prefixes=("canary-",), starts=Starts.WORD, follows="[a-f0-9]{20,40}", certain=True)
    assert shapes == ValueShapes(shapes=(expected,))
    assert shapes.data() == {"made": {"prefixes": ["canary-"], "starts": "word", "follows": "[a-f0-9]{20,40}", "certain": True}}
    assert (expected.longest, expected.reach, expected.needs) == (47, 27, b"")


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        (
            GOOD.replace(', reason = "a test"', ""),
            "value.made: want { value = [...], starts, follows, certain, reason }, these keys and no other",
        ),
        (GOOD.replace("reason", "why"), "value.made: want { value = [...], starts, follows, certain, reason }, these keys and no other"),
        (GOOD.replace("{ ", "{ x = 1, "), None),
        (GOOD.replace("a test", " "), "value.made: the reason must say in words why"),
        (GOOD.replace('["canary-"]', "[]"), "value.made: follows: want classes"),
        (GOOD.replace('["canary-"]', '["canary-", "canary-"]'), "value.made: the same text is listed twice"),
        (GOOD.replace('["canary-"]', '"canary-"'), "value.made: want a list of non-empty texts; [] grants nothing"),
        (GOOD.replace("canary-", "c"), "value.made: a beginning is 2 to 128 printable ASCII characters"),
        (GOOD.replace("canary-", "canäry-"), "value.made: a beginning is 2 to 128 printable ASCII characters"),
        (GOOD.replace('"word"', '"line"'), "value.made: starts: want one of anywhere, word, alone"),
        (GOOD.replace("true", "1"), "value.made: certain: want true or false"),
        (GOOD.replace('"[a-f0-9]{20,40}"', "20"), "value.made: follows: want a pattern"),
        *(
            (GOOD.replace("[a-f0-9]{20,40}", bad), "value.made: follows: want classes with bounds")
            for bad in (
                "",
                "[a-f]+",
                "[a-f]*",
                "[a-f]{20,}",
                "[a-f]{20}",
                "([a-f]{2,4}){2,4}",
                "a|b",
                "[a-f]{20,40}?",
                ".*",
                "[a-f]{20,40}$",
                "[[a]]{20,40}",
                "^a",
                "(?=a)",
            )
        ),
        *((GOOD.replace("a-f0-9", bad), f"value.made: follows: [{bad}] is not a class") for bad in ("f-a", "a--b", "a&&b", "a||b", "a~~b")),
        (GOOD.replace("{20,40}", "{40,20}"), "value.made: follows: want {least,most} with most up to 8192"),
        (GOOD.replace("{20,40}", "{20,8193}"), "value.made: follows: want {least,most} with most up to 8192"),
        (GOOD.replace("{20,40}", "{0,40}").replace("canary-", "can-"), "value.made: a match has at least 8 characters"),
        (
            GOOD.replace("word", "anywhere").replace("{20,40}", "{20,257}x"),
            "value.made: follows: a shape of several parts that starts anywhere has runs of up to 256",
        ),
    ],
)
def test_an_entry_that_is_not_strict_refuses(tmp_path: Path, entry: str, problem: str | None) -> None:
    """Unknown keys, no reason, no bounds, what could go back over what it read: each is named."""
    with pytest.raises(PolicyError) as caught:
        load(tmp_path, f"[value]\nmade = {entry}\n")
    lines = caught.value.lines
    assert (caught.value.code, len(lines)) == ("refused.policy", 1)
    assert lines[0].startswith(f"{tmp_path}/denied_secrets.toml: {problem or 'value.made: want {'}")


@pytest.mark.parametrize("text", ["", "[value]\n", "value = 1\n", f"[value]\nMade = {GOOD}\n", f"[value]\nmade = {GOOD}\nagain = {GOOD}\n"])
def test_a_table_that_finds_nothing_refuses(tmp_path: Path, text: str) -> None:
    """No table, an empty one, odd names, one beginning twice."""
    with pytest.raises(PolicyError):
        load(tmp_path, text)


def test_no_pattern_goes_back_over_what_it_read() -> None:
    """Every class of every shipped shape keeps what it took, and so does the border."""
    for shape in SHAPES.shapes:
        for _, pattern in shape.patterns:
            text = pattern.pattern.decode("latin-1")
            behind = re.sub(r"\(\?>.*\)\)", "", text, flags=re.S)  # without the border, which is of fixed length
            counts = re.findall(r"\]\{[0-9]+,[0-9]+\}(.?)", behind)
            assert (shape.id, set(counts), "*" in behind.replace("$*", "")) == (shape.id, {"+"}, False)
            assert (shape.starts is Starts.ANYWHERE) == ("(?>" not in text)
