"""Policy files to ``Policy``.

Its job: the keys of a policy file (unknown keys, values, missing reasons refuse with file and key), ``extends``, finding a network
profile, the list of denied names, the list of modules to preload.
Not its job: reading (``reading.py``), profile files (``profiles.py``), what the values mean together (``model.py``), where the
folder is (``places.py``).
Laws:
1. Every entry is ``key = { value = ..., reason = "..." }`` with a reason in words (tests/unit/test_policy_load.py).
2. A file starts from what it extends, else from nothing granted, the default limits and the required protections
   (tests/unit/test_policy_load.py).
3. Loosenings are never inherited: each file that needs one names it, so that its reader sees it (tests/unit/test_policy_extends.py).
4. Each file of a chain is a valid policy by itself, so a mistake is reported with the file it stands in
   (tests/unit/test_policy_extends.py).
5. A network profile is named, never a path; true is refused wherever it is written (tests/unit/test_policy_network.py).
"""

import dataclasses
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from engine.errors import EngineError, PolicyError
from engine.limits import LIMIT_NAMES, Limits, parse_size, parse_time
from engine.outcome import error_for
from engine.policy.grants import SETS, Grants
from engine.policy.model import LIMIT_KEYS, Freshness, Kind, Mode, OnSecret, Permission, Policy, Pool, parse_limits
from engine.policy.network import NO_NETWORK, Profile
from engine.policy.profiles import load_profile
from engine.policy.protections import LOOSENINGS, NEEDED, NO_WALL, PROTECTIONS
from engine.policy.reading import NAME, amount, file_error, read_document, strings, value_of
from engine.policy.secrets import SHAPE_KINDS, DeniedNames, SecretSource, shape_problem

_CHAIN = 8
_Word = Mode | Permission | Freshness | Kind | OnSecret
_ENUMS: Mapping[str, type[_Word]] = MappingProxyType(
    {"mode": Mode, "permission": Permission, "freshness": Freshness, "worker": Kind, "on_secret": OnSecret}
)
_IMAGE, _CLOCK = "image", "clock"
_VALUES = "value"  # a table of that list that is about values, not names (``shapes.py``)
_STEERING = ("loaders", "resolvers", "search_paths", "shells", "places", "ambient")  # its groups that hold for credentials too
_MAPS = ("environment", "folders")
_TABLES: Mapping[str, tuple[str, ...] | None] = MappingProxyType(
    {
        "limits": tuple(LIMIT_KEYS),
        "protections": tuple(PROTECTIONS),
        "grants": SETS,
        "loosenings": tuple(LOOSENINGS),
        "pool": ("jails", "total", "ready", "queued", "idle", "memory"),
        "images": None,  # names of the operator's choice
        "network": ("profile",),
        "secrets": None,
        "credentials": None,
    }
)
_AMOUNTS: Mapping[str, tuple[str, Callable[[object], int]]] = MappingProxyType(
    {"idle": ("idle_ms", parse_time), "memory": ("memory_bytes", parse_size)}
)


def load_policy(name_or_path: str | Path, policies: Path) -> Policy:
    """The policy of that name in the folder, or in the file of that path. Raises PolicyError naming file and key."""
    return _load(_locate(name_or_path, policies, Path()), policies, load_denied(policies), ())


def describe_policy(policies: Path) -> Policy:
    """The policy under which declarations are read out of a source."""
    return load_policy("describe", policies)


def load_denied(policies: Path) -> DeniedNames:
    """The shapes of names that no policy can hand over. Raises PolicyError: without a list that can be read nothing runs."""
    path = policies / "denied_secrets.toml"
    document = read_document(path)
    tables = (*SHAPE_KINDS, _VALUES)
    lines = [f"{kind}: unknown table; allowed: {', '.join(tables)}" for kind in document if kind not in tables]
    found: dict[str, list[str]] = {}
    steering: dict[str, list[str]] = {}
    for kind in SHAPE_KINDS:
        shapes: dict[str, list[str]] = {}
        _table(lines, kind, document.get(kind), None, shapes)
        found[kind] = [shape for listed in shapes.values() for shape in listed]
        steering[kind] = [shape for group in _STEERING for shape in shapes.get(group, ())]
        twice = sorted({shape for shape in found[kind] if found[kind].count(shape) > 1})
        lines += [f"{kind}: {shape!r} is listed twice" for shape in twice]
        lines += [] if found[kind] or lines else [f"{kind}: an empty table denies nothing"]
    if lines:
        raise file_error(path, lines)
    # security: a list whose groups were renamed would let a credential be called LD_PRELOAD
    if not any(steering.values()):
        raise file_error(path, [f"none of the groups {', '.join(_STEERING)} is there"])
    return dataclasses.replace(_names_of(found), steering=_names_of(steering))


def _names_of(shapes: Mapping[str, list[str]]) -> DeniedNames:
    fragment, word, ending, whole = (frozenset(shapes[kind]) for kind in SHAPE_KINDS)
    return DeniedNames(fragment=fragment, word=word, ending=ending, whole=whole)


def load_preload(policies: Path) -> tuple[str, ...]:
    """The standard modules that a worker's first process may import beforehand. Raises PolicyError naming file and key."""
    path = policies / "preload.toml"
    modules = read_document(path).get("modules")
    if not isinstance(modules, dict):
        raise file_error(path, ["modules: want a table of module names"])
    lines = [
        f'modules.{name}: want {{ fork_us = ..., reason = "..." }} with these two keys and no other'
        for name, entry in modules.items()
        if not isinstance(entry, dict) or entry.keys() != {"fork_us", "reason"} or not name.isidentifier()
    ]
    if lines:
        raise file_error(path, lines)
    return tuple(modules)


def _shapes(kind: str, key: str, value: object) -> list[str]:
    shapes = strings(key, value)
    problems = [f"{key}: {problem}" for shape in shapes if (problem := shape_problem(kind, shape)) is not None]
    if problems or not shapes:
        raise PolicyError("refused.policy", *(problems or [f"{key}: an empty list denies nothing; remove the entry"]))
    return shapes


def _locate(name: str | Path, policies: Path, relative_to: Path) -> Path:
    text = str(name)
    if "\0" in text:
        raise PolicyError("refused.policy", "a policy's path has no NUL in it")
    if isinstance(name, Path) or "/" in text or text.endswith(".toml"):
        return relative_to / text
    # security: a name is never a path, so a caller who may choose a policy by name cannot climb out of the folder
    if NAME.fullmatch(text) is None:
        raise PolicyError("refused.policy", "a policy is named by a-z, 0-9, '_' and '-', or by the path of its .toml file")
    path = policies / f"{text}.toml"
    if not path.is_file():
        raise PolicyError("refused.policy", f"there is no policy {text}; there are: {', '.join(_names(policies)) or 'none'}")
    return path


def _names(policies: Path) -> list[str]:
    return sorted(path.stem for path in policies.glob("*.toml") if path.stem not in ("denied_secrets", "preload"))


def _load(path: Path, policies: Path, denied: DeniedNames, chain: tuple[Path, ...]) -> Policy:
    real = Path(os.path.realpath(path))  # Path.resolve() raises on a loop of links before 3.13; reading it says so in words
    if real in chain or len(chain) >= _CHAIN:
        raise file_error(path, [f"extends: a loop, or more than {_CHAIN} files: {' -> '.join(x.name for x in (*chain, real))}"])
    document = read_document(path)
    if not document:
        raise file_error(path, ['the file says nothing; write at least extends = "required"'])
    extends = document.pop("extends", None)
    if extends is not None and (not isinstance(extends, str) or not extends):
        raise file_error(path, ["extends: want the name of a policy or the path of its .toml file"])
    base = _load(_locate(extends, policies, path.parent), policies, denied, (*chain, real)) if extends is not None else _nothing(denied)
    entries = _entries(path, document)
    network = _profile(path, policies, base.network, entries["network"])
    try:
        return _overlay(path.stem, base, entries, network)
    except EngineError as error:
        raise file_error(path, list(error.lines)) from None


def _profile(path: Path, policies: Path, inherited: Profile, own: Mapping[str, Any]) -> Profile:
    """The profile that this file names, from beside it or else from the shipped ones; what it extends when it names none."""
    name = own.get("profile")
    if name is True:
        raise error_for(
            "refused.network_unbounded", f"{path}: network.profile: name a profile; a network without bounds is given to nobody"
        )
    if name is None or name == NO_NETWORK.name:
        return inherited if name is None else NO_NETWORK
    folders = [path.parent / "network", policies / "network"]
    # security: what lies beside the policy counts even where it cannot be read; the shipped one must not stand in for it in silence
    found = next((folder / f"{name}.toml" for folder in folders if os.path.lexists(folder / f"{name}.toml")), None)
    if found is None:
        names = {one.stem for folder in folders for one in folder.glob("*.toml") if NAME.fullmatch(one.stem)}
        usable = [NO_NETWORK.name, *sorted(names - {NO_NETWORK.name})]
        raise file_error(path, [f"network.profile: there is no profile {name}; there are: {', '.join(usable)}"])
    return load_profile(found)


def _nothing(denied: DeniedNames) -> Policy:
    return Policy(
        name="nothing",
        mode=Mode.REQUIRED,
        permission=Permission.READONLY,
        limits=Limits(),
        protections=NEEDED,
        grants=Grants(),
        loosenings=(),
        pool=Pool(),
        freshness=Freshness.FRESH,
        denied=denied,
    )


def _overlay(name: str, base: Policy, entries: Mapping[str, Mapping[str, Any]], network: Profile) -> Policy:
    """The base with the entries of one file in place of its own; lists are replaced whole, tables by key."""
    own = entries[""]
    mode: Mode = own.get("mode", base.mode)
    protections = base.protections
    if (mode is Mode.HOST) != (base.mode is Mode.HOST):  # there is nothing to inherit across the wall, either way
        protections = NO_WALL if mode is Mode.HOST else NEEDED
    maps: dict[str, Any] = {key: {**getattr(base.grants, key), **entries[f"grants.{key}"]} for key in _MAPS}
    return Policy(
        name=name,
        mode=mode,
        permission=own.get("permission", base.permission),
        limits=Limits(**{**{key: getattr(base.limits, key) for key in LIMIT_NAMES}, **entries["limits"]}),
        protections={**protections, **entries["protections"]},
        grants=dataclasses.replace(base.grants, **maps, **entries["grants"]),
        loosenings=tuple(entries["loosenings"]),
        pool=dataclasses.replace(base.pool, **entries["pool"]),
        freshness=own.get("freshness", base.freshness),
        worker=own.get("worker", base.worker),
        image=own.get("image", base.image),
        clock_ms=own.get("clock_ms", base.clock_ms),
        denied=base.denied,
        images={**base.images, **entries["images"]},
        network=network,
        secrets={**base.secrets, **entries["secrets"]},
        families={**base.families, **entries["credentials"]},
        on_secret=own.get("on_secret", base.on_secret),
    )


def _entries(path: Path, document: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The values of one file by table, each parsed and each with its reason checked; all problems of the file in one error."""
    lines: list[str] = []
    found: dict[str, dict[str, Any]] = {name: {} for name in ("", *_TABLES, *(f"grants.{name}" for name in _MAPS))}
    for key, content in document.items():
        if key in (*_ENUMS, _IMAGE, _CLOCK):
            _entry(lines, "", key, content, found[""])
        elif key == "grants" and isinstance(content, dict):
            for name in (name for name in _MAPS if name in content):
                _table(lines, f"grants.{name}", content[name], None, found[f"grants.{name}"])
            _table(lines, key, {name: entry for name, entry in content.items() if name not in _MAPS}, SETS, found[key])
        elif key in _TABLES:
            _table(lines, key, content, _TABLES[key], found[key])
        else:
            lines.append(f"{key}: unknown key; allowed: {', '.join(('extends', *_ENUMS, _IMAGE, _CLOCK, *_TABLES))}")
    if lines:
        raise file_error(path, lines)
    return found


def _table(lines: list[str], table: str, content: object, allowed: tuple[str, ...] | None, into: dict[str, Any]) -> None:
    if not isinstance(content, dict):
        lines.append(f"{table}: want a table of entries")
        return
    for name, entry in content.items():
        if allowed is None or name in allowed:
            _entry(lines, table, name, entry, into)
        else:
            listed = (*allowed, *_MAPS) if table == "grants" else allowed
            lines.append(f"{table}.{name}: unknown key; allowed: {', '.join(listed)}")


def _entry(lines: list[str], table: str, name: str, entry: object, into: dict[str, Any]) -> None:
    """Parse one entry; its problems go to the list, so that a file's mistakes come all at once."""
    key = f"{table}.{name}" if table else name
    try:
        field, value = _typed(table, name, key, value_of(key, entry))
        into[field] = value
    except PolicyError as error:
        lines.extend(error.lines)


def _typed(table: str, name: str, key: str, value: object) -> tuple[str, Any]:
    """The field of an entry and its value, as the model takes them."""
    if name == _IMAGE and table == "":
        return name, _name(key, value)
    if name == _CLOCK and table == "":
        return "clock_ms", amount(key, value, parse_time)
    if table == "":
        return name, _member(key, value)
    if table in SHAPE_KINDS:
        return name, _shapes(table, key, value)
    if table == "network":
        return name, _profile_name(key, value)
    if table == "secrets":
        return name, _secret(key, value)
    if table == "credentials":
        return name, tuple(strings(key, value))
    if table == "grants":
        return name, frozenset(strings(key, value))
    if table == "limits":
        return next(iter(parse_limits({name: value}).items()))
    if table == "pool" and name in _AMOUNTS:
        field, parse = _AMOUNTS[name]
        return field, amount(key, value, parse)
    if table == "loosenings" and value is not True:
        raise PolicyError("refused.policy", f"{key}: the value is true; to go without this loosening, remove the line")
    if table in ("grants.environment", "grants.folders") and not isinstance(value, str):
        raise PolicyError("refused.policy", f"{key}: want a text")
    return name, value


def _profile_name(key: str, value: object) -> str | bool:
    # security: a name is never a path, and false, 0 or "" must not come to mean anything
    if value is True or (isinstance(value, str) and NAME.fullmatch(value) is not None):
        return value
    raise PolicyError("refused.policy", f"{key}: want \"none\" or the name of a profile: a-z, then up to 63 of a-z, 0-9, '_' and '-'")


def _secret(key: str, value: object) -> SecretSource:
    try:
        return SecretSource.of(value)
    except PolicyError as error:
        raise PolicyError("refused.policy", *(f"{key}: {line}" for line in error.lines)) from None


def _member(key: str, value: object) -> _Word:
    members = [member.value for member in _ENUMS[key]]
    if not isinstance(value, str) or value not in members:
        raise PolicyError("refused.policy", f"{key}: {value!r} is unknown; allowed: {', '.join(members)}")
    return _ENUMS[key](value)


def _name(key: str, value: object) -> str:
    if not isinstance(value, str) or NAME.fullmatch(value) is None:
        raise PolicyError("refused.policy", f"{key}: want the name of an image, such as python_wasm")
    return value
