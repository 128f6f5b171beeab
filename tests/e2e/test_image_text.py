"""The image that carries packages, built for real: a tool uses each of them, from the memory of the image.

It is built once per machine, in the user's own cache, and found again; where nothing can be fetched this is unproven.
"""

import os
import warnings
from pathlib import Path

import pytest

from engine.errors import EngineError
from engine.images import build, recipe
from engine.images.builder import Means
from engine.images.cache import Cache
from engine.images.image import Image, Shipped, find
from tests import kit, machine
from tests.images import Heard
from tests.kit import PROJECT

pytestmark = [pytest.mark.slow, pytest.mark.network, pytest.mark.filterwarnings("default:unproven")]
SHIPPED = Shipped(worker_images=PROJECT / "worker_images", engine=PROJECT / "engine", policies=PROJECT / "policies")
NO_PYTHON = "the builder needs Python 3.12 or newer"
NOT_REACHED = "stockade image import"  # part of the error where no index was reached
TOOL = '''
import markupsafe, msgpack
from dateutil.parser import parse
from dateutil.relativedelta import relativedelta
from jinja2 import Environment
from markdown_it import MarkdownIt
from engine import tool

PAGE = Environment(autoescape=True).from_string("{{ day }}: {{ body | safe }}by {{ who }}")

@tool(effect="read")
def page(text: str, day: str, who: str) -> list[str]:
    """A page out of Markdown, dated a month later, packed and unpacked; and where the two fallbacks come from."""
    later = parse(day).date() + relativedelta(months=1)
    made = PAGE.render(day=later, body=MarkdownIt().render(text), who=who)
    packed = msgpack.unpackb(msgpack.packb({"page": made}))
    return [packed["page"], msgpack.Packer.__module__, markupsafe._escape_inner.__module__]
'''


@pytest.fixture(scope="module")
def image() -> Image:
    """The image, built or found."""
    cache = Cache(folder=machine.IMAGE_DIR)
    wanted = recipe.read("python_wasm_text", SHIPPED.worker_images, SHIPPED.engine)
    try:
        made = build.build(wanted, cache, SHIPPED.worker_images, Means(environment=os.environ), Heard())
    except EngineError as error:
        if not any(why in str(error) for why in (NOT_REACHED, NO_PYTHON)):
            raise
        text = f"unproven: the image cannot be built here: {error}"
        warnings.warn(text, stacklevel=2)
        pytest.skip(text)
    assert made.manifest.name == "python_wasm_text"
    return find("python_wasm_text", cache, SHIPPED, allowed=None)


async def test_a_tool_uses_every_package(image: Image, tmp_path: Path) -> None:
    """Markdown, templates with escaping, dates and MessagePack; the last two by their pure Python halves. No layer is needed."""
    arguments = {"text": "# Hi *you*", "day": "31 January 2024", "who": "<me>"}
    page = "2024-02-29: <h1>Hi <em>you</em></h1>\nby &lt;me&gt;"
    policy = tmp_path / "own.toml"
    policy.write_text('extends = "required"\nimage = { value = "python_wasm_text", reason = "its packages" }\n')
    async with kit.clean_engine(tmp_path / "state", worker="auto", image_dir=machine.IMAGE_DIR, policy=policy) as engine:
        outcome = await kit.jailed(engine, tmp_path / "source", TOOL, "page", arguments)
        receipt = await outcome.concluded()
    assert (outcome.reason, outcome.value) == ("ok.done", [page, "msgpack.fallback", "markupsafe._native"])
    assert (receipt["worker"]["kind"], receipt["digests"]["image"]) == ("wasm", image.digest)


def test_the_image_says_what_it_carries(image: Image) -> None:
    """The packages by name and version, and their modules among those that can be imported; the lock file lies beside it."""
    assert dict(image.entry.manifest.packages) == {
        "jinja2": "3.1.6",
        "markdown-it-py": "4.3.0",
        "markupsafe": "3.0.4",
        "mdurl": "0.1.2",
        "msgpack": "1.2.4",
        "python-dateutil": "2.9.0.post0",
        "six": "1.17.0",
    }
    assert {"dateutil", "jinja2", "json", "markdown_it", "msgpack", "re", "sqlite3"} <= image.modules
    assert {"ssl", "ctypes"}.isdisjoint(image.modules)
    assert (Path(image.entry.path) / build.PACKAGES_LOCK).is_file()
