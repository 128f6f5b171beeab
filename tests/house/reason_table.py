"""The README's table of outcomes, made from ``engine/outcome.py``; ``python -m tests.house.reason_table`` writes it there again."""

from collections.abc import Iterable
from pathlib import Path

from engine.outcome import REASONS, Reason
from tests.house.reading import PROJECT

BEGIN = "<!-- outcomes: written by `make reasons` from engine/outcome.py -->"
END = "<!-- outcomes end -->"


def table(reasons: Iterable[Reason]) -> str:
    """The rows as a Markdown table, in the order of the closed list."""
    lines = ["| outcome | exit | whose fault | what to do |", "|---|---|---|---|"]
    for reason in reasons:
        code = f"`{reason.code}`" + (f" (`{reason.alias}`)" if reason.alias else "")
        lines.append(f"| {code} | {reason.exit_code} | {reason.fault} | {reason.advice.replace('|', chr(92) + '|')} |")
    return "\n".join(lines)


def block(readme: str) -> str | None:
    """What stands between the two markers; None when they are not there exactly once, in order."""
    if readme.count(BEGIN) != 1 or readme.count(END) != 1 or readme.index(END) < readme.index(BEGIN):
        return None
    return readme.split(BEGIN)[1].split(END)[0].strip()


def rewrite(path: Path) -> None:
    """Put the table of today between the markers of that README."""
    before, rest = path.read_text(encoding="utf-8").split(BEGIN)
    after = rest.split(END)[1]
    path.write_text(f"{before}{BEGIN}\n\n{table(REASONS.values())}\n\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    rewrite(PROJECT / "README.md")
