"""The variables of a worker, built from nothing.

Its job: baseline, the values a policy fixes, the variables of one credential; a last look at the whole before it leaves.
Not its job: which names are granted (``policy/resolve.py``), values of credentials (``egress/vault.py``), how values travel (in ``Init``,
never through a program's start).
Laws:
1. Nothing is read from the engine's own environment here: what crosses was fixed or granted (tests/security/test_environment_names.py).
2. The last look is the last step: nothing is added after it (tests/unit/test_environ.py).
3. A repr holds no value (tests/unit/test_environ.py).
"""

import dataclasses
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from engine.errors import EngineBug
from engine.policy.grants import BASELINE, CERTIFICATES
from engine.policy.resolve import Resolved


@dataclasses.dataclass(frozen=True, kw_only=True)
class Environ:
    """All variables of one worker; ``secret_names`` are those whose values must be redacted. The repr holds names only."""

    variables: Mapping[str, str] = dataclasses.field(repr=False)
    secret_names: frozenset[str]

    def __post_init__(self) -> None:
        object.__setattr__(self, "variables", MappingProxyType(dict(self.variables)))

    def __repr__(self) -> str:
        return f"Environ(names={sorted(self.variables)}, secret_names={sorted(self.secret_names)})"


def build(resolved: Resolved, secrets: Mapping[str, str], *, certificates: bool = False) -> Environ:
    """The worker's variables. ``secrets`` are those of its credential, ``certificates`` says that it finds a file of them.

    Raises EngineBug for what no step above should have let in.
    """
    trust = CERTIFICATES if certificates else {}
    made = Environ(variables={**BASELINE, **trust, **resolved.environment, **secrets}, secret_names=frozenset(secrets))
    if any(_strays(made, resolved, {**BASELINE, **trust})):
        # no value is bound in this frame: a trace that shows locals shows names
        raise EngineBug("engine_failed.bug", "the environment held a name that may never cross; nothing was started")
    return made


def _strays(made: Environ, resolved: Resolved, ours: Mapping[str, str]) -> Iterator[bool]:
    """For each variable, whether no step should have let it in: then a step is broken."""
    granted = {name for capability in resolved.credentials for name in resolved.families.get(capability, ())}
    for name, value in made.variables.items():
        expected = ours[name] if name in ours else resolved.environment.get(name)
        # security: a later merge or a hand-made record must not bring back a scrubbed name or move the search path
        stray = name not in granted if name in made.secret_names else value != expected
        yield stray or (name not in ours and name not in made.secret_names and resolved.denied.denied(name))
