"""``Engine``: the lifetime of everything, and the three things a program does with it.

Its job: the state folder, the launcher and the pool; ``load``, ``call``, ``stream``; the end of it all.
Not its job: a call's steps (``call.py``), a load's (``loading.py``).
Laws:
1. When the block ends nothing of it is left: process, descriptor, mount, scratch folder, cgroup (tests/security/test_promise_clean.py).
2. A launcher that died is replaced by the next call that needs one (tests/security/test_promise_ends.py).
"""

import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import trio

from engine.call import Call, Emit, Request
from engine.concluding import Conclusion
from engine.declaration import Declaration
from engine.egress.resolver import HostResolver, Resolver
from engine.errors import EngineError, HostError
from engine.events import ToolOutput
from engine.jail.plan import parser_order
from engine.launchers import Launchers
from engine.loading import Loading
from engine.outcome import Outcome, Status, error_for
from engine.places import data_dir
from engine.policy.load import load_policy
from engine.policy.model import Mode
from engine.policy.resolve import Resolved
from engine.preparing import Loaded, LoadedTool, Preparation, Prepared
from engine.results.journal import Journal
from engine.secrecy import Secrecy
from engine.staging.environ import Environ
from engine.staging.graph import Graph
from engine.state import image_digest, open_state
from engine.streaming import streamed
from engine.supervision.finishing import finish, interrupt_of
from engine.supervision.memory import private_bytes
from engine.supervision.pool import Pool
from engine.supervision.upkeep import Upkeep
from engine.supervision.values import Values
from engine.underway import UnderWay
from engine.worker.kinds import kind_named

_DEPTH = 8  # calls of tools by tools, as the contract bounds agent paths
_TICK_SECONDS = 5.0
_SHUTDOWN_SECONDS = 10.0
WorkerKind = Literal["auto", "native", "wasm"]


class Engine:
    """Runs tools behind the wall. Use it as ``async with Engine() as engine``, under trio.

    Programs use ``load``, ``unload``, ``warm``, ``call``, ``stream`` and ``concluded``; the rest is for the engine's own parts.
    ``policy`` is a name (``required``, ``fixture``, ``host``) or a path; ``state_dir`` defaults to the user's state folder, and to a
    private temporary one where that cannot be written. ``worker`` is the kind for sources that are loaded without one, ``image_dir`` where
    images lie in place of the user's cache, ``resolver`` who knows the addresses of granted hosts in place of this host.
    Raises PolicyError for the policy and its secrets, HostError for the host.
    """

    def __init__(
        self,
        *,
        policy: str | Path = "required",
        state_dir: str | Path | None = None,
        worker: WorkerKind = "auto",
        image_dir: str | Path | None = None,
        resolver: Resolver | None = None,
    ) -> None:
        self._policies = data_dir("policies")
        self._policy = load_policy(policy, self._policies)
        self._wanted_state = None if state_dir is None else Path(state_dir)
        self._tools: dict[tuple[str, str], LoadedTool] = {}  # by namespace and name, as below
        self._sources: dict[tuple[str, str], Path] = {}
        self._worker = kind_named(worker)
        self._secrecy = Secrecy(self._policies, HostResolver() if resolver is None else resolver)
        self._launchers = Launchers(None if image_dir is None else Path(image_dir))
        self._closing = trio.Event()
        self._unclean: list[str] = []

    async def __aenter__(self) -> "Engine":
        """Start the launcher; nothing of any tool runs yet. Raises RequestError for an engine that was opened before."""
        if hasattr(self, "_state"):
            raise error_for("refused.request", "an engine is opened once: make another one")
        self._state = open_state(self._wanted_state, self._policies)
        try:
            await self._secrecy.hold(self._policy)
            self._journal = Journal(self._state.folder / "journal", ephemeral=self._state.ephemeral)
            launcher = await self._launchers.native()
            self._preparation = Preparation(launcher.facts, self._state.places, self._secrecy.variables)
            native = image_digest(launcher.facts)
            self._loading = Loading(
                self._state.stores, self._state.places, self._preparation, native, self._launchers, self._journal, self._secrecy
            )
        except BaseException:
            await self._close_rest()
            raise
        self._facts = launcher.facts
        self._background = trio.open_nursery()
        around = await self._background.__aenter__()
        with trio.CancelScope(shield=True):  # trio forgets a start in a cancelled scope
            self._nursery = await around.start(_shielded)
        self._pool = Pool(self._nursery, self._launchers.of)
        self._values = Values(self._nursery, self._checking_lock)
        self._under_way = UnderWay(self._nursery, self._note)
        self._nursery.start_soon(self._look_after_idle)
        self._nursery.start_soon(self._journal.keep)
        return self

    @trio.lowlevel.enable_ki_protection  # an interrupt comes while it waits, never between two steps
    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """End calls in flight as ``cancelled.shutdown``, then every process. Raises HostError when something would not end."""
        self._closing.set()
        try:
            await finish(self._end_workers)
        finally:
            self._nursery.cancel_scope.cancel()
            try:
                # the body's own exception goes its own way: through here it would come out wrapped in a group
                await self._background.__aexit__(None, None, None)
            except BaseExceptionGroup as group:
                raise interrupt_of(group) from None
            finally:
                await self._close_rest()

    async def _end_workers(self) -> None:
        with trio.move_on_after(_SHUTDOWN_SECONDS):
            for call in list(self._under_way.calls):
                call.shut_down()
            await self._under_way.wait_over()
        for close in (self._values.close, self._pool.close):  # each process's end has a deadline of its own
            try:
                await close()
            except HostError as error:
                self._note(*error.lines)
        if self._unclean:
            raise HostError("engine_failed.not_clean", *self._unclean)

    async def load(
        self, source: str | Path, *, policy: str | Path | None = None, worker: WorkerKind | None = None, namespace: str = ""
    ) -> list[Declaration]:
        """The declarations of a tool file or a package folder, read in a jail. Loading a source again replaces its tools.

        Tools of different namespaces may have one name; none calls another's, and ``unload`` forgets them.
        Raises ToolError (the source), PolicyError (the policy, a grant), RequestError (the path) or HostError (this host).
        """
        kind, place = self._worker if worker is None else kind_named(worker), Path(source)
        chosen = self._policy if policy is None else load_policy(policy, self._policies)
        tools = await self._opened().load(await self._launchers.native(), self._pool, place, chosen, kind)
        known = _real(place)
        taken = [made.name for made in tools if self._sources.get((namespace, made.name), known) != known]
        if taken:
            homes = {name: self._sources[namespace, name].name for name in taken}
            raise error_for("refused.declaration", *(f"tool {name} is loaded already, from {home}" for name, home in homes.items()))
        await self._replace(namespace, known, {(namespace, made.name): made for made in tools})
        return [made.declaration for made in tools]

    async def warm(self, *names: str, jails: int = 1, tenant: str | None = None, namespace: str = "") -> None:
        """Have that many workers of these tools wait for their first calls, within the policy's bounds; returns when they are ready.

        Nothing is called, so nothing needs approval; each unused one ends after ``pool.idle``, like any other. Raises what a call would
        be refused with, and the error of a source that does not come up.
        """
        if type(jails) is not int or jails < 1:
            raise error_for("refused.request", "jails: want a whole number from 1")
        self._opened()
        request = Request(arguments={}, tenant=tenant, approved=True)
        every = [self._preparation.prepare(self.loaded(name, namespace=namespace), request) for name in names]
        for prepared in {prepared.recipe.key: prepared for prepared in every}.values():  # tools of one source may share a worker
            await self._warm(prepared, jails, tenant)

    async def _warm(self, prepared: Prepared, jails: int, tenant: str | None) -> None:
        try:
            return await self._pool.warm(prepared.recipe, prepared.resolved.pool, jails=jails, tenant=tenant)
        except EngineError as error:
            leaving = self._secrecy.leaving(prepared.resolved.on_secret)
            told = error_for(error.code, *(leaving.text("error", line) for line in error.lines))
        raise told  # security: a child's words may hold the credential that it has; here, where what came is no context of it

    @trio.lowlevel.enable_ki_protection  # the values and what is looked for are renewed together
    async def reload_secrets(self) -> None:
        """Read every secret of every policy again, and the variables of granted families: calls from now on get the new values.

        Old ones stay watched for. A family whose variables have no value any more refuses calls (``refused.credential_missing``).

        Raises PolicyError ``refused.secret``, and then all values are as they were.
        """
        await self._secrecy.reload()

    async def unload(self, namespace: str) -> None:
        """Forget the tools of a namespace. Their calls in flight go on; their idle jails end."""
        await self._replace(namespace, None, {})

    async def _replace(self, namespace: str, source: Path | None, tools: Mapping[tuple[str, str], LoadedTool]) -> None:
        """Put these tools in place of the source's, or of the whole namespace's."""
        for key in [key for key, path in self._sources.items() if key[0] == namespace and source in (None, path)]:
            del self._tools[key], self._sources[key]
        for key, made in tools.items():
            assert source is not None  # noqa: S101 - a type fact: tools come from a source
            self._tools[key], self._sources[key] = made, source
        wanted = {made.loaded.bundle.digest for made in self._tools.values()}
        await self._pool.drain(lambda recipe: recipe.init.bundle in wanted)
        await self._end_launchers()

    async def _end_launchers(self) -> None:
        """End the launchers of published sources that are loaded no more, unless a call in flight has a jail of theirs."""
        await self._launchers.keep({made.loaded.published or "" for made in self._tools.values()} | self._pool.images)

    async def call(
        self,
        name: str,
        arguments: object,
        *,
        timeout_ms: int | None = None,
        limits: Mapping[str, object] | None = None,
        tenant: str | None = None,
        approved: bool = False,
        namespace: str = "",
    ) -> Outcome:
        """The outcome of one call; what the tool shows before it is checked and dropped. ``arguments``: an object, or its JSON text."""
        request = Request(
            arguments=arguments, timeout_ms=timeout_ms, limits=limits or {}, tenant=tenant, approved=approved, namespace=namespace
        )
        return await self._run(name, request, _drop)

    @contextlib.asynccontextmanager
    async def stream(
        self,
        name: str,
        arguments: object,
        *,
        timeout_ms: int | None = None,
        limits: Mapping[str, object] | None = None,
        tenant: str | None = None,
        approved: bool = False,
        namespace: str = "",
    ) -> AsyncIterator[AsyncIterator[ToolOutput | Outcome]]:
        """What the tool lets be seen while it runs, then its outcome, last. Leaving the block early cancels the call.

        The tool waits while nobody takes: nothing is buffered beyond one item.
        """
        request = Request(
            arguments=arguments, timeout_ms=timeout_ms, limits=limits or {}, tenant=tenant, approved=approved, namespace=namespace
        )
        async with streamed(lambda emit: self._run(name, request, emit), self._note_trouble) as items:
            yield items

    @property
    def launcher_pid(self) -> int:
        """The native launcher's process id, -1 when it is not running; for tests and ``doctor``."""
        return self._launchers.native_pid

    @property
    def launcher_pids(self) -> tuple[int, ...]:
        """Those of all launchers that run; for tests."""
        return tuple(self._launchers.pids)

    async def stage(self, source: str | Path, *, policy: str | Path | None = None) -> tuple[Loaded, Graph]:
        """For ``explain``: a source's bundle and graph, found by parsing; nothing of it runs, nothing is loaded. Raises as ``load``."""
        chosen = self._policy if policy is None else load_policy(policy, self._policies)
        return await self._opened().stage(await self._launchers.native(), Path(source), chosen, self._worker)

    def loaded(self, name: str, *, namespace: str = "") -> LoadedTool:
        """For the engine's own parts: the loaded tool of that name. Raises RequestError ``refused.unknown_tool``."""
        tool = self._tools.get((namespace, name))
        if tool is None:
            known = ", ".join(sorted(other for space, other in self._tools if space == namespace)) or "none"
            raise error_for("refused.unknown_tool", f"there is no tool {name!r}; loaded: {known}")
        return tool

    def prepare(self, name: str, request: Request) -> Prepared:
        """For ``explain``: what stands before a worker for such a call. Starts nothing. Raises as a call is refused."""
        return self._preparation.prepare(self.loaded(name, namespace=request.namespace), request)

    def environment(self, tool: LoadedTool, resolved: Resolved) -> Environ:
        """For ``explain``: the variables of such a worker. Raises PolicyError ``refused.credential_*``."""
        return self._preparation.environment(resolved, tool.loaded.kind)

    def alone(self) -> bool:
        """For the engine's own calls: whether one at most is under way."""
        return len(self._under_way.calls) <= 1

    async def answer(self, tool: LoadedTool, request: Request, name: str, arguments: dict[str, Any]) -> tuple[bool, Any]:
        """For the engine's own calls: answer a tool's, only to tools it declared, by the same checks, within its deadline and depth."""
        if name not in tool.declaration.nested_tools:
            return False, f"{tool.name} does not declare the nested tool it called"
        held = self._tools.get((request.namespace, name))
        # security: nesting is checked while a source loads, but only among its own tools; else a read would write by way of another source
        if held is not None and tool.declaration.effect == "read" and held.declaration.effect != "read":
            return False, f"{name} has the effect {held.declaration.effect}, and {tool.name}, a read, holds only reads"
        if request.depth + 1 >= _DEPTH:
            return False, f"calls of tools by tools end at depth {_DEPTH}"
        walled = request.ancestor_required or tool.loaded.policy.mode is not Mode.HOST
        nested = Request(
            arguments=arguments, tenant=request.tenant, namespace=request.namespace, depth=request.depth + 1, ancestor_required=walled
        )
        outcome = await self._run(name, nested, _drop)
        if outcome.status is Status.OK:
            return True, outcome.value
        return False, f"{outcome.reason}: {'; '.join(outcome.lines)}"

    @trio.lowlevel.enable_ki_protection  # in the program's own task an interrupt comes while it waits, never between two steps
    async def _run(self, name: str, request: Request, emit: Emit) -> Outcome:
        try:
            tool = self.loaded(name, namespace=request.namespace)
        except EngineError as error:
            return _refused(error)
        leaving = self._secrecy.leaving(tool.loaded.policy.on_secret)
        conclusion = Conclusion(tool, request.tenant, self._pool, self._journal, leaving)
        if self._closing.is_set():
            conclusion.settlement.settle("cancelled.shutdown", "the engine is closing")
            await conclusion.run()
            return conclusion.outcome()
        call = Call(
            tool,
            request,
            preparation=self._preparation,
            pool=self._pool,
            host_calls=self,
            conclusion=conclusion,
            values=self._values,
            secrecy=self._secrecy,
        )
        self._under_way.begin(call)
        try:
            return await call.run(emit, self._under_way.conclude_later)
        finally:
            self._under_way.end(call)

    async def concluded(self) -> None:
        """Returns when every call answered so far is buried and its receipt is in the journal, or owed to it."""
        await self._under_way.wait_buried()
        self._journal.flush()

    def _opened(self) -> Loading:
        if self._closing.is_set() or not hasattr(self, "_loading"):
            raise error_for("refused.request", "the engine is not open: load within `async with Engine() as engine`")
        return self._loading

    def _checking_lock(self) -> Mapping[str, Any]:
        return parser_order(self._facts, self._state.places)  # of this host, whether or not a launcher lives just now

    @trio.lowlevel.enable_ki_protection  # an interrupt is for the program's own task
    async def _look_after_idle(self) -> None:
        upkeep = Upkeep(self._pool, lambda: private_bytes(*self._launchers.pids))
        while True:
            await trio.sleep(_TICK_SECONDS)
            for look in (upkeep.look, self._values.retire_idle, self._end_launchers):
                try:
                    await look()
                except HostError as error:  # a jail would not end: no reason to end everybody's calls, and told when the engine closes
                    self._note(*error.lines)
                except Exception as error:  # nor is a bug of ours, or a host without a descriptor to spare
                    self._note(f"{type(error).__name__} while idle workers were looked after")

    def _note_trouble(self, error: Exception) -> None:
        self._note(*(error.lines if isinstance(error, HostError) else [f"{type(error).__name__} while a stream was left"]))

    def _note(self, *lines: str) -> None:
        """Keep what whoever closes the engine must be told, each line once."""
        self._unclean += [line for line in lines if line not in self._unclean]

    async def _close_rest(self) -> None:
        try:
            await finish(self._launchers.close)
        finally:
            try:
                if hasattr(self, "_journal"):
                    self._journal.close()
            finally:
                self._state.close()


@trio.lowlevel.enable_ki_protection  # an interrupt is for the program's own task
async def _shielded(task_status: trio.TaskStatus[trio.Nursery]) -> None:
    """Hold a nursery that is cancelled by the engine's end alone, in order; the block's body stands outside of it.

    A scope around the engine that is cancelled ends the block, and would else cut short what concludes calls.
    """
    async with trio.open_nursery() as nursery:
        nursery.cancel_scope.shield = True
        task_status.started(nursery)
        await trio.sleep_forever()


def _refused(error: EngineError) -> Outcome:
    status = error.code.split(".", 1)[0]
    return Outcome(status=Status(status), reason=error.code, lines=error.lines)


def _real(place: Path) -> Path:
    """Where a source lies, whatever way it was named: what tells a second load of it from another source."""
    return place.resolve()


async def _drop(event: ToolOutput) -> None:
    """For callers that asked for the outcome alone."""
