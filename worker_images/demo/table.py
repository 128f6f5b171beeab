"""Reads the desk's table, a data file that was staged with the source."""

import csv
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Window:
    """How long a refund may be asked for in a region, and what it costs."""

    region: str
    days: int
    fee_percent: int


def windows() -> dict[str, Window]:
    """The table by region."""
    with open(Path(__file__).parent / "windows.csv", newline="", encoding="utf-8") as file:
        rows = csv.DictReader(file)
        return {row["region"]: Window(row["region"], int(row["days"]), int(row["fee_percent"])) for row in rows}
