"""Follows the imports of each parsed file until nothing new is found.

Its job: what each import needs (parents, submodules, stars, includes), and where it comes from.
Not its job: reading order and data files (``graph.py``), looking at the file system (``imports.py``).
Laws:
1. A relative import stays in the root, a computed one needs includes, an absent one is named with its line (tests/unit/test_graph.py).
2. Two names that some systems hold for one refuse (tests/security/test_staging.py).
"""

import dataclasses
import unicodedata

from engine.outcome import error_for
from engine.staging.facts import Facts, Import, Written
from engine.staging.imports import Found, Modules, Place
from engine.staging.sources import Kind, Tree

_LINES = 20  # problems told at once


@dataclasses.dataclass(frozen=True, kw_only=True)
class Item:
    """A source file to read: its module's name, its path, and whether it is a package's ``__init__``."""

    module: str
    path: str
    package: bool


class Closing:
    """One closure while it grows. ``start``, then ``keep`` and ``add`` for each file, then ``finish``."""

    def __init__(self, tree: Tree, modules: Modules) -> None:
        self.only = modules.only
        self.files: dict[str, bytes] = {}
        self.externals: dict[str, str] = {}
        self.standard: set[str] = set()
        self.named: set[str] = set()
        self.written: list[Written] = []
        self._tree = tree
        self._modules = modules
        self._bytes = 0
        self._seen: set[str] = set()
        self._new: list[Item] = []
        self._spelled: dict[str, str] = {}
        self._namespaces: dict[str, str] = {}
        self._starred: dict[str, str] = {}
        self._all: dict[str, tuple[str, ...]] = {}
        self._computed: list[str] = []
        self._absent: list[str] = []

    def start(self, entry: str) -> Item:
        """The entry's own file. Raises when it is missing, or when its name belongs to somebody else."""
        top = entry.partition(".")[0]
        if self._modules.place(top, "the tool's own file") is not Place.SOURCE:
            raise error_for("refused.source_missing", f"{top} is not there, holds no Python file, or has a name of the guest's")
        chain = self._modules.find(entry)
        if not chain or chain[-1].module != entry or chain[-1].path is None:
            path = entry.replace(".", "/")
            raise error_for("refused.source_missing", f"{path} holds no __init__.py: name a script, or give the package one")
        for found in chain:
            self._stage(found)
        return self._new.pop()

    def keep(self, path: str, content: bytes) -> None:
        """One more file of the graph. Raises refused.source_limits or, for names alike, refused.source_path."""
        parts = path.split("/")
        for count in range(1, len(parts) + 1):
            spelled = "/".join(parts[:count])
            folded = unicodedata.normalize("NFKC", spelled).casefold()
            if self._spelled.setdefault(folded, spelled) != spelled:
                raise error_for(
                    "refused.source_path", f"{spelled} and {self._spelled[folded]} differ only in case or in look-alike letters"
                )
        self._bytes += len(content)
        if self._bytes > self._tree.bounds.total_bytes:
            raise error_for("refused.source_limits", f"the source with its data is larger than {self._tree.bounds.total_bytes} bytes")
        self.files[path] = content

    def add(self, item: Item, facts: Facts, tables: tuple[Written, ...] = ()) -> tuple[Item, ...]:
        """What the file's facts, and the source's tables beside its entry, bring in: the files to read next."""
        for row in facts.imports:
            self._follow(item, row)
        self._computed += [f"{item.path}:{line}: {what}" for line, what in facts.dynamic]
        for written in (*facts.tools, *tables):
            self.written.append(written)
            for include in written.includes:
                self._include(include, written.where)
        new, self._new = tuple(self._new), []
        return new

    def finish(self) -> None:
        """Raises what is still open: computed imports without includes, imports that the root should hold and does not."""
        if self._computed and not any(written.includes for written in self.written):
            raise error_for("refused.source_open_graph", *self._computed[:_LINES])
        if self._absent:
            raise error_for("refused.source_import", *self._absent[:_LINES])
        for top, where in self._namespaces.items():
            # a folder that nothing was imported from is no package of ours: a layer's package of that name would win
            if not any(path.startswith(top + "/") and path.endswith(".py") for path in self.files):
                self.externals.setdefault(top, where)

    def _follow(self, item: Item, row: Import) -> None:
        where = f"{item.path}:{row.line}"
        if row.kind == "all":
            self._star_names(item, row.names)
            return
        base = self._base(item, row, where)
        if base is None:
            return
        found = self._need(base, where, row.optional) if base else None
        if base and found is None:
            self.named |= {f"{base}.{name}" for name in row.names} or {base}
        if row.kind != "from" or found is None or found.folder is None:
            return
        for name in row.names:
            if name == "*":
                self._star(found, where)
            elif not self._submodule(found, name) and found.path is None and not row.optional:
                self._absent.append(f"{where}: there is no {name} in {found.folder}/")

    def _base(self, item: Item, row: Import, where: str) -> str | None:
        """The absolute name of what an import names first; None when a relative one fails and the source is ready for that."""
        if not row.level:
            return row.module
        parts = item.module.split(".")
        parts = parts if item.package else parts[:-1]
        kept = len(parts) - (row.level - 1)
        if kept < 1:
            if not row.optional:
                self._absent.append(f"{where}: the relative import goes above the root: load the package's folder, or import by full name")
            return None
        return ".".join([*parts[:kept], *([row.module] if row.module else [])])

    def _need(self, dotted: str, where: str, optional: bool) -> Found | None:
        """Stage the module and its parents, or note where it must come from. The module, when it is in the source."""
        top = dotted.partition(".")[0]
        place = self._modules.place(top, where)
        if place is Place.STANDARD:
            self.standard.add(dotted)
        elif place is Place.ELSEWHERE and not optional:
            self.externals.setdefault(top, where)
        if place is not Place.SOURCE:
            return None
        chain = self._modules.find(dotted)
        whole = bool(chain) and chain[-1].module == dotted
        if chain and chain[0].path is None and not optional:
            self._namespaces.setdefault(top, where)
        if not whole and chain and all(found.path is None for found in chain):
            if not optional:
                self.externals.setdefault(top, where)  # a plain folder of that name; the package may be a layer's
            return None
        if not whole and not optional:
            self._absent.append(f"{where}: there is no {dotted} beneath the root")
        for found in chain:
            self._stage(found)
        return chain[-1] if whole else None

    def _stage(self, found: Found) -> None:
        if found.path is None or found.module in self._seen:
            return
        if len(self._seen) >= self._tree.bounds.modules:
            raise error_for("refused.source_limits", f"the source has more than {self._tree.bounds.modules} modules")
        self._seen.add(found.module)
        self._new.append(Item(module=found.module, path=found.path, package=found.folder is not None))

    def _submodule(self, package: Found, name: str) -> bool:
        """Stage ``package.name`` if it is a module; says whether there is something of that name."""
        chain = self._modules.find(f"{package.module}.{name}")
        if not chain or chain[-1].module != f"{package.module}.{name}":
            return False
        self._stage(chain[-1])
        return True

    def _star(self, package: Found, where: str) -> None:
        self._starred[package.module] = where
        for name in self._all.get(package.module, ()):
            self._submodule(package, name)

    def _star_names(self, item: Item, names: tuple[str, ...]) -> None:
        """Names of a package's ``__all__``: a star import of it imports those that are submodules."""
        if not item.package:
            return
        self._all[item.module] = self._all.get(item.module, ()) + names
        if item.module in self._starred:
            package = self._modules.find(item.module)[-1]
            for name in names:
                self._submodule(package, name)

    def _include(self, include: str, where: str) -> None:
        whole = include.endswith(".*")
        found = self._need(include.removesuffix(".*"), where, False)
        if not whole or found is None:
            return
        if found.folder is None or self._tree.kind(found.folder) is not Kind.FOLDER:
            raise error_for("refused.source_import", f"{where}: {found.module} is a module and has no {include}")
        for module in self._modules.below(found):
            self._need(module, where, False)
