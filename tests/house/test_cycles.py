"""No file imports itself by way of others, in either tree; imports in functions and for types only count as well."""

from pathlib import Path

from tests.house.reading import PROJECT, imports, sources, write

Graph = dict[str, set[str]]


def import_graph(root: Path) -> Graph:
    """For each module of the host and the jailed side, the modules of the tree that it imports."""
    found = sources(root, "engine", "worker_images")
    names = {source.module for source in found}
    graph: Graph = {}
    for source in found:
        reached = {name for wanted in imports(source) for name in (wanted.full, wanted.target) if name in names}
        # `from engine.policy import model` reaches model; the folder's own file holds nothing but a docstring
        graph[source.module] = reached - {wanted.target for wanted in imports(source) if wanted.full in names and wanted.name}
    return graph


def cycles(graph: Graph) -> list[list[str]]:
    """The groups of modules that reach each other (Tarjan's strongly connected components), each sorted."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        order[name] = low[name] = len(order)
        stack.append(name)
        for other in sorted(graph.get(name, ())):
            if other not in order:
                visit(other)
            if other in stack:
                low[name] = min(low[name], low[other])
        if low[name] == order[name]:
            group = stack[stack.index(name) :]
            del stack[stack.index(name) :]
            if len(group) > 1 or name in graph.get(name, ()):
                found.append(sorted(group))

    for name in sorted(graph):
        if name not in order:
            visit(name)
    return found


def test_no_module_imports_itself_by_way_of_others() -> None:
    """The import graph of the project is a tree of floors, not a knot."""
    assert not (found := cycles(import_graph(PROJECT))), found


def test_a_cycle_is_reported_with_all_its_modules(tmp_path: Path) -> None:
    """Three files in a ring are one group, also when one import is local and one is relative."""
    tree = {
        "engine/a.py": "from engine import b",
        "engine/b.py": "def f():\n    from engine.c import x",
        "engine/c.py": "from . import a",
        "engine/d.py": "import engine.a",
        "worker_images/guest/e.py": "from guest import e",
    }
    assert cycles(import_graph(write(tmp_path, **tree))) == [["engine.a", "engine.b", "engine.c"], ["guest.e"]]


def test_a_diamond_is_not_a_cycle(tmp_path: Path) -> None:
    """The control: two ways to the same file are no ring."""
    tree = {
        "engine/a.py": "from engine import b, c",
        "engine/b.py": "from engine import d",
        "engine/c.py": "from engine import d",
        "engine/d.py": "",
    }
    assert cycles(import_graph(write(tmp_path, **tree))) == []
