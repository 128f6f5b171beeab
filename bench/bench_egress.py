"""What a scope costs: a connection through the relay beside the same one without it, its bytes, and calls that have one living child.

A tool in a jail connects to a server on loopback by a name that its policy grants, says a real TLS hello and a small request, and takes the
answer. A plain process runs the same client code against the same server, in turns with the tool: ``added`` is the difference of each
turn's medians. There is no TLS behind the hello: the relay reads nothing there, so this is the relay itself. Names are looked up before.

A worker with a scope has one living child: the next call's is forked when this one's is gone. ``unscoped`` is the same tool without one.
"""

import importlib.util
import statistics
import time

import trio

from bench import connections, payload
from bench.case import OURS, Case, Metric, Target
from bench.connections import HOST
from bench.measurement import Absent, Run, lookup_policy
from bench.numbers import summary
from engine import Engine

BYTES = 200_000_000
PACE_SECONDS = 0.01
_BATCH = 50
_POLICY = """
extends = "required"
[network]
profile = { value = "bench", reason = "the tool connects to the server of the bench" }
[loosenings]
network_private_destinations = { value = true, reason = "the server of the bench is on loopback" }
"""
_PROFILE = """
purpose = "the server of the bench"
[[allow]]
to = "PLACE"
private = ["127.0.0.1/32"]
reason = "the tool connects to it"
[bounds]
in = { value = "64 GiB", reason = "how fast the bytes come is what is asked" }
rate = { value = "1000 GiB", reason = "how fast the bytes come is what is asked" }
[examples]
allowed = ["PLACE"]
denied = ["other.example.test:443"]
"""
_TOOLS = """
from engine import tool

@tool(effect="read", description="Nanoseconds of new connections.", network=["PLACE"])
def connected(count: int) -> list[int]:
    return connect(HOST, PORT, count)

@tool(effect="read", description="Nanoseconds of a download.", network=["PLACE"])
def downloaded(size: int) -> int:
    return download(HOST, PORT, size)
"""


def source(port: int) -> str:
    """The tools that connect."""
    place = f"{HOST}:{port}"
    return "\n\n".join([connections.IMPORTS, connections.TEXT, _TOOLS]).replace("PLACE", place).replace("PORT", str(port))


def scoped(port: int) -> str:
    """The small tool of most cases, which asks for that place as well."""
    return payload.LOOKUP.replace('effect="read",', f'effect="read",\n    network=["{HOST}:{port}"],')


def engine(run: Run, port: int) -> Engine:
    """One whose policy grants the place to who asks for it. Raises Absent where an engine knows no scopes."""
    if importlib.util.find_spec("engine.egress") is None or importlib.util.find_spec("engine.egress.relay") is None:
        raise Absent("this engine has no scoped network")
    from engine.egress.resolver import FixedResolver  # here, because a base that is compared with may have none

    policy = run.folder / "policy" / "own.toml"
    (policy.parent / "network").mkdir(parents=True)
    policy.write_text(_POLICY, encoding="utf-8")
    (policy.parent / "network" / "bench.toml").write_text(_PROFILE.replace("PLACE", f"{HOST}:{port}"), encoding="utf-8")
    resolver = FixedResolver({HOST: ["127.0.0.1"]})
    return Engine(policy=policy, state_dir=run.folder / "state", worker="native", resolver=resolver)


def _stockade(run: Run) -> None:
    with connections.serving() as port, connections.client(port) as direct:
        trio.run(_all, run, port, direct)


async def _all(run: Run, port: int, direct: connections.Client) -> None:
    async with engine(run, port) as opened:
        await opened.load(payload.write(run.folder, source(port)))
        await _connections(run, opened, direct)
        for number in range(run.size(full=8, quick=4)):
            outcome = await opened.call("downloaded", {"size": BYTES})
            run.check(outcome.reason, "ok.done", "a download")
            if number and outcome.value:  # the first one warms the path
                run.add("inwards", BYTES * 1000 / outcome.value)
        await opened.load(payload.write(run.folder / "small", scoped(port)))
        await _calls(run, opened)


async def _connections(run: Run, opened: Engine, direct: connections.Client) -> None:
    """The tool and the plain process in turns."""
    ours: list[int] = []
    theirs: list[int] = []
    for number in range(run.size(full=12, quick=6) + 1):
        outcome = await opened.call("connected", {"count": _BATCH})
        run.check(outcome.reason, "ok.done", f"connections of a tool: {'; '.join(outcome.lines)}")
        plain = await trio.to_thread.run_sync(direct.connect, _BATCH)
        if not number or outcome.value is None:
            continue
        run.add("added", (statistics.median(outcome.value) - statistics.median(plain)) / 1e6)
        for taken in outcome.value:
            run.add("connection", taken / 1e6)
        ours, theirs = ours + outcome.value, theirs + plain
    if ours:
        here, there = summary([taken / 1e6 for taken in ours]), summary([taken / 1e6 for taken in theirs])
        for statistic in ("min", "median", "p99"):
            run.fact(f"added at the {statistic}, ms", round(getattr(here, statistic) - getattr(there, statistic), 3))


async def _calls(run: Run, opened: Engine) -> None:
    """The small tool, which connects to nothing: paced, then one call right after the other."""
    for number in range(run.size(full=220, quick=120)):
        await trio.sleep(PACE_SECONDS)
        taken = await _call(run, opened)
        if number >= 20:  # the first ones warm the path
            run.add("paced call", taken)
    seconds = 1.0 if run.quick else 3.0
    done, started = 0, time.perf_counter()
    while (passed := time.perf_counter() - started) < seconds:
        run.add("call in a row", await _call(run, opened))
        done += 1
    run.add("rate", done / passed)


async def _call(run: Run, opened: Engine) -> float:
    started = time.perf_counter_ns()
    outcome = await opened.call("lookup_policy", {"region": "EU"})
    taken = (time.perf_counter_ns() - started) / 1e6
    run.check(outcome.value, lookup_policy("EU"), outcome.reason)
    return taken


def _unscoped(run: Run) -> None:
    async def small() -> None:
        async with engine(run, 443) as opened:
            await opened.load(payload.write(run.folder, payload.LOOKUP))
            await _calls(run, opened)

    trio.run(small)


def _direct(run: Run) -> None:
    """The same client in this process, with nothing between it and the server. It raises for a wrong answer."""
    with connections.serving() as port:
        for number in range(run.size(full=12, quick=6) + 1):
            for taken in connections.connect("127.0.0.1", port, _BATCH):
                if number:
                    run.add("connection", taken / 1e6)
        for number in range(run.size(full=8, quick=4)):
            taken = connections.download("127.0.0.1", port, BYTES)
            if number:
                run.add("inwards", BYTES * 1000 / taken)


CASE = Case(
    name="egress",
    title="The network of a scope",
    metrics=(
        Metric(name="connection", about="a new TCP connection, a small request and its answer", chart="distribution"),
        Metric(name="added", about="of that by the relay: a turn's median less that of the plain process"),
        Metric(name="inwards", about="bytes of one connection, from the server to the tool", unit="MB/s", better="higher"),
        Metric(name="paced call", about="a fresh call that connects to nothing, every 10 ms", chart="distribution"),
        Metric(name="call in a row", about="the same, one right after the other"),
        Metric(name="rate", about="calls per second, one right after the other", unit="calls/s", better="higher"),
    ),
    subjects={OURS: _stockade, "direct": _direct, "unscoped": _unscoped},
    targets=(
        Target(metric="added", statistic="median", bound=0.7),
        Target(metric="inwards", statistic="median", bound=500),
    ),
    full=3,
    compare=("connection", "inwards", "paced call", "call in a row"),
)
