"""Names that no policy can hand to a worker, the names a credential capability stands for, and where secrets come from.

Its job: whether a name may be a variable of a worker, in whatever spelling; which names belong to which capability; sources of secrets.
Not its job: reading ``policies/denied_secrets.toml`` (``load.py``), values (``staging/environ.py``, ``egress/vault.py``).
Laws:
1. A name is denied in every spelling: case, separators, prefix, suffix, look-alikes (tests/security/test_environment_names.py).
2. A shape list that is empty, repeated, in capitals or has a wildcard refuses (tests/unit/test_policy_denied.py).
3. The list is a second lock: names that match no shape are absent as well, because the environment is built from nothing
   (tests/security/test_promise_environment.py).
4. Neither a repr nor a refusal repeats where a secret comes from: it may be the secret itself (tests/unit/test_policy_secrets.py).
"""

import dataclasses
import re
import shlex
import unicodedata
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from engine.errors import PolicyError

CAPABILITIES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "anthropic": ("ANTHROPIC_API_KEY",),
        "google": ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
        "openai": ("OPENAI_API_KEY",),
    }
)  # one provider family per worker: a worker that holds two can send one to the other

SHAPE_KINDS = ("fragment", "word", "ending", "whole")
_SHORTEST = MappingProxyType({"fragment": 3, "word": 2, "ending": 3, "whole": 2})  # shorter ones would deny half of all words
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")  # POSIX.1-2017 XBD 8.1, and a length that fits a log line
_SHAPE = re.compile(r"[a-z0-9]+")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_SEPARATORS = re.compile(r"[^a-z0-9]+")


def name_problem(name: object) -> str | None:
    """Why this cannot be the name of a variable, or None. The text never repeats the name."""
    # security: NUL or '=' would end the name early and set another one; padding and look-alikes slip past a list of names
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        return "a variable's name is 1 to 128 of A-Z, a-z, 0-9 and '_', not beginning with a digit"
    return None


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeniedNames:
    """Shapes of denied names by kind, all in lower case.

    ``fragment``: anywhere, separators left out. ``word``: one word of the name. ``ending``: how a word ends. ``whole``: the name itself.
    """

    fragment: frozenset[str]
    word: frozenset[str]
    ending: frozenset[str]
    whole: frozenset[str]
    steering: "DeniedNames | None" = None  # those of them that no credential may have either; None: all

    def __post_init__(self) -> None:
        for kind in SHAPE_KINDS:
            for shape in getattr(self, kind):
                if (problem := shape_problem(kind, shape)) is not None:
                    raise PolicyError("refused.policy", f"{kind}: {problem}")

    def matches(self, name: str) -> bool:
        """Whether the name has a denied shape, however it is spelt."""
        folded = unicodedata.normalize("NFKC", name)
        squashed = "".join(_words(folded.casefold()))
        if squashed in self.whole or any(shape in squashed for shape in self.fragment):
            return True
        # camel case is tried as well as plain separators, because rAnDoM capitals would hide a word from it
        words = {*_words(folded.casefold()), *_words(_CAMEL.sub("_", folded).casefold()), squashed}
        bare = words | {word.rstrip("0123456789") for word in words}
        return not bare.isdisjoint(self.word) or any(word.endswith(tuple(self.ending)) for word in bare)

    def denied(self, name: object) -> bool:
        """Whether the name may never be a variable of a worker: malformed, or of a denied shape."""
        return not isinstance(name, str) or name_problem(name) is not None or self.matches(name)

    def steers(self, name: object) -> bool:
        """Whether the name may not even be a granted credential: malformed, or one that a program is led by."""
        return (self if self.steering is None else self.steering).denied(name)

    def data(self) -> dict[str, list[str]]:
        """Plain data, for digests."""
        return {kind: sorted(getattr(self, kind)) for kind in SHAPE_KINDS}


def shape_problem(kind: str, shape: object) -> str | None:
    """Why this cannot be a shape of that kind, or None."""
    # security: a wildcard or a capital would never match anything, and so would silently deny nothing
    if not isinstance(shape, str) or _SHAPE.fullmatch(shape) is None:
        return f"{shape!r} is not a shape: lower-case ASCII letters and digits only, no wildcard and no separator"
    if len(shape) < _SHORTEST[kind]:
        return f"{shape!r} is too short for a {kind}: at least {_SHORTEST[kind]} characters"
    return None


def _words(text: str) -> Iterator[str]:
    return (word for word in _SEPARATORS.split(text) if word)


_ID = re.compile(r"[a-z][a-z0-9_]{0,63}")  # as tools write capabilities; stands in marks and on receipts
_KINDS = ("env", "file", "command")
_SOURCE = "want 'env:NAME', 'file:/a/path' or 'command:/a/program its arguments'"
_LONGEST_SOURCE = 4096  # PATH_MAX


@dataclasses.dataclass(frozen=True, kw_only=True)
class SecretSource:
    """Where the vault takes a value from: a variable of the engine's own, a file, or what a program prints."""

    kind: str
    where: str = dataclasses.field(repr=False)

    def __post_init__(self) -> None:
        if not _source_is_good(self.kind, self.where):
            raise PolicyError("refused.policy", _SOURCE)

    @classmethod
    def of(cls, text: object) -> "SecretSource":
        """The source that is written so. Raises PolicyError that does not repeat the text."""
        kind, _, where = text.partition(":") if isinstance(text, str) else ("", "", "")
        return cls(kind=kind, where=where)

    def data(self) -> str:
        """As it is written, for digests."""
        return f"{self.kind}:{self.where}"


def _source_is_good(kind: str, where: str) -> bool:
    if kind not in _KINDS or not where.isprintable() or not 0 < len(where) <= _LONGEST_SOURCE:
        return False
    if kind == "env":
        return name_problem(where) is None
    # security: a path that is not absolute would depend on the folder that the engine was started in
    if kind == "file":
        return _is_path(where)
    try:
        return _is_path(next(iter(shlex.split(where)), ""))
    except ValueError:  # a quotation without its end
        return False


def _is_path(text: str) -> bool:
    return text.startswith("/") and not {"", ".", ".."} & {*text[1:].split("/")}


def secret_id_problem(name: object) -> str | None:
    """Why this names no secret and no credential family, or None. The text never repeats the name."""
    if isinstance(name, str) and _ID.fullmatch(name):
        return None
    return "a name is a-z, then up to 63 of a-z, 0-9 and '_'; it stands on receipts, so it is never the secret itself"
