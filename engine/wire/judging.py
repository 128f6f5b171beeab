"""What is said of one large value by the process that checks it: the same functions as everywhere, in the order of their answers.

Its job: one order and the bytes that come with it to its answers, one after the other, each as soon as it is known.
Not its job: moving bytes and being locked (``worker_images/checker/main.py``), believing the answers (``supervision/values.py``).
Laws:
1. A value has the verdict and the lines here that it has on the event loop (tests/agreement/test_large.py).
2. Whatever the bytes are, there is an answer that ends the order (tests/agreement/test_large.py).
"""

from collections.abc import Iterator, Mapping
from typing import Any

from engine import errors, spelling
from engine.checking import Checker
from engine.wire import decoding, messages
from engine.wire.framing import RemoteFault

SOUND, LINES, DIGEST, FAULT, COSTLY = "sound", "lines", "digest", "fault", "costly"  # the names of the answers


class Judge:
    """Keeps the schemas it has seen, compiled: whoever gives orders lets the process go before they are too many."""

    def __init__(self) -> None:
        self._checkers: dict[str, Checker] = {}

    def answers(self, details: Mapping[str, Any], payload: memoryview) -> Iterator[tuple[str, Any]]:
        """The answers to one order: sound, then lines (none when the value fits), then a result's digest; or a fault, which is the last."""
        try:
            yield from self._answers(details, payload)
        except RemoteFault as fault:
            yield FAULT, fault.line
        except (MemoryError, RecursionError):
            yield COSTLY, None

    def _answers(self, details: Mapping[str, Any], payload: memoryview) -> Iterator[tuple[str, Any]]:
        kind = messages.FROM_WORKER[details["kind"]]
        messages.require_sound(payload, nodes=details["nodes"])
        yield SOUND, None
        # this process is let go long before the keys that the decoder keeps are too many
        build = decoding.built_keeping_keys
        message = messages.decode_sound(payload, kind, depth=details["depth"], nodes=details["nodes"], build=build)
        value = getattr(message, "value", None)
        lines = self._lines(details["schema"], value)
        yield LINES, [errors.one_line(line) for line in lines]
        if kind is messages.Result and not lines:
            yield DIGEST, spelling.digest(value)

    def _lines(self, schema: str | None, value: Any) -> tuple[str, ...]:
        if schema is None:
            return ()
        if schema not in self._checkers:
            self._checkers[schema] = Checker.of_text(schema)
        return self._checkers[schema].problems_of_data(value, aside=True)
