"""Has the interpreter leave alone what children share: each page that nobody writes is a page that no child copies.

Its job: find what is loaded, and have it marked immortal; keep the collector's hands off it.
Not its job: the mark (``kernel.py``), which interpreters know it (CPython from 3.12 on; an older one only freezes).
Laws:
1. Only for processes that run no tool and free nothing of what they loaded (tests/unit/test_immortal.py).
2. What is loaded later is as mortal as ever, and what was loaded works as before (tests/unit/test_immortal.py).
3. What must be forgotten later can be: it is named, and stays mortal (tests/unit/test_immortal.py).
"""

import gc
import sys
import types
from collections.abc import Sequence

from enter import kernel

_IMMORTAL = 0xFFFF_FFFF  # what an immortal object's count says


def settle(besides: Sequence[object] = ()) -> None:
    """All that is loaded now, besides these, stays for good: not written by counts of references, not walked by the collector."""
    if kernel.can_be_immortal():
        found = _found()
        for one in (besides, *besides):  # itself too, or it would hold them for good
            found.pop(id(one), None)
        kernel.make_immortal(found.values())
    gc.freeze()


def _found() -> dict[int, object]:
    """Address -> every object in reach that is not immortal yet; code is not the collector's, so its parts are named here."""
    found: dict[int, object] = {}
    level = gc.get_objects()
    while level:
        fresh = {id(one): one for one in level if sys.getrefcount(one) < _IMMORTAL}
        for known in found.keys() & fresh.keys():
            del fresh[known]
        found.update(fresh)
        level = gc.get_referents(*fresh.values())
        for one in fresh.values():
            if type(one) is types.CodeType:
                level += (one.co_consts, one.co_names, one.co_filename, one.co_name, one.co_qualname, one.co_linetable)
    return found
