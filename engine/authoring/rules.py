"""What the fields of a declaration may say, besides its schemas.

Its job: the list of fields, and every problem of a whole declaration as lines with the remedy; the same in a guest and on the host.
Not its job: inside of schemas (``strict.py``), what is granted (``policy/resolve.py``).
Laws:
1. A declaration has exactly the fields of ``FIELDS``; another one or a missing one refuses (tests/unit/test_declaration.py).
2. What a tool's name or a text may be does not depend on the Unicode tables of an interpreter (tests/unit/test_declaration.py).
3. No default opens: an effect must be said, a contradiction refuses (tests/unit/test_authoring.py).
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from engine.authoring.canonical import canonical
from engine.authoring.strict import listed, quoted, schema_problems

EFFECTS = ("read", "write", "idempotent", "external")
WORKERS = ("native", "wasm")
POLICIES = ("auto", "inline", "page", "compress", "exact_ccr")
TIMEOUT_MS = 30_000
INLINE_TOKENS = 1200
NAME_REMEDY = "a letter, then at most 127 letters, digits, _ and -"
_TIMEOUT_MOST = 86_400_000  # a day; what outlives it is a service, not a call
_META_BYTES = 64 << 10
_UNITS = ("", "B", "KiB", "MiB", "GiB", "ms", "s", "min")
# C0 and C1 controls, bidi controls, line and paragraph separators, surrogates: fixed points, because general categories change with Unicode
_HIDDEN = frozenset((*range(0x20), *range(0x7F, 0xA0), 0x61C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A), 0xFEFF))
_HIDDEN |= frozenset(range(0xD800, 0xE000))
_LINES = frozenset((0x09, 0x0A))

Check = Callable[[Any], str | None]


def is_name(value: object) -> bool:
    """Whether it matches ``^[a-zA-Z][a-zA-Z0-9_-]{0,127}$``, the whole of it and nothing after."""
    if type(value) is not str or not value.isascii() or not 1 <= len(value) <= 128:
        return False
    return value[0].isalpha() and value.replace("_", "a").replace("-", "a").isalnum()


def _name(value: Any) -> str | None:
    if not is_name(value):
        return f"{quoted(value) if type(value) is str else type(value).__name__} is no tool name: use {NAME_REMEDY}"
    return "names that begin with cave_ are reserved: choose another" if value.lower().startswith("cave_") else None


def _prose(most: int, *, lines: bool, empty: bool = False) -> Check:
    allowed = _LINES if lines else frozenset()

    def check(value: Any) -> str | None:
        if type(value) is not str or not (empty or value.strip()):
            return "must be a text that is not empty"
        if len(value) > most:
            return f"has {len(value)} characters, at most {most} are allowed"
        # security: a terminal, a log or a reviewer would see another text than the model reads
        if any(ord(char) in _HIDDEN and ord(char) not in allowed for char in value):
            return "has control, bidi or line-separator characters: remove them"
        return None

    return check


def _optional(check: Check) -> Check:
    return lambda value: None if value is None else check(value)


def _many(check: Check, what: str, most: int = 64, *, told: bool = True) -> Check:
    def many(value: Any) -> str | None:
        if type(value) is not list:
            return f"must be a list of {what}"
        if len(value) > most:
            return f"has {len(value)} entries, at most {most} are allowed"
        for index, item in enumerate(value):
            problem = check(item)
            if problem is not None:
                # security: who writes a secret where its name belongs would find it in the log
                return f"{quoted(item) if told and type(item) is str else f'entry {index}'}: {problem}"
        return None if len(set(value)) == len(value) else "names an entry twice"

    return many


def _flag(value: Any) -> str | None:
    return None if type(value) is bool else "must be true or false"


def _effect(value: Any) -> str | None:
    return None if type(value) is str and value in EFFECTS else "has no default: must be one of " + listed(EFFECTS)


def _worker(value: Any) -> str | None:
    known = value is None or (type(value) is str and value in WORKERS)
    return None if known else f"must be None, or one of {listed(WORKERS)}"


def _timeout(value: Any) -> str | None:
    return None if type(value) is int and 1 <= value <= _TIMEOUT_MOST else f"must be a whole number of ms from 1 to {_TIMEOUT_MOST}"


def _result(value: Any) -> str | None:
    policy = value.get("policy") if type(value) is dict else None
    if policy == "artifact" and set(value) == {"policy", "strategy", "max_inline_tokens", "recovery"}:
        tokens = value["max_inline_tokens"]
        if type(tokens) is not int or not 1 <= tokens <= 100_000:
            return "max_inline_tokens must be a whole number from 1 to 100000"
        if value["strategy"] != "page" or value["recovery"] != "exact_ccr":
            return 'an artifact has the strategy "page" and the recovery "exact_ccr"'
        return None
    good = type(policy) is str and policy in POLICIES and set(value) == {"policy"}
    return None if good else f"must be one of {listed(POLICIES)}, or artifact(...)"


def _identifier(value: Any) -> str | None:
    return None if type(value) is str and value.isidentifier() else "must be a Python name"


def _dotted(value: Any) -> str | None:
    good = type(value) is str and len(value) <= 512 and all(part.isidentifier() for part in value.split("."))
    return None if good else "must be a dotted Python name without <locals>: declare a function at the top of a module"


def _module(value: Any) -> str | None:
    good = type(value) is str and _dotted(value.removesuffix(".*")) is None
    return None if good else "must name a module, such as plugins.one, or all of a package, such as plugins.*"


def _data_path(value: Any) -> str | None:
    problem = _prose(512, lines=False)(value)
    if problem is not None:
        return problem
    bad = value.startswith("/") or "\\" in value or any(part in ("", ".", "..") for part in value.rstrip("/").split("/"))
    return "must be a path below the source's folder, with / between its parts and without . and .." if bad else None


def _layer(value: Any) -> str | None:
    good = type(value) is str and value.isascii() and 1 <= len(value) <= 128 and value[0].isalnum()
    good = good and value.replace("_", "a").replace("-", "a").replace(".", "a").isalnum()
    return None if good else "must be letters, digits, . _ and - only"


def _capability(value: Any) -> str | None:
    good = is_name(value) and value == value.lower()
    return None if good else "must name a capability in lower case, such as anthropic: values never stand here"


def _variable(value: Any) -> str | None:
    good = type(value) is str and value.isascii() and value.isidentifier() and len(value) <= 128
    return None if good else "must be the name of an environment variable: letters, digits and _"


def _network(value: Any) -> str | None:
    if type(value) is bool:
        return None
    return _many(_destination, 'destinations such as "api.example.com:443", or false')(value)


def _destination(value: Any) -> str | None:
    remedy = "must be host:port with one lower-case ASCII host, such as api.example.com:443: wildcards stand in a profile alone"
    if type(value) is not str or not value.isascii() or len(value) > 260:
        return remedy
    host, _, port = value.rpartition(":")
    if not (port.isdigit() and port[0] != "0" and int(port) <= 65535):
        return remedy
    if host.startswith("[") and host.endswith("]"):
        return None if set(host[1:-1]) <= set("0123456789abcdef:") else remedy  # the engine knows which of them are addresses
    return None if host == host.lower() and all(_label(label) for label in host.split(".")) else remedy


def _label(label: str) -> bool:
    """Letters, digits and inner hyphens, at most 63 (RFC 1123 section 2.1)."""
    return 1 <= len(label) <= 63 and label.replace("-", "a").isalnum() and "-" not in (label[0], label[-1])


def _limits(value: Any) -> str | None:
    if type(value) is not dict:
        return 'must map names of limits to amounts, such as {"memory": "64 MiB"}'
    for name, amount in value.items():
        if not is_name(name):
            return f"{quoted(name)} is no name of a limit"
        if not _amount(amount):
            return f'{quoted(name)} must be a whole number above 0, a size such as "64 MiB" or a time such as "2 s"'
    return None


def _amount(value: object) -> bool:
    if type(value) is int:
        return 0 < value <= 1 << 53
    if type(value) is not str or not value.isascii() or len(value) > 24:
        return False
    digits = len(value) - len(value.lstrip("0123456789"))
    number, unit = value[:digits], value[digits:].removeprefix(" ")
    return 1 <= digits <= 15 and int(number) > 0 and unit in _UNITS


def _meta(value: Any) -> str | None:
    if type(value) is not dict:
        return "must be a dict of plain JSON data"
    try:
        size = len(canonical(value))
    except ValueError as error:
        return f"must be plain JSON data ({error})"
    return None if size <= _META_BYTES else f"has {size} bytes, at most {_META_BYTES} are allowed"


def _elsewhere(value: Any) -> str | None:
    return None  # schemas: checked by ``schema_problems`` with paths of their own


FIELDS: Mapping[str, Check] = {
    "name": _name,
    "description": _prose(16_384, lines=True),
    "title": _optional(_prose(200, lines=False)),
    "snippet": _optional(_prose(2000, lines=True)),
    "guidelines": _many(_prose(2000, lines=True), "texts"),
    "input": _elsewhere,
    "output": _elsewhere,
    "partial": _elsewhere,
    "effect": _effect,
    "timeout_ms": _timeout,
    "result": _result,
    "nested_tools": _many(_name, "names of tools"),
    "allow_repeat": _flag,
    "dangerous": _flag,
    "read_only": _flag,
    "cacheable": _flag,
    "open_world": _flag,
    "meta": _meta,
    "includes": _many(_module, "names of modules", 1024),
    "data": _many(_data_path, "paths", 1024),
    "layers": _many(_layer, "names of layers"),
    "network": _network,
    "credentials": _many(_capability, "names of capabilities", told=False),
    "environment": _many(_variable, "names of environment variables", told=False),
    "worker": _worker,
    "limits": _limits,
    "streams": _flag,
    "context": _optional(_identifier),
    "module": _dotted,
    "qualname": _dotted,
}


def problems(data: Mapping[str, Any]) -> list[str]:
    """One line for each problem of a whole declaration: its fields, its schemas, and what contradicts itself."""
    lines = [f"unknown field {quoted(name)}: a declaration has {listed(FIELDS)}" for name in data if name not in FIELDS]
    lines += [f"the field {name} is missing" for name in FIELDS if name not in data]
    if lines:
        return lines
    for name, check in FIELDS.items():
        problem = check(data[name])
        if problem is not None:
            lines.append(f"{name}: {problem}")
    lines += schema_problems(data["input"], "input")
    lines += schema_problems(data["output"], "output")
    if data["partial"] is not None:
        lines += schema_problems(data["partial"], "partial")
    return lines or list(_together(data))


def _together(data: Mapping[str, Any]) -> Iterator[str]:
    schema = data["input"]
    properties = schema.get("properties", {})
    if schema.get("type") != "object":
        yield "input: arguments are one object: begin with type: object"
    for key in properties:
        if not key.isidentifier():
            yield f"input: the key {quoted(key)} cannot be a parameter of a function: rename it"
    if data["context"] in properties:
        yield f"input: {quoted(data['context'])} is the context, which no caller gives: leave it out of the input"
    if data["streams"] != (data["partial"] is not None):
        yield "partial: a tool that yields has a schema for what it yields, another tool has none"
    if data["read_only"] and data["effect"] != "read":
        yield f"read_only: contradicts the effect {data['effect']}: say effect='read', or leave read_only out"
    if data["cacheable"] and data["effect"] in ("write", "external"):
        yield f"cacheable: contradicts the effect {data['effect']}: an answer may be kept only when calling again changes nothing"
    if data["name"] in data["nested_tools"]:
        yield "nested_tools: a tool cannot hold itself"


def nested_problems(composite: Mapping[str, Any], nested: Mapping[str, Any]) -> list[str]:
    """What forbids one declaration to stand in the nested tools of another: nesting is flat, and a read holds only reads."""
    lines = []
    if nested["nested_tools"]:
        lines.append(f"nested_tools: {quoted(nested['name'])} has nested tools itself: name those directly")
    if composite["effect"] == "read" and nested["effect"] != "read":
        what = f"{quoted(nested['name'])} has the effect {nested['effect']}"
        lines.append(f"nested_tools: {what}, but a read holds only reads: change the effect")
    return lines
