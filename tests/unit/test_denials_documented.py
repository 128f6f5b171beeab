"""The kinds of refused connections, as the policies' page lists them."""

import re

from engine.egress.traffic import DENIALS
from tests.kit import PROJECT

_PAGE = PROJECT / "policies" / "README.md"


def test_the_page_has_every_kind_of_refusal_and_no_other() -> None:
    """What stands on receipts and on stderr can be looked up."""
    table = _PAGE.read_text(encoding="utf-8").split("| kind | what was refused |", 1)[1].split("\n\n", 1)[0]
    kinds = [kind for line in table.splitlines()[2:] for kind in re.findall(r"`(\w+)`", line.split("|")[1])]
    assert sorted(kinds) == sorted(DENIALS)
