"""Whether a process that answered a call may serve the next one: only under the freshness ``warm``.

Its job: the decision, and the spare that goes on with the child.
Not its job: ending a child (``reaper.py``), one that waited too long (``pool.py``), what the guest does between two calls.
Laws:
1. Only an answer that leaves the process sound lets it go on; every other end is its end (tests/contract/test_kept_warm.py).
2. No call has much less than its CPU limit because earlier calls used it up (tests/contract/test_kept_warm.py).
3. What came after an answer never becomes the next one (tests/security/test_promise_kept.py).
"""

from engine.outcome import Verdict
from engine.policy.model import Freshness
from engine.supervision.spare import Recipe, Spare

CALLS = 1000  # of one process: what a tool loses of memory at each call adds up to no more than that
_CPU_SHARE = 0.1  # of the CPU limit, which the kernel holds for a process: what its calls may use before it is replaced
# the tool raised, or gave back what does not fit: its process is as sound as after a value; one that called sys.exit wants to end
_SOUND = frozenset({"ok.done", "tool_error.exception", "tool_error.result_not_data", "tool_error.result_schema"})


def calls_of(freshness: Freshness) -> int:
    """How many calls a child is told to wait for."""
    # under snapshot only itself can be asked what it used, so it must be there when it has answered
    return {Freshness.FRESH: 1, Freshness.SNAPSHOT: 2, Freshness.WARM: CALLS}[freshness]


def following(spare: Spare, recipe: Recipe, verdict: Verdict) -> Spare | None:
    """The same child, ready for another call; None when it has to end."""
    child, pump = spare.child, spare.pump
    if recipe.freshness is not Freshness.WARM or verdict.code not in _SOUND or spare.verdict is not None:
        return None
    if child is None or pump is None or not pump.quiet() or spare.calls + 1 >= CALLS or _out_of_memory(verdict):
        return None
    used = child.cpu_seconds()
    if used is None or used - spare.used_when_ready > recipe.cpu_s * _CPU_SHARE:
        return None
    return spare.again(used)


def _out_of_memory(verdict: Verdict) -> bool:
    """Whether memory ran out: what earlier calls hold of it would fail the next one too."""
    return any(line.startswith("MemoryError") for line in verdict.lines)
