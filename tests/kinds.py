"""Which tests run on every kind of worker, and which do not, with the reason: one table for the contract and the promises.

A test file that is named in ``BOTH`` runs on both kinds; a test of it that means one wall alone is listed in ``NATIVE_ONLY``.
"""

import functools
from collections.abc import Mapping

import pytest

from engine.errors import EngineError
from tests import machine

KINDS = ("native", "wasm")
BOTH = (
    "contract/test_background.py",
    "contract/test_cancelling.py",
    "contract/test_concluding.py",
    "contract/test_deadlines.py",
    "contract/test_endings.py",
    "contract/test_exceptions.py",
    "contract/test_first.py",
    "contract/test_loading.py",
    "contract/test_modes.py",
    "contract/test_namespaces.py",
    "contract/test_nesting.py",
    "contract/test_pool.py",
    "contract/test_receipts.py",
    "contract/test_refusals.py",
    "contract/test_streams.py",
    "contract/test_tenants.py",
    "contract/test_values.py",
    "security/test_promise_bounded.py",
    "security/test_promise_checked.py",
    "security/test_promise_clean.py",
    "security/test_promise_ends.py",
    "security/test_promise_environment.py",
    "security/test_promise_fresh.py",
    "security/test_promise_identity.py",
    "security/test_promise_named.py",
    "security/test_promise_network.py",
    "security/test_promise_outside.py",
    "security/test_promise_view.py",
)
# the end of a test's name (file::class::test, without parameters) -> why it means the native wall alone
NATIVE_ONLY: Mapping[str, str] = {}


def both(nodeid: str) -> bool:
    """Whether the test of that name runs on both kinds."""
    name = nodeid.removeprefix("tests/").partition("[")[0]
    return name.partition("::")[0] in BOTH and name not in NATIVE_ONLY


@functools.cache
def _image() -> EngineError | None:
    found = machine.image()
    return found if isinstance(found, EngineError) else None


def require_image() -> None:
    """Skip, saying unproven, where the image of this checkout is not built."""
    if (problem := _image()) is not None:
        pytest.skip(f"unproven: WebAssembly workers: {problem}")
