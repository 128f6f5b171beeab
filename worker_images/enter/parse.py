"""Reads one source file by parsing only: what it imports, what it asks for, and where it hides either.

Its job: the facts that staging needs, as plain lists, strings, ints and bools.
Not its job: finding files (``engine/staging``), deciding what is allowed, running anything.
It runs in a restricted child whose address space is bounded: a file of 1 MiB can cost 650 MB of syntax tree before its
nodes can be counted, and the answer to that is MemoryError, caught here.
Laws:
1. Nothing of the source runs, and no file is opened (tests/security/test_staging.py).
2. Every input has an answer: hostile nesting, sizes, bytes and encodings too (tests/fuzz/test_parse_source.py).
3. A file has the same facts on Python 3.11, 3.12 and 3.13 (tests/unit/test_parse.py).
"""

import _ast
import warnings
from collections.abc import Iterator
from typing import Any

SOURCE_BYTES = 1 << 20
NODES = 20_000  # about 3000 lines
_TEXT = 200  # characters of a syntax error's message
_MODULE_CHARS = 1000
_ONLY_AST = 0x400  # PyCF_ONLY_AST, Include/cpython/compile.h
# security: the parser opens the file it is told about to quote a line of it; nothing can lie below a device
_NO_FILE = "/dev/null/source"
_ENCODINGS = frozenset({"utf-8", "utf8", "ascii", "us-ascii", "latin-1", "latin1", "iso-8859-1", "iso8859-1", "iso-latin-1"})

_BY_NAME = frozenset(
    {"importlib.import_module", "importlib.__import__", "builtins.__import__", "runpy.run_module", "pkgutil.resolve_name"}
)  # a literal first argument makes an import of it
_MACHINERY = ("SourceFileLoader", "SourcelessFileLoader", "ExtensionFileLoader")
_BY_PATH = frozenset(
    {"runpy.run_path", "importlib.util.spec_from_file_location", "zipimport.zipimporter", "imp.load_source", "imp.load_module"}
    | {f"importlib.machinery.{name}" for name in _MACHINERY}
)  # load from a place that parsing cannot know
_LOADERS = _BY_NAME | _BY_PATH
_TOOL = frozenset({"engine.tool", "engine.authoring.tool.tool"})
_CHECKING = frozenset({"typing.TYPE_CHECKING", "typing_extensions.TYPE_CHECKING"})
_ASKED = ("includes", "data", "layers")
_FOUND_MISSING = frozenset({"ImportError", "ModuleNotFoundError", "Exception", "BaseException"})
_LEAVES = (_ast.expr_context, _ast.operator, _ast.unaryop, _ast.boolop, _ast.cmpop)
_FUNCTIONS = (_ast.FunctionDef, _ast.AsyncFunctionDef, _ast.Lambda)


def _known() -> frozenset[str]:
    names: set[str] = set()
    for full in _LOADERS | _TOOL | _CHECKING:
        parts = full.split(".")
        names.update(".".join(parts[:count]) for count in range(1, len(parts) + 1))
    return frozenset(names)


# security: meanings come from this closed list; open ones double with every `a = a.b` of a hostile file
_KNOWN = _known()
_UNKNOWN = frozenset({"?"})
_BUILT_IN = {"__import__": frozenset({"builtins.__import__"}), "__builtins__": frozenset({"builtins"})}


def facts(source: bytes, filename: str) -> dict[str, Any]:
    """What the file says; ``filename`` (relative to the root) only tells a package's ``__init__.py`` from a module.

    ``{"ok": True, "imports": [[kind, module, names, level, line, optional, function_local]], "dynamic": [[line, what]],
    "tools": [[function, line, {"includes", "data", "layers"}]], "problems": [[line, text]]}``, or ``{"ok": False}`` with
    ``line`` and ``text``, or with ``limit``. Kinds: import, from, literal, all (names of ``__all__``, which a star imports).
    """
    try:
        return _facts(source, filename.rpartition("/")[2] == "__init__.py")
    except (MemoryError, RecursionError):
        return {"ok": False, "limit": "the file is nested too deep or needs too much memory to parse"}
    except SyntaxError as error:
        return _no(error.lineno or 0, str(error.msg))
    except ValueError as error:
        return _no(0, str(error))


def _no(line: int, text: str) -> dict[str, Any]:
    return {"ok": False, "line": line, "text": text[:_TEXT].encode("utf-8", "replace").decode()}


def _facts(source: bytes, package: bool) -> dict[str, Any]:
    if len(source) > SOURCE_BYTES:
        return {"ok": False, "limit": f"the file is larger than {SOURCE_BYTES} bytes"}
    if b"\0" in source:
        return _no(source[: source.index(b"\0")].count(b"\n") + 1, "the file holds a NUL byte")
    cookie = _cookie(source)
    if cookie is not None and cookie[1].lower().replace("_", "-") not in _ENCODINGS:
        return _no(cookie[0], "the encoding must be utf-8, ascii or latin-1")
    with warnings.catch_warnings(action="ignore"):  # a warning may be an error by flag, and its display opens files
        tree = compile(source, _NO_FILE, "exec", _ONLY_AST, dont_inherit=True)
    nodes: list[Any] = []
    for node in _below(tree):
        nodes.append(node)
        if len(nodes) > NODES:
            return {"ok": False, "limit": f"the file has more than {NODES} syntax nodes"}
    reader = _Reader(package, _meanings_of(nodes))
    reader.read(tree)
    return {"ok": True, "imports": reader.imports, "dynamic": reader.dynamic, "tools": reader.tools, "problems": reader.problems}


def _cookie(source: bytes) -> tuple[int, str] | None:
    """The encoding a comment in the first two lines names (PEP 263, as the tokenizer reads it), and its line."""
    head = source.removeprefix(b"\xef\xbb\xbf")
    for number in (1, 2):
        ends = [at for at in (head.find(b"\n"), head.find(b"\r")) if at >= 0]
        end = min(ends, default=len(head))
        line, rest = head[:end], head[end:]
        head = rest[2:] if rest.startswith(b"\r\n") else rest[1:]
        text = line.lstrip(b" \t\f")
        if text and not text.startswith(b"#"):
            return None
        parts = text.split(b"coding")
        for after in parts[1:]:
            value = after[1:].lstrip(b" \t") if after[:1] in (b":", b"=") else b""
            length = 0
            while length < len(value) and (value[length : length + 1].isalnum() or value[length] in b"-_."):
                length += 1
            if length:
                return number, value[:length].decode("ascii", "replace")
    return None


def _children(node: Any) -> Iterator[Any]:
    for field in node._fields:
        value = getattr(node, field, None)
        for child in value if isinstance(value, list) else (value,):
            if isinstance(child, _ast.AST) and not isinstance(child, _LEAVES):
                yield child


def _below(tree: Any) -> Iterator[Any]:
    """Every node once, in the order of the text; iterative, so that depth costs no stack."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        waiting.extend(reversed(list(_children(node))))


def _dotted(node: Any) -> list[str]:
    """``a.b.c`` as its parts, or nothing for any other expression."""
    parts: list[str] = []
    while isinstance(node, _ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return [node.id, *reversed(parts)] if isinstance(node, _ast.Name) else []


def _text(node: Any) -> str | None:
    return node.value if isinstance(node, _ast.Constant) and isinstance(node.value, str) else None


def _texts(node: Any) -> list[str] | None:
    """A literal list or tuple of strings, or None."""
    if not isinstance(node, _ast.List | _ast.Tuple):
        return None
    found = [_text(item) for item in node.elts]
    return [text for text in found if text is not None] if None not in found else None


class _Meanings(dict[str, frozenset[str]]):
    """What each name of a file may stand for, wherever in the file it is bound."""

    def of(self, node: Any) -> frozenset[str]:
        """The known things an expression ``a.b.c`` may be; empty for all others."""
        parts = _dotted(node)
        if not parts:
            return frozenset()
        roots = self.get(parts[0], _BUILT_IN.get(parts[0], frozenset()))
        return frozenset(full for root in roots if (full := ".".join([root, *parts[1:]])) in _KNOWN)

    def bind(self, name: str, things: frozenset[str]) -> None:
        """One more thing the name may stand for."""
        self[name] = self.get(name, frozenset()) | (things & _KNOWN or _UNKNOWN)


def _meanings_of(nodes: list[Any]) -> _Meanings:
    meanings = _Meanings()
    assigned: list[tuple[str, Any]] = []
    for node in nodes:
        if isinstance(node, _ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                meanings.bind(alias.asname or top, frozenset({alias.name if alias.asname else top}))
        elif isinstance(node, _ast.ImportFrom):
            _bind_from(meanings, node)
        elif isinstance(node, _ast.Assign):
            assigned += [(target.id, node.value) for target in node.targets if isinstance(target, _ast.Name)]
        elif isinstance(node, _ast.AnnAssign | _ast.NamedExpr) and isinstance(node.target, _ast.Name) and node.value is not None:
            assigned.append((node.target.id, node.value))
    for _ in range(4):  # an alias of an alias of an alias, in any order
        for name, value in assigned:
            off = name == "TYPE_CHECKING" and isinstance(value, _ast.Constant) and value.value is False
            meanings.bind(name, _CHECKING if off else meanings.of(value))
    return meanings


def _bind_from(meanings: _Meanings, node: Any) -> None:
    base = "" if node.level else f"{node.module}."
    for alias in node.names:
        if alias.name == "*":
            for full in _KNOWN:
                if base and full.startswith(base) and "." not in full[len(base) :]:
                    meanings.bind(full[len(base) :], frozenset({full}))
        else:
            meanings.bind(alias.asname or alias.name, frozenset({base + alias.name}))


class _Reader:
    """One walk over the tree that knows where it is: below a guarded ``try``, inside a function."""

    def __init__(self, package: bool, meanings: _Meanings) -> None:
        self.package, self.meanings = package, meanings
        self.imports: list[list[Any]] = []
        self.dynamic: list[list[Any]] = []
        self.tools: list[list[Any]] = []
        self.problems: list[list[Any]] = []

    def read(self, tree: Any) -> None:
        """Fill the lists, in the order of the text."""
        waiting = [(tree, False, False, "")]
        while waiting:
            node, optional, local, name = waiting.pop()
            waiting.extend(reversed(self._visit(node, optional, local, name)))

    def _visit(self, node: Any, optional: bool, local: bool, name: str) -> list[tuple[Any, bool, bool, str]]:
        below = [(child, optional, local, "") for child in _children(node)]
        if isinstance(node, _ast.Import):
            self.imports += [["import", alias.name, [], 0, node.lineno, optional, local] for alias in node.names]
        elif isinstance(node, _ast.ImportFrom):
            names = [alias.name for alias in node.names]
            self.imports.append(["from", node.module or "", names, node.level or 0, node.lineno, optional, local])
        elif isinstance(node, _ast.If):
            return [(child, optional, local, "") for child in self._live(node)]
        elif isinstance(node, _FUNCTIONS):
            marks = [] if isinstance(node, _ast.Lambda) else node.decorator_list
            own = "" if isinstance(node, _ast.Lambda) else node.name
            outside = {id(child) for child in marks}
            below = [(child, optional, local, own) for child in marks]
            return below + [(child, False, True, "") for child in _children(node) if id(child) not in outside]
        elif isinstance(node, _ast.Try | _ast.TryStar | _ast.With | _ast.AsyncWith):
            inside = {id(child) for child in node.body} if _guards(node) else set()
            return [(child, optional or id(child) in inside, local, "") for child in _children(node)]
        elif isinstance(node, _ast.Call):
            return self._call(node, optional, local, name)
        elif isinstance(node, _ast.Name | _ast.Attribute):
            return self._value(node, below, name)
        elif isinstance(node, _ast.Assign | _ast.AnnAssign | _ast.AugAssign):
            return self._assign(node, below, local)
        return below

    def _live(self, node: Any) -> list[Any]:
        """The parts of an ``if`` that can run: the body of a TYPE_CHECKING test never does."""
        test = node.test
        if self._checking(test):
            return list(node.orelse)
        if isinstance(test, _ast.BoolOp) and isinstance(test.op, _ast.And) and any(self._checking(value) for value in test.values):
            return [test, *node.orelse]
        if isinstance(test, _ast.UnaryOp) and isinstance(test.op, _ast.Not) and self._checking(test.operand):
            return list(node.body)
        return list(_children(node))

    def _checking(self, test: Any) -> bool:
        parts = _dotted(test)
        if not parts or (len(parts) == 1 and "?" in self.meanings.get(parts[0], frozenset())):
            return False  # a name that may also be something else decides nothing
        return bool(self.meanings.of(test) & _CHECKING)

    def _value(self, node: Any, below: list[Any], name: str) -> list[Any]:
        things = self.meanings.of(node) if isinstance(node.ctx, _ast.Load) else frozenset()
        self.dynamic += [[node.lineno, f"{loader} used as a value"] for loader in sorted(things & _LOADERS)]
        if name and things & _TOOL:
            self.tools.append([name, node.lineno, {key: [] for key in _ASKED}])
        return [] if _dotted(node) else below

    def _assign(self, node: Any, below: list[Any], local: bool) -> list[Any]:
        targets = node.targets if isinstance(node, _ast.Assign) else [node.target]
        plain = all(isinstance(target, _ast.Name) for target in targets)
        if not local and any(isinstance(target, _ast.Name) and target.id == "__all__" for target in targets):
            names = [text for text in _texts(node.value) or [] if text.isidentifier()]
            self.imports.append(["all", "", names, 0, node.lineno, True, False])
        if plain and self.meanings.of(node.value) and not isinstance(node, _ast.AugAssign):
            return []  # an alias, followed by name
        return below

    def _call(self, node: Any, optional: bool, local: bool, name: str) -> list[tuple[Any, bool, bool, str]]:
        things = self.meanings.of(node.func)
        for loader in sorted(things & _LOADERS):
            row = self._loaded(loader, node)
            if row is None:
                self.dynamic.append([node.lineno, f"{loader} of something that is not a literal"])
            else:
                self.imports.append([*row, node.lineno, optional, local])
        if things & _TOOL:
            self._tool(node, name)
        if _dotted(node.func) == ["getattr"] and node.args and self.meanings.of(node.args[0]):
            self._getattr(node)
        inner = node.args[0].id if node.args and isinstance(node.args[0], _ast.Name) else ""
        func = [] if _dotted(node.func) else [(node.func, optional, local, inner)]
        return func + [(child, optional, local, "") for child in [*node.args, *node.keywords]]

    def _getattr(self, node: Any) -> None:
        named = _text(node.args[1]) if len(node.args) > 1 else None
        for root in sorted(self.meanings.of(node.args[0])):
            wanted = {loader for loader in _LOADERS if loader.rpartition(".")[0] == root}
            if wanted and (named is None or f"{root}.{named}" in wanted):
                self.dynamic.append([node.lineno, f"getattr of {root}"])

    def _loaded(self, loader: str, node: Any) -> list[Any] | None:
        """The import row a call with literal arguments stands for, or None when it is computed."""
        given = _arguments(node, _PARAMETERS.get(loader.rpartition(".")[2], ()))
        if loader in _BY_PATH or given is None:
            return None
        module = _text(given.get("name"))
        if module is None or len(module) > _MODULE_CHARS:
            return None
        if loader.endswith(".__import__"):
            return _imported(module, given)
        if loader == "importlib.import_module":
            return self._relative(module, given.get("package")) if module.startswith(".") else _row(module)
        return _row(module.partition(":")[0])

    def _relative(self, module: str, package: Any) -> list[Any] | None:
        name = module.lstrip(".")
        level = len(module) - len(name)
        base = _text(package)
        if base is not None:
            parts = base.split(".")
            return _row(".".join([*parts[: len(parts) - level + 1], name])) if level <= len(parts) else None
        itself = _dotted(package)
        if _row(name) is None or not (itself == ["__package__"] or (self.package and itself == ["__name__"])):
            return None
        return ["literal", name, [], level]

    def _tool(self, node: Any, name: str) -> None:
        asked: dict[str, list[str]] = {key: [] for key in _ASKED}
        for keyword in node.keywords:
            if keyword.arg not in asked:
                continue  # security: what a ** hides is found when the declaration is compared after import
            texts = _texts(keyword.value)
            if texts is None or any(not _is_text(text) for text in texts):
                self.problems.append([keyword.value.lineno, f"{keyword.arg} must be a literal list of strings"])
            else:
                asked[keyword.arg] = texts
        self.tools.append([name, node.lineno, asked])


_PARAMETERS = {
    "import_module": ("name", "package"),
    "__import__": ("name", "globals", "locals", "fromlist", "level"),
    "run_module": ("name", "init_globals", "run_name", "alter_sys"),
    "resolve_name": ("name",),
}


def _arguments(node: Any, parameters: tuple[str, ...]) -> dict[str, Any] | None:
    """Arguments by parameter, or None when stars or unknown names make them unreadable."""
    given: dict[str, Any] = dict(zip(parameters, node.args, strict=False))
    if len(node.args) > len(parameters) or any(isinstance(value, _ast.Starred) for value in node.args):
        return None
    for keyword in node.keywords:
        if keyword.arg not in parameters or keyword.arg in given:
            return None
        given[keyword.arg] = keyword.value
    return given


def _row(module: str) -> list[Any] | None:
    return ["literal", module, [], 0] if module and all(part.isidentifier() for part in module.split(".")) else None


def _imported(module: str, given: dict[str, Any]) -> list[Any] | None:
    names = _texts(given["fromlist"]) if "fromlist" in given else []
    level = getattr(given.get("level"), "value", None) if "level" in given else 0
    if names is None or type(level) is not int or level < 0 or (_row(module) is None and not (level and not module)):
        return None
    if any(not name.isidentifier() and name != "*" for name in names):
        return None
    return ["from", module, names, level] if names or level else ["literal", module, [], 0]


def _is_text(text: str) -> bool:
    return not any("\ud800" <= char <= "\udfff" for char in text)


def _catches(caught: Any) -> bool:
    kinds = caught.elts if isinstance(caught, _ast.Tuple) else [caught]
    return caught is None or any(_dotted(kind)[-1:] and _dotted(kind)[-1] in _FOUND_MISSING for kind in kinds)


def _guards(node: Any) -> bool:
    """Whether a ``try`` or a ``with suppress(...)`` goes on when an import in its body fails."""
    if isinstance(node, _ast.Try | _ast.TryStar):
        return any(_catches(handler.type) for handler in node.handlers)
    return any(_suppresses(item.context_expr) for item in node.items)


def _suppresses(expression: Any) -> bool:
    if not isinstance(expression, _ast.Call) or _dotted(expression.func)[-1:] != ["suppress"]:
        return False
    return any(_catches(argument) for argument in expression.args)
