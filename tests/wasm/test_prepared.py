"""An image that was made for one source and carries packages: it is loaded already, and takes no other source."""

from pathlib import Path

import pytest

from engine.wire import messages
from tests import wasm_guest

SOURCE = {
    "tools.py": """
import random
import helper
from engine import tool
DRAWN = random.random()

@tool(effect="read", description="One of a test.")
def told(text: str) -> list[object]:
    import importlib.metadata, os, sample_package
    return [text, helper.HERE, os.environ["A"], sample_package.read(), importlib.metadata.version("sample-package"), random.random()]
""",
    "helper.py": "HERE = __file__",
}
PACKAGE = {
    "sample_package/__init__.py": "import pathlib\n\ndef read():\n    return pathlib.Path(__file__).with_name('data.txt').read_text()\n",
    "sample_package/data.txt": "carried",
    "sample_package-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: sample-package\nVersion: 1.0\n",
    "helper.py": "HERE = 'the package'",
}


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built anew, which takes as long as it takes."""
    folder = tmp_path_factory.mktemp("prepared")
    for name, text in PACKAGE.items():
        (folder / "package" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "package" / name).write_text(text)
    prepared = {"files": SOURCE, "layers": {}, "entry": "tools"}
    facts = wasm_guest.build(wasm_guest.spec(folder / "a.wasm", packages=[str(folder / "package")], prepared=prepared))
    assert facts["packages"] == ["sample_package 1.0"]
    return folder / "a.wasm"


@pytest.mark.slow
def test_the_prepared_source_runs_and_no_other(image: Path) -> None:
    """With the call's own environment, its own randomness and the packages behind the bundle; another source refuses."""
    prepared = wasm_guest.Guest(wasm_guest.compiled(image))
    values = []
    for _ in range(2):
        last = prepared.call(SOURCE, "told", {"text": "x"}, environment={"A": "b"}).last
        assert isinstance(last, messages.Result), last
        values.append(last.value)
    assert values[0][:-1] == ["x", "/bundle/helper.py", "b", "carried", "1.0"]
    assert values[0][-1] != values[1][-1]
    other = prepared.call({**SOURCE, "helper.py": "HERE = 1"}, "told", {"text": "x"}, environment={"A": "b"})
    assert other.returned[0] == "the image was prepared with another source"
    assert other.messages == []
