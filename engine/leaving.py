"""What leaves a call, looked through for secrets before anybody sees it.

Its job: for one call, withhold or redact what a worker sent that holds a secret, and count for the receipt what was found where.
Not its job: finding one (``results/redact.py``), holding one (``egress/vault.py``), how a call ends (``call.py``).
Laws:
1. Data in which a secret is certain is withheld, or redacted where the policy says so; what only looks like one is redacted, or withheld
   where the policy says so (tests/contract/test_leaving.py).
2. Words for people (logs, progress, errors, what was printed) are always redacted, and never a reason to withhold the answer, but for a
   number (tests/contract/test_leaving.py).
3. A secret that comes in parts is found with its last part (tests/contract/test_leaving.py).
4. A number that is a secret is withheld: no mark can stand in its place (tests/contract/test_leaving.py).
5. What was redacted is looked through again; what still shows a secret is withheld, or of words one mark is left
   (tests/contract/test_leaving.py).
6. What is more than a few thousand bytes is worked on in a thread: others have their turns, and the call's deadline ends the wait
   (tests/contract/test_leaving_turns.py).
"""

import dataclasses
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgpack
import trio

from engine import spelling
from engine.errors import one_line
from engine.policy.model import OnSecret
from engine.results.redact import Hit, Trail, Unredactable, Watch, blotted, streams
from engine.results.sources import declared_problems

_FEW_BYTES = 32 << 10  # a few milliseconds at worst; more is for a thread
_LINE_CHARACTERS = 8 << 10  # of a line for people; of so many at most half are shown
_Made = TypeVar("_Made")
Problems = Callable[[Any], Sequence[str]]


class Withheld(Exception):
    """Data that may not be seen; ``ids`` are the secrets in it."""

    def __init__(self, ids: Iterable[str]) -> None:
        self.ids = tuple(sorted({*ids}))
        super().__init__(f"holds {', '.join(self.ids)}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Seen:
    """A payload that was looked at: its size in bytes, and the hits, one of each ID when there were many."""

    size: int
    hits: tuple[Hit, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Unseen:
    """A payload that is too large to be looked at where it came."""

    payload: bytes | memoryview = dataclasses.field(repr=False)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shown:
    """Data as it may be seen. ``digest`` of it where it was redacted, else None: then ``value`` is what came."""

    value: Any
    digest: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Judged:
    """What came of an item: ``value`` or, where that may not be seen, the IDs in ``withheld``."""

    value: Any = None
    withheld: tuple[str, ...] = ()
    counts: Mapping[str, int] = dataclasses.field(default_factory=dict)
    trail: Trail | None = None
    digest: str | None = None


class Leaving:
    """The way out of one call."""

    def __init__(self, watch: Watch, on_secret: OnSecret) -> None:
        self._watch, self._on_secret = watch, on_secret
        self._over = threading.Event()  # nobody waits for what is looked through in a thread
        self._patient = watch.until(self._over.is_set)
        self._trail: Trail | None = None  # once something was let out before the answer
        self._found: dict[str, Counter[str]] = {}

    @property
    def found(self) -> Mapping[str, Mapping[str, int]]:
        """How often which secret was found where, by its id."""
        return self._found

    def look(self, payload: memoryview) -> Seen | Unseen:
        """What is seen in a payload as it came; of a large one a copy, for ``seen``."""
        if len(payload) > _FEW_BYTES:
            return Unseen(payload=bytes(payload))
        return Seen(size=len(payload), hits=self._watch.look(payload))

    async def seen(self, payload: Seen | Unseen) -> Seen:
        """What is seen in it."""
        if isinstance(payload, Seen):
            return payload
        data = payload.payload
        return Seen(size=len(data), hits=await self._aside(len(data), lambda: self._patient.seen(data)))

    async def arguments(self, packed: bytes) -> tuple[str, ...]:
        """The ids of secrets that arguments hold and that keep them from being sent."""
        refusing = self._on_secret is OnSecret.REFUSE
        found = {hit.id for hit in await self._aside(len(packed), lambda: self._patient.seen(packed)) if hit.certain or refusing}
        self._count("arguments", Counter(found))
        return tuple(sorted(found))

    async def declared(self, told: Sequence[Any]) -> list[str]:
        """One line for each tool that declares a secret."""
        return await self._aside(_FEW_BYTES + 1, lambda: declared_problems(told, self._patient))

    async def item(self, where: str, value: Any, seen: Seen, problems: Problems | None = None) -> Any:
        """Data that the caller is shown before the answer, as it may be seen. Raises Withheld."""
        trail = self._trail or Trail(self._patient)
        return self._taken(where, await self._aside(seen.size, lambda: self._judged(value, seen.hits, trail, problems, digest=False))).value

    async def result(self, value: Any, seen: Seen, problems: Problems) -> Shown:
        """The same of the answer; the very same object where nothing was found."""
        trail = self._trail or Trail(self._patient)
        made = self._taken("result", await self._aside(seen.size, lambda: self._judged(value, seen.hits, trail, problems, digest=True)))
        return Shown(value=made.value, digest=made.digest)

    async def words(self, where: str, value: list[Any], seen: Seen) -> list[Any]:
        """What is said beside the data, a line first, redacted. Raises Withheld for a number alone."""
        trail = self._trail or Trail(self._patient)
        line, *rest = self._taken(where, await self._aside(seen.size, lambda: self._spoken(where, value, seen.hits, trail))).value
        return [self._line(where, line), *rest]

    def text(self, where: str, text: str) -> str:
        """One text for people, redacted."""
        made, counts = self._watch.text(text)
        self._count(where, counts)
        return made

    def said(self, line: str) -> str:
        """One line of an error, redacted, and as it is shown."""
        # security: a megabyte of line is cut when it is shown, and is not worked on before
        return self._line("error", self.text("error", line[:_LINE_CHARACTERS]))

    def line(self, receipt: bytes) -> bytes:
        """A receipt, redacted."""
        return self._watch.line(receipt)

    def _line(self, where: str, line: str) -> str:
        # security: made one line, a line break is a blank and a sign that nobody sees is none, which makes a value whole again
        return self.text(where, one_line(line))

    def _taken(self, where: str, made: _Judged) -> _Judged:
        """Counted here: what goes on in a thread that nobody waits for any more changes nothing."""
        self._trail = made.trail or self._trail
        self._count(where, made.counts)
        if made.withheld:
            raise Withheld(made.withheld)
        return made

    def _judged(self, value: Any, hits: tuple[Hit, ...], earlier: Trail, problems: Problems | None, *, digest: bool) -> _Judged:
        trail = earlier.fork()
        whole = digest and self._trail is None and isinstance(value, str)  # one text in one piece, with nothing before it or behind
        split, numbers = () if whole else trail.item(value, "item"), self._patient.numbers(value)
        if not (hits or split or numbers):
            return _Judged(value=value, trail=trail)
        ids = (*(hit.id for hit in (*hits, *split)), *numbers)
        certain = bool(split or numbers or any(hit.certain for hit in hits))
        if self._on_secret is OnSecret.REFUSE or (certain and self._on_secret is OnSecret.BY_SHAPE):
            return _withheld(ids)
        made = self._redacted(value, earlier, "item", packed=certain)
        if made.withheld or made.value == value:  # chance: what looks like one lies over what stands between texts
            return made if made.withheld else _Judged(value=value, trail=trail)
        if problems is not None and problems(made.value):  # a mark may not be what the schema wants
            return _withheld(ids)
        return dataclasses.replace(made, digest=spelling.digest(made.value) if digest else None)

    def _spoken(self, where: str, value: list[Any], hits: tuple[Hit, ...], earlier: Trail) -> _Judged:
        trail = earlier.fork()
        if not (hits or trail.item(value, where) or self._patient.numbers(value)):
            return _Judged(value=value, trail=trail)
        made = self._redacted(value, earlier, where, packed=any(hit.certain for hit in hits))
        if not made.withheld or self._patient.numbers(value):
            return made
        mark = blotted("", made.withheld[0], keys=False)
        return dataclasses.replace(made, value=[mark, *(_emptied(item) for item in value[1:])], withheld=())

    def _redacted(self, value: Any, earlier: Trail, carrier: str, *, packed: bool) -> _Judged:
        """With marks in it, and nothing to be found any more; else withheld. ``packed``: a secret was certain in what came."""
        try:
            made, counts = self._patient.value(value)
        except Unredactable as problem:
            return _withheld(problem.ids)
        trail = earlier.fork()
        split = trail.item(made, carrier)
        if split:
            # its parts stand in several texts or keys, here or in what was seen before: no half of it stays
            in_texts = earlier.fork().look(streams(made)[0], f"{carrier} texts")
            counts.update({hit.id: 1 for hit in split if hit.id not in counts})
            made, trail = blotted(made, split[0].id, keys=not in_texts), earlier.fork()
            split = trail.item(made, carrier)
        # security: the codes of its characters, as numbers, are its very bytes in a frame, and no mark can stand for them
        again = self._patient.seen(msgpack.packb(made, unicode_errors="surrogatepass")) if packed else ()
        if still := [hit.id for hit in (*split, *again) if hit.certain]:
            return dataclasses.replace(_withheld(still), trail=trail)
        return _Judged(value=made, counts=counts, trail=trail)

    async def _aside(self, size: int, work: Callable[[], _Made]) -> _Made:
        """What that work makes; of more than a few bytes in a thread, which ends soon after the call does not wait for it any more."""
        if size <= _FEW_BYTES:
            return work()
        try:
            return await trio.to_thread.run_sync(work, abandon_on_cancel=True)
        except trio.Cancelled:
            self._over.set()
            raise

    def _count(self, where: str, counts: Mapping[str, int]) -> None:
        for name, times in counts.items():
            self._found.setdefault(name, Counter())[where] += times


def _withheld(ids: Iterable[str]) -> _Judged:
    found = tuple(sorted({*ids}))
    return _Judged(withheld=found, counts=Counter(found))


def _emptied(value: Any) -> Any:
    return None if value is None else {} if isinstance(value, dict) else 0
