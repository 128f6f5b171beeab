"""``stockade explain``: what a call would be given and held by, step by step, without making the call.

Its job: walk the steps that stand before a worker, keep going past a refusal where the next step can still be told, say what is unknown.
Not its job: deciding any of it (``policy``, ``staging``, ``jail``); values of variables and secrets, of which it shows names only.
Laws:
1. No tool is called; unless ``static`` the source is imported once, in the jail of the describe policy (tests/e2e/test_cli_explain.py).
2. With ``static`` nothing of the source runs: what only its import can tell is marked unknown (tests/e2e/test_cli_explain.py).
3. The exit code is that of the first step that would refuse (tests/e2e/test_cli_explain.py).
4. Of a secret its id is shown, neither its value nor where it comes from (tests/e2e/test_cli_explain.py).
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from engine.authoring import canonical
from engine.call import Request
from engine.errors import EngineError, one_line
from engine.faces.printing import Answer, Printer, safe_json
from engine.faces.run import Wanted
from engine.host import Engine
from engine.jail.plan import Plan
from engine.policy.model import LIMIT_KEYS, Policy, Pool
from engine.policy.network import Scope
from engine.policy.resolve import Resolved, Tightening, resolve
from engine.preparing import Loaded, LoadedTool
from engine.staging.graph import Graph

_NAMES = ("request", "declaration", "arguments", "policy", "bundle", "environment", "plan")
_ONLY_DESCRIBE = "only the source's import can tell: leave --static out, and it is imported in a jail"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Step:
    """One step of seven: ``ok``, ``refused``, ``unknown`` (needs an import) or ``open`` (an earlier refusal hides it)."""

    name: str
    state: str
    reason: str | None = None
    lines: tuple[str, ...] = ()
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def data(self) -> dict[str, Any]:
        """The step for programs."""
        return {"number": _NAMES.index(self.name) + 1, **dataclasses.asdict(self), "lines": list(self.lines)}


class _Walk:
    """The steps found so far; each is told once."""

    def __init__(self) -> None:
        self.steps: dict[str, Step] = {}

    def told(self, name: str, /, **facts: Any) -> None:
        self.steps[name] = Step(name=name, state="ok", facts=facts)

    def refused(self, name: str, error: EngineError, /, **facts: Any) -> None:
        self.steps[name] = Step(name=name, state="refused", reason=error.code, lines=error.lines, facts=facts)

    def unknown(self, name: str, /, **facts: Any) -> None:
        self.steps[name] = Step(name=name, state="unknown", lines=(_ONLY_DESCRIBE,), facts=facts)

    def answer(self) -> Answer:
        rest = {name: Step(name=name, state="open", lines=("an earlier step ends the call before this one",)) for name in _NAMES}
        steps = [(rest | self.steps)[name] for name in _NAMES]
        first = next((step for step in steps if step.state == "refused"), None)
        text = "\n".join(line for step in steps for line in _lines(step))
        value = {"steps": [step.data() for step in steps]}
        if first is None or first.reason is None:
            return Answer(value=value, text=text)
        return Answer(reason=first.reason, lines=first.lines, value=value, text=text)


async def explain(printer: Printer, source: str, tool: str, arguments: dict[str, Any], wanted: Wanted, *, static: bool) -> Answer:
    """The seven steps for this call. Raises EngineError when the engine itself does not start here."""
    walk = _Walk()
    walk.told("request", tool=tool, argument_bytes=len(canonical.canonical(arguments)), tenant=wanted.tenant, timeout_ms=wanted.timeout_ms)
    async with wanted.engine() as engine:
        try:
            staged, graph = await engine.stage(source)
        except EngineError as error:
            walk.refused("bundle", error)
            return walk.answer()
        walk.told("bundle", **_bundle(staged))
        if static:
            _static(walk, graph, staged)
        else:
            printer.note("explain imports the source once, in a jail, to read its declarations (describe); --static does without")
            await _described(walk, engine, source, tool, arguments, wanted)
    return walk.answer()


def _static(walk: _Walk, graph: Graph, staged: Loaded) -> None:
    walk.unknown(
        "declaration", functions_marked_as_tools=list(graph.tools), layers_written=list(graph.layers), data_written=list(graph.data)
    )
    walk.unknown("arguments")
    policy = staged.policy
    level = str(policy.freshness)
    walk.unknown(
        "policy",
        name=policy.name,
        mode=str(policy.mode),
        freshness=level,
        digest=policy.digest,
        loosenings=list(policy.loosenings),
        network={"profile": policy.network.name},
        **_secrets(policy),
        pool=_pool(policy.pool),
    )
    walk.unknown("environment")
    walk.unknown("plan")


async def _described(walk: _Walk, engine: Engine, source: str, tool: str, arguments: dict[str, Any], wanted: Wanted) -> None:
    try:
        await engine.load(source)
        loaded = engine.loaded(tool)
    except EngineError as error:
        walk.refused("declaration", error)
        return
    made = loaded.declaration
    asks = {"layers": made.layers, "credentials": len(made.credentials), "environment": made.environment, "network": made.network}
    walk.told("declaration", name=made.name, effect=made.effect, timeout_ms=made.timeout_ms, asks=asks, digest=made.digest)
    try:
        loaded.checked_arguments(arguments)
        walk.told("arguments", keys=sorted(arguments))
    except EngineError as error:
        walk.refused("arguments", error)
    _prepared(walk, engine, loaded, arguments, wanted)


def _prepared(walk: _Walk, engine: Engine, loaded: LoadedTool, arguments: dict[str, Any], wanted: Wanted) -> None:
    """Steps 4, 6 and 7, each only when the one before it gave what it needs."""
    name = "policy"
    try:
        resolved = resolve(loaded.loaded.policy, loaded.asked, Tightening(timeout_ms=wanted.timeout_ms))
        walk.told("policy", **_policy(resolved, loaded.loaded.policy))
        name = "environment"
        variables = engine.environment(loaded, resolved)
        walk.told("environment", names=sorted(variables.variables), of_these_secret=len(variables.secret_names))
        name = "plan"
        prepared = engine.prepare(loaded.name, Request(arguments=arguments, timeout_ms=wanted.timeout_ms, tenant=wanted.tenant))
        walk.told("plan", **prepared.worker, **_plan(prepared.recipe.plan, resolved))
    except EngineError as error:
        walk.refused(name, error, **(_not_granted(loaded) if error.code == "refused.not_granted" else {}))


def _not_granted(loaded: LoadedTool) -> dict[str, Any]:
    """The places that the profile has no rule for, by name: this is for the operator, and a call is told their number alone."""
    network = loaded.loaded.policy.network
    places = sorted(str(place) for place in loaded.asked.network if network.rule_for(place) is None)
    return {"network": {"profile": network.name}, "not_granted": places} if places else {}


def _bundle(staged: Loaded) -> dict[str, Any]:
    made = staged.bundle
    layers = {layer.name: layer.digest for layer in staged.layers}
    return {
        "digest": made.digest,
        "entry": made.entry,
        "files": dict(made.files),
        "standard": sorted(made.standard),
        "layers": layers,
        "worker": {"kind": str(staged.kind), "why": staged.choice.why, "python": staged.python},
    }


def _policy(resolved: Resolved, policy: Policy) -> dict[str, Any]:
    return {
        "name": resolved.policy,
        "digest": resolved.digest,
        "mode": str(resolved.mode),
        "permission": str(resolved.permission),
        "freshness": str(resolved.freshness),
        "loosenings": list(resolved.loosenings),
        "layers": list(resolved.layers),
        "network": {"profile": policy.network.name} if resolved.scope is None else _scope(resolved.scope),
        **_secrets(policy),
        "credentials": list(resolved.credentials),
        "folders": dict(resolved.folders),
        "pool": _pool(resolved.pool),
    }


def _secrets(policy: Policy) -> dict[str, Any]:
    """What is looked for in what leaves, by the ids of the operator's secrets, and what becomes of a find."""
    return {"on_secret": str(policy.on_secret), "secrets": sorted(policy.secrets)}


def _scope(scope: Scope) -> dict[str, Any]:
    """Where such a call may connect to, and under which bounds; of a secret that is attached there its id."""
    places = {
        str(one.place): {
            "transport": str(one.rule.transport),
            "upstream_port": one.rule.upstream_port,
            "attach": [attached.secret for attached in one.rule.attach],
            "private": list(one.rule.private),
        }
        for one in scope.destinations
    }
    certificates = "the system's" if scope.trust is None else scope.trust
    bounds = dataclasses.asdict(scope.bounds)
    return {
        "profile": scope.profile,
        "places": places,
        "trust": certificates,
        "bounds": bounds,
        "loosenings": sorted(scope.loosenings),
    }


def _pool(pool: Pool) -> dict[str, int]:
    """The bounds under which calls share workers; times in ms and sizes in bytes, as the names say."""
    return dataclasses.asdict(pool)


def _plan(plan: Plan, resolved: Resolved) -> dict[str, Any]:
    order = plan.order
    limits = {
        name: {"value": getattr(resolved.limits, field), "means": plan.means.get(name, "supervisor")}
        for name, (field, _) in LIMIT_KEYS.items()
    }
    return {
        "namespaces": list(order["namespaces"]),
        "binds": [{"from": source, "to": target} for source, target, _ in order["binds"]],
        "devices": list(order["devices"]),
        "landlock": order["landlock"]["abi"],
        "listeners": _listeners(plan, resolved),
        "filter": "the scoped one" if plan.listeners else "without a network" if plan.walls else "none",
        "filter_instructions": {name: len(order["filters"][name]) // 16 for name in ("jail", "child")},  # 8 bytes each, in hexadecimal
        "limits": limits,
        "needed": dict(plan.needed),
    }


def _listeners(plan: Plan, resolved: Resolved) -> dict[str, str]:
    """What a connection inside the jail leads to; a jail without listeners has ``engine.http`` for its scope."""
    if not plan.listeners:
        return {} if resolved.scope is None else {"engine.http": ", ".join(resolved.network)}
    bound = plan.order["network"]["listeners"]
    return {f"{address}:{port}": str(to.place) for (address, port), to in zip(bound, plan.listeners, strict=True)}


def _lines(step: Step) -> list[str]:
    lines = [f"{_NAMES.index(step.name) + 1} {step.name:<12} {step.state}" + (f"  {step.reason}" if step.reason else "")]
    lines += [f"    {one_line(line)}" for line in step.lines]
    for key, value in step.facts.items():
        lines += _fact(key, value, "    ")
    return lines


def _fact(key: str, value: Any, indent: str) -> list[str]:
    """A fact as lines: short ones on one, mappings and lists of mappings below their name."""
    if isinstance(value, Mapping) and value and set(value) == {"value", "means"}:
        return [f"{indent}{key}: {value['value']}  ({value['means']})"]
    if isinstance(value, Mapping) and value and set(value) == {"from", "to"}:
        return [indent + one_line(f"{value['to']} from {value['from']}")]
    if isinstance(value, Mapping) and value:
        return [f"{indent}{one_line(key)}:", *(line for name, inner in value.items() for line in _fact(str(name), inner, indent + "  "))]
    if isinstance(value, list) and value and isinstance(value[0], Mapping):
        return [f"{indent}{key}:", *(line for inner in value for line in _fact("", inner, indent + "  "))]
    if isinstance(value, list | tuple):
        return [f"{indent}{one_line(key)}: {one_line(', '.join(map(str, value)) or 'none')}"]
    return [f"{indent}{one_line(key)}: {one_line(value if isinstance(value, str) else safe_json(value))}"]
