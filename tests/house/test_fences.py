"""Fences: each danger has its few homes, and a file outside them that touches it is reported.

The check parses imports and names; it does not stop somebody who hides a name on purpose, it stops the slow spreading of dangerous code.
A further home is a row here with its reason, or it is a fault.
"""

import ast
import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.house.reading import PROJECT, Source, sources, uses, within, write

HOST = ("engine/",)
OUTSIDE_THE_JAIL = ("engine/", "worker_images/enter/")
EVERYWHERE = ("engine/", "worker_images/")
# an attack is made of what the fences keep in; it runs in the jail or against a canary
FREE = ("worker_images/attacks/", "worker_images/selfcheck/", "worker_images/demo/mischief.py")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fence:
    """A danger, what it looks like in imports and names, the trees it is looked for in, and its homes with their reasons."""

    danger: str
    looks: tuple[str, ...]  # dotted names; what lies below one counts as well
    trees: tuple[str, ...]
    homes: dict[str, str]


# dotted names by blanks, so that a row stays readable
_PROGRAMS = """
    subprocess multiprocessing pty _posixsubprocess os.system os.popen psutil.Popen
    os.execl os.execle os.execlp os.execlpe os.execv os.execve os.execvp os.execvpe os.posix_spawn os.posix_spawnp
    os.spawnl os.spawnle os.spawnlp os.spawnlpe os.spawnv os.spawnve os.spawnvp os.spawnvpe
    asyncio.subprocess asyncio.create_subprocess_exec asyncio.create_subprocess_shell
    concurrent.futures.ProcessPoolExecutor concurrent.futures.process
    trio.run_process trio.Process trio.lowlevel.open_process
"""
_SOCKETS = """
    socket _socket ssl _ssl http urllib.request socketserver ftplib smtplib imaplib poplib xmlrpc
    asyncio.open_connection asyncio.open_unix_connection asyncio.start_server asyncio.start_unix_server
    trio.socket trio.SocketStream trio.SocketListener trio.SSLStream trio.SSLListener trio.open_tcp_stream trio.open_tcp_listeners
    trio.open_unix_socket trio.open_ssl_over_tcp_stream trio.serve_tcp trio.serve_ssl_over_tcp
"""
_RUNNING = """
    builtins.eval builtins.exec builtins.__import__ builtins.__builtins__ importlib.import_module importlib.__import__ importlib.reload
    importlib.util importlib.machinery.SourceFileLoader importlib.machinery.ExtensionFileLoader runpy code codeop zipimport site.addsitedir
    pkgutil.find_loader pkgutil.get_loader pkgutil.walk_packages
"""
_UNPACKING = "msgpack.unpack msgpack.unpackb msgpack.Unpacker msgpack.load msgpack.loads msgpack.fallback msgpack._cmsgpack"
_ENVIRONMENT = "os.environ os.environb os.getenv os.getenvb os.putenv os.unsetenv posix.environ"

FENCES = (
    Fence(
        danger="kernel calls",
        looks=("ctypes", "_ctypes", "cffi", "_cffi_backend"),
        trees=EVERYWHERE,
        homes={
            "worker_images/enter/kernel.py": "the only file that may make them, a few lines for each",
            "worker_images/wasm/host.py": "loads the WebAssembly engine, whose functions it has by address; seals memory that holds code",
            "worker_images/wasm/runtime.py": "hands that engine values by address, so that a child converts nothing",
        },
    ),
    Fence(
        danger="copying the process",
        looks=("os.fork", "os.forkpty", "posix.fork", "_posixsubprocess"),
        trees=EVERYWHERE,
        homes={
            "worker_images/enter/": "the launcher's program, one thread, made to fork",
            "worker_images/wasm/runtime.py": "one child that is thrown away, in which the image is tried and measured",
        },
    ),
    Fence(
        danger="starting a program",
        looks=tuple(_PROGRAMS.split()),
        trees=EVERYWHERE,
        homes={
            "engine/worker/launcher.py": "starts the launcher's program, from which all workers come",
            "engine/worker/checker.py": "starts the process that checks large values, locked before it reads one",
            "worker_images/enter/bound.py": "becomes a program of those that the next one starts",
            "engine/egress/vault.py": "runs the operator's command that yields a secret",
            "engine/images/running.py": "runs pip, a builder and the compiler when the operator builds a layer or an image",
        },
    ),
    Fence(
        danger="sockets, name lookup and TLS",
        looks=tuple(_SOCKETS.split()),
        trees=EVERYWHERE,
        homes={
            "engine/egress/": "the only way out of a jail",
            "engine/authoring/http.py": "in plain Python, where no engine runs the tool, it makes the request itself",
            "engine/worker/launcher.py": "the socket pair to the launcher's program",
            "engine/worker/native.py": "the socket pair of a jail's channel",
            "engine/worker/child.py": "the socket pair of a child's channel",
            "engine/worker/checker.py": "the socket pair to a process that checks large values",
            "engine/worker/parser.py": "the socket pair to a process that parses",
            "engine/worker/probe.py": "the socket pair to a process that tries a protection",
            "engine/faces/canary.py": "a listener on loopback that nobody may reach, for the demo",
            "worker_images/enter/": "the other end of those pairs, which receives descriptors",
            "worker_images/wasm/main.py": "the launcher's end, as in enter/main.py",
        },
    ),
    Fence(
        danger="decoding what a worker sent",
        looks=tuple(_UNPACKING.split()),
        trees=HOST,
        homes={"engine/wire/decoding.py": "decodes with every bound set"},
    ),
    Fence(
        danger="the real environment",
        looks=tuple(_ENVIRONMENT.split()),
        trees=OUTSIDE_THE_JAIL,
        homes={
            "engine/egress/vault.py": "reads it once, for the secrets and credentials that policies name",
            "engine/faces/cli.py": "the command line's own settings",
        },
    ),
    Fence(
        danger="running or importing source",
        looks=tuple(_RUNNING.split()),
        trees=EVERYWHERE,
        homes={
            "worker_images/guest/loader.py": "imports the tool, inside the jail",
            "worker_images/enter/runtime.py": "loads the guest and the carried files by a fixed list, before any order",
            "worker_images/enter/zygote.py": "imports standard modules by the operator's list, inside the jail",
            "worker_images/python_wasm/library.py": "is the standard library of a guest without files",
            "worker_images/python_wasm/shim.py": "imports modules by a fixed list while an image is made",
            "worker_images/python_wasm/probing.py": "tries the standard library's modules in an image that is thrown away",
        },
    ),
    Fence(
        danger="compiling source",
        looks=("builtins.compile", "py_compile", "compileall"),
        trees=EVERYWHERE,
        homes={
            "worker_images/guest/loader.py": "imports the tool, inside the jail",
            "worker_images/enter/parse.py": "parses in a restricted child, to a tree and never to code (its own test is below)",
            "worker_images/enter/coding.py": "compiles in the same restricted child, to bytes that it hands out",
            "worker_images/python_wasm/library.py": "compiles the standard library while an image is made",
        },
    ),
    Fence(
        danger="formats that run code when read",
        looks=("pickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "copyreg"),
        trees=EVERYWHERE,
        homes={
            "worker_images/guest/loader.py": "imports the tool, inside the jail",
            "worker_images/enter/coding.py": "writes code as bytes in a restricted child, and reads none",
            "worker_images/python_wasm/library.py": "reads what it wrote itself into the image's memory",
            "worker_images/python_wasm/shim.py": "has the module in the image, because tools import it",
        },
    ),
    Fence(
        danger="the WebAssembly engine",
        looks=("wasmtime",),
        trees=EVERYWHERE,
        homes={
            "worker_images/wasm/configuration.py": "makes its configuration for the compiler's process",
            "worker_images/wasm/compile.py": "compiles an image ahead of time, in a process of its own that runs nothing of it",
        },
    ),
)


def _at_home(name: str, fence: Fence) -> bool:
    return any(name.startswith(home) if home.endswith("/") else name == home for home in (*fence.homes, *FREE))


def _of(source: Source, fence: Fence) -> Iterator[str]:
    seen = set()
    for line, dotted in uses(source):
        for look in fence.looks:
            if within(dotted, look) and (line, look) not in seen:
                seen.add((line, look))
                yield f"{source.name}:{line} {look.removeprefix('builtins.')}: {fence.danger}"


def fence_problems(root: Path) -> list[str]:
    """One line for each use of a danger outside its homes."""
    found = sources(root, *EVERYWHERE)
    pairs = [(fence, source) for fence in FENCES for source in found if source.name.startswith(fence.trees)]
    return [problem for fence, source in pairs if not _at_home(source.name, fence) for problem in _of(source, fence)]


def compile_problems(root: Path, name: str = "worker_images/enter/parse.py") -> list[str]:
    """One line for each ``compile`` call of the parser's file that could give code: its flags do not name ONLY_AST."""
    problems = []
    for source in sources(root, "worker_images/enter"):
        for node in ast.walk(source.tree) if source.name == name else ():
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "compile":
                flags = [*node.args[3:4], *(keyword.value for keyword in node.keywords if keyword.arg == "flags")]
                if not any("ONLY_AST" in ast.unparse(flag).upper() for flag in flags):
                    problems.append(f"{source.name}:{node.lineno} compile without ONLY_AST")
    return problems


def test_every_danger_stays_in_its_homes() -> None:
    """No file of the project touches a danger that it is not a home of."""
    assert not (found := fence_problems(PROJECT)), "\n".join(found)


def test_the_parser_never_makes_code() -> None:
    """Every compile call of the parser asks for a tree only."""
    assert not (found := compile_problems(PROJECT)), "\n".join(found)


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("engine/a.py", "import ctypes", "engine/a.py:1 ctypes: kernel calls"),
        ("worker_images/guest/a.py", "from ctypes import CDLL", "worker_images/guest/a.py:1 ctypes: kernel calls"),
        ("engine/a.py", "import os\nos.fork()", "engine/a.py:2 os.fork: copying the process"),
        ("worker_images/guest/a.py", "import posix as p\np.fork()", "worker_images/guest/a.py:2 posix.fork: copying the process"),
        ("engine/a.py", "from subprocess import run", "engine/a.py:1 subprocess: starting a program"),
        ("engine/a.py", "def f():\n  import multiprocessing.pool", "engine/a.py:2 multiprocessing: starting a program"),
        ("worker_images/enter/a.py", "from os import execve as e", "worker_images/enter/a.py:1 os.execve: starting a program"),
        ("engine/a.py", "import trio\ntrio.run_process", "engine/a.py:2 trio.run_process: starting a program"),
        ("engine/results/a.py", "import socket", "engine/results/a.py:1 socket: sockets, name lookup and TLS"),
        ("engine/a.py", "from urllib import request", "engine/a.py:1 urllib.request: sockets, name lookup and TLS"),
        ("engine/a.py", "import http.client", "engine/a.py:1 http: sockets, name lookup and TLS"),
        (
            "engine/wire/framing.py",
            "import msgpack\nmsgpack.unpackb(b'')",
            "engine/wire/framing.py:2 msgpack.unpackb: decoding what a worker sent",
        ),
        ("engine/a.py", "import os\nos.environ['A']", "engine/a.py:2 os.environ: the real environment"),
        ("worker_images/enter/a.py", "from os import getenv", "worker_images/enter/a.py:1 os.getenv: the real environment"),
        ("engine/a.py", "eval('1')", "engine/a.py:1 eval: running or importing source"),
        ("worker_images/guest/a.py", "e = exec", "worker_images/guest/a.py:1 exec: running or importing source"),
        ("engine/a.py", "from importlib import import_module as i", "engine/a.py:1 importlib.import_module: running or importing source"),
        ("engine/a.py", "compile('', '', 'exec')", "engine/a.py:1 compile: compiling source"),
        ("engine/a.py", "import pickle", "engine/a.py:1 pickle: formats that run code when read"),
        ("engine/worker/wasm.py", "import wasmtime", "engine/worker/wasm.py:1 wasmtime: the WebAssembly engine"),
    ],
)
def test_a_danger_outside_its_homes_is_reported(tmp_path: Path, name: str, text: str, problem: str) -> None:
    """Each fence names the file, the line, the thing and the danger."""
    assert fence_problems(write(tmp_path, **{name: text})) == [problem]


@pytest.mark.parametrize(("fence", "home"), [(fence, home) for fence in FENCES for home in (*fence.homes, *FREE)])
def test_a_danger_in_its_home_is_not_reported(tmp_path: Path, fence: Fence, home: str) -> None:
    """The control: the same lines in each home of a fence, and in an attack, are accepted by that fence."""
    text = "\n".join(f"import {look.split('.')[0]}\n{look}" for look in fence.looks)
    root = write(tmp_path, **{home + "a.py" if home.endswith("/") else home: text})
    assert [problem for problem in fence_problems(root) if problem.endswith(": " + fence.danger)] == []


def test_every_fence_sees_each_of_its_looks(tmp_path: Path) -> None:
    """A row of a table that could never match would be a fence with a hole."""
    for number, fence in enumerate(FENCES):
        for at, look in enumerate(fence.looks):
            head = look.split(".")[0]
            root = write(tmp_path / f"{number}-{at}", **{"engine/a.py": f"import {head}\n{look}\n"})
            assert any(line.endswith(f" {look.removeprefix('builtins.')}: {fence.danger}") for line in fence_problems(root)), look


def test_compiling_to_code_is_reported(tmp_path: Path) -> None:
    """A compile call without the flag is found; with it, by name or by position, it passes."""
    text = "ONLY_AST = 1024\ncompile(s, f, 'exec')\ncompile(s, f, 'exec', ONLY_AST, True)\ncompile(s, f, 'exec', flags=ast.PyCF_ONLY_AST)\n"
    root = write(tmp_path, **{"worker_images/enter/parse.py": text})
    assert compile_problems(root) == ["worker_images/enter/parse.py:2 compile without ONLY_AST"]
