"""The main job: a tool of a project of many files runs in a jail and its checked answer comes back."""

from pathlib import Path

from engine.host import Engine
from tests import kit

SOURCE = {
    "tools.py": """
from engine import schema, tool
from shop import windows

@tool(description="Read current refund policy.", input=schema.object({"region": schema.string()}),
      output=schema.object({"region": schema.string(), "refundWindowDays": schema.integer()}), effect="read")
def lookup_policy(region: str) -> dict:
    print("looking", region)
    return {"region": region, "refundWindowDays": windows.days(region)}
""",
    "shop/__init__.py": "",
    "shop/windows.py": "from .table import TABLE\ndef days(region):\n    return TABLE[region]\n",
    "shop/table.py": "TABLE = {'EU': 14, 'US': 30}\n",
}


async def test_a_tool_of_many_files_answers_from_the_jail(engine: Engine, tmp_path: Path) -> None:
    """The value is the tool's, the output is captured, the receipt says ok."""
    outcome = await kit.jailed(engine, tmp_path / "source", SOURCE, "lookup_policy", {"region": "EU"})
    assert (outcome.reason, outcome.value, outcome.stdout) == ("ok.done", {"region": "EU", "refundWindowDays": 14}, "looking EU\n")
    assert (await outcome.concluded())["verdict"]["reason"] == "ok.done"


def test_the_control_gives_the_same_answer_without_a_wall(tmp_path: Path) -> None:
    """The bare run that denial tests compare with works."""
    assert kit.bare(tmp_path, SOURCE, "lookup_policy", {"region": "US"}).value == {"region": "US", "refundWindowDays": 30}
