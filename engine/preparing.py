"""Everything about a call that stands before a worker is asked for: a pure function of a loaded tool and a request.

Its job: policy, environment and plan of one call; the recipe of the worker that can serve it.
Not its job: the call (``call.py``), how a source became a loaded one (``loading.py``).
Laws:
1. No process is started here (tests/contract/test_refusals.py).
2. Calls share a worker only when its recipe's key is the same, down to secrets and tenant (tests/contract/test_pool.py).
3. A traceback with the variables of its frames shows no value of a credential (tests/contract/test_vault_engine.py).
"""

import dataclasses
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from engine import errors
from engine.authoring import canonical
from engine.checking import NODES, Checker, data_problem, parse_arguments
from engine.declaration import Declaration
from engine.jail import plan as plans
from engine.jail import wasm
from engine.jail.facts import HostFacts
from engine.limits import Limits
from engine.outcome import error_for
from engine.policy.model import Kind, Policy
from engine.policy.resolve import Asked, Resolved, Tightening, resolve
from engine.results.receipts import Setting
from engine.staging import environ
from engine.staging.bundle import Bundle
from engine.staging.code import Code
from engine.staging.layers import Layer
from engine.supervision.spare import Recipe
from engine.supervision.warm import calls_of
from engine.wire.framing import LONGEST
from engine.wire.messages import FromWorker, Init, Packed, Partial, Result
from engine.wire.session import Bounds
from engine.worker.kinds import Choice

_NESTED_NODES = 100_000  # values in the arguments of a tool's own call; they are packed and checked at once
_TENANT = 256  # characters of a tenant's name; it stands on every receipt
_KEPT = 256  # more than any pool has jails
Variables = Callable[[Mapping[str, tuple[str, ...]], tuple[str, ...]], Mapping[str, str]]
_FRAME_SLACK = 64 << 10  # beside the largest value: a message's head, a failure's words, a tool's own call


@dataclasses.dataclass(frozen=True, kw_only=True)
class Loaded:
    """One source, staged and described. ``declarations`` is the digest that every child must prove."""

    bundle: Bundle
    layers: tuple[Layer, ...]
    policy: Policy
    declarations: str
    preload: tuple[str, ...]
    choice: Choice
    python: str  # of the interpreter that runs it
    image: str
    published: str | None = None  # the image that was made for just this source on that one, where there is one
    described: Mapping[str, Any] | None = None  # the receipt of its describing, None before it
    code: Code | None = None  # byte code of the bundle's sources, where there is any
    inode: int  # of the bundle's folder: one that was removed and published again is another, and a jail holds on to the old

    @property
    def kind(self) -> Kind:
        """The kind of worker that runs it."""
        return self.choice.kind

    def content(self, names: Sequence[str]) -> plans.Content:
        """What a worker of this source is built around, with the layers of those names."""
        return plans.Content(
            source=self.bundle.source,
            layers=tuple((layer.name, layer.site) for layer in self.layers if layer.name in names),
            preload=self.preload,
            code=(str(self.code.path), self.code.digest) if self.code else None,
        )


class LoadedTool:
    """A tool that can be called: its declaration, its source, its schemas compiled once."""

    def __init__(self, declaration: Declaration, loaded: Loaded) -> None:
        self.declaration, self.loaded = declaration, loaded
        self.name = declaration.name
        self.asked = Asked.of(declaration)
        schemas = declaration.data
        self._input, self._output = Checker(schemas["input"]), Checker(schemas["output"])
        self._partial = None if schemas["partial"] is None else Checker(schemas["partial"])
        asides = [checker.aside_bytes() for checker in (self._output, self._partial) if checker is not None]
        self.aside_bytes = min((aside for aside in asides if aside is not None), default=LONGEST)

    def checked_arguments(self, arguments: object, *, nested: bool = False) -> Packed:
        """The arguments as they are sent, when they fit. Raises RequestError: no object of plain data, too large, or against the schema.

        ``nested``: they are a tool's own, not a caller's, and have fewer values at most.
        """
        limit, nodes = self.loaded.policy.limits.request_bytes, _NESTED_NODES if nested else NODES
        if isinstance(arguments, str | bytes):
            arguments = parse_arguments(arguments, limit)
        if type(arguments) is not dict:
            problem = data_problem(arguments) or f"arguments must be an object, not {type(arguments).__name__}"
            raise errors.RequestError("refused.request", problem)
        try:
            # security: a tool that calls with a million values each time would hold the event loop for most of its call
            packed = Packed.of(arguments, nodes=nodes)
        except ValueError as error:
            raise errors.RequestError("refused.request", data_problem(arguments, nodes=nodes) or f"the arguments hold {error}") from None
        if len(packed.data) > limit:
            raise errors.RequestError("refused.request_size", f"the arguments are larger than {limit} bytes")
        if lines := self._input.problems_of_data(arguments):
            raise errors.RequestError("refused.arguments", *lines)
        return packed

    def checker_of(self, kind: type[FromWorker]) -> Checker | None:
        """What the value of such a message is held to, None when to nothing."""
        return self._output if kind is Result else self._partial if kind is Partial else None

    def result_problems(self, value: object) -> tuple[str, ...]:
        """What keeps a value, which came in a frame, from being the tool's result; empty when nothing does."""
        return self._output.problems_of_data(value)

    def undeclared_partial(self) -> tuple[str, ...]:
        """Why no partial may come at all; empty when they may."""
        return ("the tool declares no partial results",) if self._partial is None else ()

    def partial_problems(self, value: object) -> tuple[str, ...]:
        """The same for one item of its stream."""
        return ("the tool declares no partial results",) if self._partial is None else self._partial.problems_of_data(value)

    def setting(self, tenant: str | None) -> Setting:
        """What a receipt says of the tool before anything of the call is known."""
        loaded = self.loaded
        return Setting(
            tool=self.name,
            tenant=tenant if _is_tenant(tenant) else None,
            declaration=self.declaration.digest,
            source=loaded.bundle.digest,
            layers={layer.name: layer.digest for layer in loaded.layers},
            image=loaded.image,
            worker={"kind": str(loaded.kind)},
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prepared:
    """A call that may start."""

    resolved: Resolved
    recipe: Recipe
    policy: Mapping[str, Any]
    worker: Mapping[str, Any]
    setting: Setting | None = None  # of its receipts; None for a describing


class Preparation:
    """Makes calls ready on one host. Keeps what it made, by what it was made from: a call like an earlier one resolves nothing anew."""

    def __init__(self, facts: HostFacts, places: plans.Places, variables: Variables) -> None:
        """``variables`` gives those of a capability, out of the names by capability that a policy has."""
        self._facts, self._places, self._variables = facts, places, variables
        self._plans: dict[str, plans.Plan] = {}
        self._made: dict[object, Prepared] = {}

    def prepare(self, tool: LoadedTool, request: Any) -> Prepared:
        """The recipe of the worker for this call. Raises PolicyError, RequestError or HostError with the reason it may not start."""
        loaded = tool.loaded
        if not isinstance(request.limits, Mapping):
            raise error_for("refused.limits", "limits: want names of limits with amounts, such as {'memory': '64 MiB'}")
        if not _is_tenant(request.tenant):
            raise error_for("refused.request", f"tenant: want none, or one printable line of 1 to {_TENANT} characters")
        # security: `is True`, because the text "false" is true and would approve a dangerous tool
        approved = request.approved is True
        like = _likeness(tool, request, approved)
        if like is not None and (made := self._made.get(like)) is not None:
            return made
        tightening = Tightening(
            timeout_ms=request.timeout_ms, limits=request.limits, approved=approved, ancestor_required=request.ancestor_required
        )
        resolved = resolve(loaded.policy, tool.asked, tightening)
        made = self.prepared(resolved, loaded, tenant=request.tenant)
        bounds = dataclasses.replace(made.recipe.bounds, aside_bytes=tool.aside_bytes)
        setting = dataclasses.replace(
            tool.setting(request.tenant), policy=made.policy, limits=resolved.limits, means=made.recipe.plan.means, worker=made.worker
        )
        if made.recipe.wasm:
            setting = dataclasses.replace(setting, image=made.recipe.wasm)
        made = dataclasses.replace(made, recipe=dataclasses.replace(made.recipe, bounds=bounds), setting=setting)
        if like is not None:
            _keep(self._made, like, made)
        return made

    def prepared(self, resolved: Resolved, loaded: Loaded, *, tenant: str | None, describing: bool = False) -> Prepared:
        """The same from a policy that is resolved already."""
        environment = self.environment(resolved, loaded.kind)
        layers = tuple(layer for layer in loaded.layers if layer.name in resolved.layers)
        # it holds every layer of the source, whatever a tool asks for; and describing shows what the base makes of the source
        published = loaded.published if layers == loaded.layers and not describing else None
        image = published or loaded.image
        key = _key(loaded, layers, image, resolved, environment, tenant, describing)
        plan = self._plan(key, resolved, loaded)
        limits = resolved.limits
        init = Init(
            bundle=loaded.bundle.digest,
            root=plan.root,
            entry=loaded.bundle.entry,
            layers=list(plan.layers),
            tool=None,
            declaration=None if describing else loaded.declarations,
            environment=dict(environment.variables),
            bounds={"result_bytes": limits.result_bytes, "calls": calls_of(resolved.freshness)},
        )
        recipe = Recipe(
            key=key,
            plan=plan,
            init=init,
            bounds=bounds_of(limits),
            declarations=None if describing else loaded.declarations,
            log_bytes=limits.log_bytes,
            start_ms=limits.start_ms,
            freshness=resolved.freshness,
            wasm=image if loaded.kind is Kind.WASM else "",
            scope=resolved.scope,
            secret_names=environment.secret_names,
        )
        policy = {
            "name": resolved.policy,
            "digest": resolved.digest,
            "mode": str(resolved.mode),
            "permission": str(resolved.permission),
            "loosenings": list(resolved.loosenings),
        }
        worker = {
            "kind": str(loaded.kind),
            "why": loaded.choice.why,
            "freshness": str(resolved.freshness),
            "way": str(self._facts.way),
            "python": loaded.python,
            "walls": plan.walls,
            **({"published": True} if published else {}),
        }
        return Prepared(resolved=resolved, recipe=recipe, policy=policy, worker=worker)

    def environment(self, resolved: Resolved, kind: Kind) -> environ.Environ:
        """The variables of a worker of that kind. Raises PolicyError ``refused.credential_*``."""
        # a WebAssembly worker has no connections of its own, and no file to find certificates in
        certificates = resolved.scope is not None and kind is not Kind.WASM
        # security: no frame of ours holds bare values by a name, else a traceback with its variables shows them
        return environ.build(resolved, self._variables(resolved.families, resolved.credentials), certificates=certificates)

    def _plan(self, key: str, resolved: Resolved, loaded: Loaded) -> plans.Plan:
        made = self._plans.get(key)
        if made is None:
            make = wasm.make if loaded.kind is Kind.WASM else plans.make
            made = make(resolved, self._facts, self._places, loaded.content(resolved.layers))
            _keep(self._plans, key, made)
        return made


def _keep(kept: dict[Any, Any], key: object, made: object) -> None:
    """Remember it in place of the oldest, when there are more than any pool has jails for."""
    if len(kept) >= _KEPT:
        del kept[next(iter(kept))]
    kept[key] = made


def _likeness(tool: LoadedTool, request: Any, approved: bool) -> object | None:
    """What two requests must share to be resolved alike; None for those that are resolved each time."""
    # security: a credential may have been rotated since; and equal is not alike: True == 1, and an odd type may equal anything
    caller = (request.timeout_ms, *request.limits.keys(), *request.limits.values())
    if tool.asked.credentials or not all(type(part) in (int, str, type(None)) for part in caller):
        return None
    return (tool, caller, approved, request.tenant, request.ancestor_required is True)


def _is_tenant(tenant: object) -> bool:
    # security: 1 and "1" would be two tenants to a caller and one in a worker's key; a surrogate would cost the call its receipt
    return tenant is None or (type(tenant) is str and tenant.isprintable() and 0 < len(tenant) <= _TENANT)


def bounds_of(limits: Limits) -> Bounds:
    """The session's bounds for these limits."""
    largest = max(limits.result_bytes, limits.request_bytes, min(limits.event_bytes, 1 << 30))
    return Bounds(
        frame_bytes=largest + _FRAME_SLACK, result_bytes=limits.result_bytes, events=limits.events, event_bytes=limits.event_bytes
    )


def _key(
    loaded: Loaded,
    layers: Sequence[Layer],
    image: str,
    resolved: Resolved,
    environment: environ.Environ,
    tenant: str | None,
    describing: bool,
) -> str:
    """Names everything that calls must agree on to share a worker. Secret values go in as a hash, and only here."""
    # security: a rotated secret must not be served by a worker that holds the old one
    secret = hashlib.sha256(canonical.canonical(dict(environment.variables))).hexdigest()
    named = [
        loaded.bundle.digest,
        loaded.inode,
        sorted(layer.digest for layer in layers),
        image,
        resolved.worker_digest,
        secret,
        tenant,
        describing,
    ]
    return canonical.digest(named)
