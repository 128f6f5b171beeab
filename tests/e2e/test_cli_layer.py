"""``stockade layer``: add, list, verify, remove; and tools that use what was added."""

import sys
from pathlib import Path

import pytest

from tests.e2e.commands import stockade

pytestmark = pytest.mark.slow
MARKDOWN = """\
markdown-it-py==4.3.0 --hash=sha256:7aa1511a46c39138de78d9eba92ce47e63124d8003fc98b3a351909e04239efa
mdurl==0.1.2 --hash=sha256:84008a41e51615a49fc9966191ff91509e3c40b939176e643fd50a5c2196b8f8
"""
NUMPY = """\
numpy==2.4.6 \\
    --hash=sha256:89cd468399cfd2504718f0ba50e410dca55a170b61a02ad92bb18c8a65186e93 \\
    --hash=sha256:90f9849678c75fe7afa2d348ac842c168b0a4d3d61919687216dfc547976d853 \\
    --hash=sha256:a7830bab239b79cda9c08c2da014761cafb48da6150e1da17ac06283f43b6089
"""  # the wheels for CPython 3.11, 3.12 and 3.13 on x86_64
POLICY = 'extends = "required"\n[grants]\nlayers = { value = ["markdown", "numbers"], reason = "pinned by hash" }\n'
RENDER = '''
from engine import tool
from markdown_it import MarkdownIt

@tool(effect="read", layers=["markdown"])
def render(text: str) -> str:
    """Render Markdown as HTML."""
    return MarkdownIt().render(text)
'''
SOLVE = '''
import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
import numpy as np

from engine import tool

@tool(effect="read", layers=["numbers"])
def solve(matrix: list[list[float]], right: list[float]) -> list[float]:
    """Solve a system of linear equations."""
    return [float(number) for number in np.linalg.solve(np.array(matrix), np.array(right))]
'''


def _write(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text, encoding="utf-8")
    return str(folder / name)


@pytest.mark.parametrize("line", ["mdurl==0.1.2", "mdurl", "--index-url x", ""])
def test_requirements_that_are_not_pinned_refuse(tmp_path: Path, line: str) -> None:
    """Without a hash nothing is fetched."""
    ended = stockade(tmp_path, "layer", "add", _write(tmp_path, "r.txt", line), "--json")
    assert (ended.code, ended.document["reason"]) == (3, "refused.layer")


def test_a_layer_is_not_put_where_it_would_be_gone(tmp_path: Path) -> None:
    """A user without a state folder is told to name one."""
    nowhere = {"HOME": "/proc/none", "XDG_STATE_HOME": "/proc/none"}
    ended = stockade(tmp_path, "layer", "add", _write(tmp_path, "r.txt", MARKDOWN), "--json", variables=nowhere)
    assert (ended.code, ended.document["reason"]) == (5, "refused.storage")
    assert "--state-dir" in ended.document["lines"][0]


def test_without_layers_there_is_a_list_and_nothing_to_verify(tmp_path: Path) -> None:
    """An empty store is no error; a name that is not there is."""
    assert stockade(tmp_path, "layer", "list", "--json").document["value"] == []
    assert stockade(tmp_path, "layer", "verify").code == 0
    assert [stockade(tmp_path, "layer", word, "none", "--json").code for word in ("verify", "remove")] == [3, 3]


@pytest.mark.network
def test_a_tool_uses_a_pure_layer(tmp_path: Path) -> None:
    """Added, listed, verified, granted, used; without the grant it refuses; damaged it is found; removed it is gone."""
    state, policy = ("--state-dir", str(tmp_path / "kept")), ("--policy", _write(tmp_path, "policy.toml", POLICY))
    source = _write(tmp_path, "render.py", RENDER)
    call = ("run", source, "render", '{"text": "# Hi *you*"}', *state)
    added = stockade(tmp_path, "layer", "add", _write(tmp_path, "r.txt", MARKDOWN), "--name", "markdown", *state, "--json")
    assert (added.code, added.document["value"]["modules"], added.document["value"]["native"]) == (0, ["markdown_it", "mdurl"], False)
    ended = stockade(tmp_path, *call, *policy, "--json")
    assert (ended.code, ended.document["value"]) == (0, "<h1>Hi <em>you</em></h1>\n")
    assert ended.document["receipt"]["digests"]["layers"] == {"markdown": added.document["value"]["digest"]}
    assert stockade(tmp_path, *call, "--json").document["reason"] == "refused.not_granted"
    assert stockade(tmp_path, "layer", "verify", "markdown", *state).code == 0
    (file,) = (tmp_path / "kept").rglob("mdurl/_parse.py")
    file.chmod(0o644)
    file.write_text("damaged")
    assert stockade(tmp_path, "layer", "verify", *state, "--json").document["reason"] == "refused.layer"
    assert stockade(tmp_path, "layer", "remove", "markdown", *state).code == 0
    assert stockade(tmp_path, "layer", "list", *state, "--json").document["value"] == []


@pytest.mark.network
@pytest.mark.skipif(sys.version_info[:2] > (3, 13), reason="unproven here: the wheels that are pinned end with CPython 3.13")
def test_a_tool_uses_a_native_layer(tmp_path: Path) -> None:
    """Native code refuses without --native; with it and the grant, a system of equations is solved in the default 256 MiB."""
    state, policy = ("--state-dir", str(tmp_path / "kept")), ("--policy", _write(tmp_path, "policy.toml", POLICY))
    add = ("layer", "add", _write(tmp_path, "r.txt", NUMPY), "--name", "numbers", *state, "--json")
    refused = stockade(tmp_path, *add)
    assert (refused.code, refused.document["reason"]) == (3, "refused.layer")
    assert stockade(tmp_path, *add, "--native").document["value"]["native"] is True
    arguments = '{"matrix": [[2, 0], [0, 4]], "right": [1, 1]}'
    ended = stockade(tmp_path, "run", _write(tmp_path, "solve.py", SOLVE), "solve", arguments, *state, *policy, "--json")
    assert (ended.code, ended.document["value"]) == (0, [0.5, 0.25])
