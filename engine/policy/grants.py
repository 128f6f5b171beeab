"""What an operator gives to tools that ask for it.

Its job: the record of grants, which refuses what is malformed; the effects there are; the variables that every worker has.
Not its job: network profiles (``network.py``), names that may not be handed over and credential families (``model.py``).
Laws:
1. No grant means "everything": an empty set grants nothing, wildcards refuse (tests/unit/test_policy_model.py).
2. No policy can fix a value that carries a login (tests/unit/test_policy_model.py).
"""

import dataclasses
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from engine.errors import PolicyError
from engine.policy.secrets import name_problem

EFFECTS = ("external", "idempotent", "read", "write")
SETS = ("layers", "credentials", "effects", "secret_files")  # the fields of Grants that are lists of texts
BASELINE: Mapping[str, str] = MappingProxyType(
    {
        "LANG": "C.UTF-8",
        "LC_ALL": "C.UTF-8",
        # Names nothing on purpose: a worker starts no program by name. Unset or empty would be worse, because then
        # the C library and os.defpath fall back to /bin:/usr/bin, and an empty element means the scratch folder.
        "PATH": "/nonexistent",
        "TZ": "UTC",
    }
)
# of a worker that may connect somewhere: where it finds whom TLS trusts (openssl(1), and requests, which has a name of its own for it)
CERTIFICATES: Mapping[str, str] = MappingProxyType(dict.fromkeys(("REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"), "/etc/ssl/cert.pem"))

_LAYER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_FOLDER_NAME = re.compile(r"[a-z][a-z0-9_-]{0,63}")
_SOURCE_FILE = "want the path of one file below the source's folder: no wildcard, no '.' or '..', and '/' between its parts"
_USERINFO = re.compile(r"://[^/\s?#]*@")  # RFC 3986 section 3.2.1
_NEVER_FOLDERS = frozenset({"", "dev", "proc", "run", "sys"})  # kernel interfaces and sockets of the host


@dataclasses.dataclass(frozen=True, kw_only=True)
class Grants:
    """What the operator gives a tool that asks for it; folders are given unasked. All empty = nothing. Values are not in the repr."""

    layers: frozenset[str] = frozenset()
    credentials: frozenset[str] = frozenset()
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False)
    folders: Mapping[str, str] = dataclasses.field(default_factory=dict)
    effects: frozenset[str] = frozenset()
    secret_files: frozenset[str] = frozenset()  # of a source, in which what looks like a secret is no reason to refuse it

    def __post_init__(self) -> None:
        object.__setattr__(self, "environment", MappingProxyType(dict(self.environment)))
        object.__setattr__(self, "folders", MappingProxyType(dict(self.folders)))
        lines = [f"grants.layers: {x!r} is not a layer's name" for x in self.layers if not _is(_LAYER, x)]
        lines += [f"grants.effects: {x!r} is unknown; allowed: {', '.join(EFFECTS)}" for x in self.effects if x not in EFFECTS]
        lines += [f"grants.secret_files: {_SOURCE_FILE}" for x in self.secret_files if not _is_source_file(x)]
        lines += [line for name, path in self.folders.items() for line in _folder_problems(name, path)]
        lines += [line for name, value in self.environment.items() for line in _variable_problems(name, value)]
        if lines:
            raise PolicyError("refused.policy", *sorted(lines))

    def data(self) -> dict[str, Any]:
        """Plain data, for digests."""
        sets = {name: sorted(getattr(self, name)) for name in SETS}
        return {**sets, "environment": dict(self.environment), "folders": dict(self.folders)}


def _is(pattern: re.Pattern[str], value: object) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None


def _is_source_file(path: object) -> bool:
    # security: a folder or a pattern would let files in that nobody looked at
    return isinstance(path, str) and path.isprintable() and not {"", ".", ".."} & {*path.split("/")} and not {*path} & {*"*?[]\\"}


def _folder_problems(name: object, path: object) -> list[str]:
    if not _is(_FOLDER_NAME, name):
        return [f"grants.folders: {name!r} is not a folder's name: a-z, then up to 63 of a-z, 0-9, '_' and '-'"]
    parts = path.split("/") if isinstance(path, str) else []
    # security: "..", "//" or a NUL would name another folder than the one that was read and agreed to; /proc and /run lead out
    if len(parts) < 2 or parts[0] or parts[1] in _NEVER_FOLDERS or {"", ".", ".."} & set(parts[1:]) or "\0" in str(path):
        return [f"grants.folders.{name}: want an absolute path without '.', '..', and not /, /dev, /proc, /run or /sys"]
    return []


def _variable_problems(name: object, value: object) -> list[str]:
    key = f"grants.environment.{name}"
    if (problem := name_problem(name)) is not None:
        return [f"grants.environment: {problem}"]
    if name in BASELINE:
        return [f"{key}: {', '.join(BASELINE)} are always set, to values of our own"]
    if not isinstance(value, str) or len(value) > 4096 or not value.isprintable():
        return [f"{key}: want one line of at most 4096 printable characters"]
    # security: a URL with a login under a harmless name would carry a secret past the list of names
    return [f"{key}: the value carries a login (user@host): grant a credential instead"] if _USERINFO.search(value) else []
