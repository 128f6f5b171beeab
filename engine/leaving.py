"""What leaves a call, looked through for secrets before anybody sees it.

Its job: for one call, withhold or redact what a worker sent that holds a secret, and count for the receipt what was found where.
Not its job: finding one (``results/redact.py``), holding one (``egress/vault.py``), how a call ends (``call.py``).
Laws:
1. Data in which a secret is certain is withheld, or redacted where the policy says so; what only looks like one is redacted, or withheld
   where the policy says so (tests/contract/test_leaving.py).
2. Words for people (logs, progress, errors, what was printed) are always redacted, and never a reason to withhold the answer
   (tests/contract/test_leaving.py).
3. A secret that comes in parts is found with its last part (tests/contract/test_leaving.py).
4. A number that is a secret is withheld: no mark can stand in its place (tests/contract/test_leaving.py).
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import trio

from engine.policy.model import OnSecret
from engine.results.redact import Hit, Trail, Unredactable, Watch, joined


class Withheld(Exception):
    """Data that may not be seen; ``ids`` are the secrets in it."""

    def __init__(self, ids: Iterable[str]) -> None:
        self.ids = tuple(sorted({*ids}))
        super().__init__(f"holds {', '.join(self.ids)}")


class Leaving:
    """The way out of one call."""

    def __init__(self, watch: Watch, on_secret: OnSecret) -> None:
        self._watch, self._on_secret = watch, on_secret
        self._trail: Trail | None = None  # once something was let out before the answer
        self._found: dict[str, Counter[str]] = {}

    @property
    def found(self) -> Mapping[str, Mapping[str, int]]:
        """How often which secret was found where, by its id."""
        return self._found

    def look(self, payload: bytes | memoryview) -> tuple[Hit, ...]:
        """What is seen in a payload as it came."""
        return self._watch.look(payload)

    def arguments(self, packed: bytes) -> tuple[str, ...]:
        """The ids of secrets that arguments hold and that keep them from being sent."""
        refusing = self._on_secret is OnSecret.REFUSE
        found = {hit.id for hit in self._watch.look(packed) if hit.certain or refusing}
        self._count("arguments", Counter(found))
        return tuple(sorted(found))

    async def look_long(self, payload: bytes | memoryview) -> tuple[Hit, ...]:
        """The same of a large one; others have their turns meanwhile."""
        found: list[Hit] = []
        for hits in self._watch.slices(payload):
            found += hits
            await trio.lowlevel.checkpoint()
        return tuple(found)

    def item(self, where: str, value: Any, hits: tuple[Hit, ...]) -> Any:
        """Data that the caller is shown before the answer, as it may be seen. Raises Withheld."""
        self._trail = self._trail or Trail(self._watch)
        return self._judged(where, value, hits, self._trail.item(value, "item"))

    def result(self, value: Any, hits: tuple[Hit, ...]) -> Any:
        """The same of the answer; the very same object where nothing was found."""
        if self._trail is not None:
            return self._judged("result", value, hits, self._trail.item(value, "item"))
        if type(value) not in (dict, list):
            return self._judged("result", value, hits, ())  # one text in one piece
        return self._judged("result", value, hits, tuple(hit for hit in self._watch.look(joined(value)) if hit.certain))

    def words(self, where: str, value: Any, hits: tuple[Hit, ...]) -> Any:
        """What is said beside the data, redacted. Raises Withheld for a number alone."""
        self._trail = self._trail or Trail(self._watch)
        split = self._trail.item(value, where)
        return self._redacted(where, value, split) if hits or split or self._watch.numbers(value) else value

    def text(self, where: str, text: str) -> str:
        """One text for people, redacted."""
        made, counts = self._watch.text(text)
        self._count(where, counts)
        return made

    def line(self, receipt: bytes) -> bytes:
        """A receipt, redacted."""
        return self._watch.line(receipt)

    def _judged(self, where: str, value: Any, hits: tuple[Hit, ...], split: tuple[Hit, ...]) -> Any:
        numbers = self._watch.numbers(value)
        if not (hits or split or numbers):
            return value
        certain = bool(split or numbers or any(hit.certain for hit in hits))
        if self._on_secret is OnSecret.REFUSE or (certain and self._on_secret is OnSecret.BY_SHAPE):
            ids = [*(hit.id for hit in (*hits, *split)), *numbers]
            self._count(where, Counter({*ids}))
            raise Withheld(ids)
        return self._redacted(where, value, split)

    def _redacted(self, where: str, value: Any, split: tuple[Hit, ...]) -> Any:
        try:
            made, counts = self._watch.value(value)
        except Unredactable as problem:
            self._count(where, Counter(problem.ids))
            raise Withheld(problem.ids) from None
        if (split and Trail(self._watch).item(made, "item")) or any(hit.start < 0 for hit in split):
            made = _blotted(made, split[0].id)  # its parts stand in several texts, here or in what was seen before
        self._count(where, counts or Counter({hit.id for hit in split}))
        return made

    def _count(self, where: str, counts: Mapping[str, int]) -> None:
        for name, times in counts.items():
            self._found.setdefault(name, Counter())[where] += times


def _blotted(value: Any, name: str) -> Any:
    """The same shape, with the mark in place of each text."""
    if isinstance(value, str):
        return f"[redacted:{name}]"
    if isinstance(value, dict):
        return {key: _blotted(item, name) for key, item in value.items()}
    return [_blotted(item, name) for item in value] if isinstance(value, list) else value
