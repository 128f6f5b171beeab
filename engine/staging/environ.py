"""The variables of a worker, built from nothing.

Its job: baseline, the values a policy fixes, the names of one credential capability; a last look at the whole before it leaves.
Not its job: which names are granted (``policy/resolve.py``), how values travel (they go in ``Init``, never through a program's start).
Laws:
1. No variable of the engine's process crosses, except the names of a granted capability (tests/security/test_environment_names.py).
2. The last look is the last step: nothing is added after it (tests/unit/test_environ.py).
3. A refusal names neither the capability nor a variable nor a value; a repr holds no value (tests/unit/test_environ.py).
"""

import dataclasses
import os
from collections.abc import Mapping
from types import MappingProxyType

from engine.errors import EngineBug
from engine.outcome import error_for
from engine.policy.model import BASELINE
from engine.policy.resolve import Resolved
from engine.policy.secrets import CAPABILITIES


@dataclasses.dataclass(frozen=True, kw_only=True)
class Environ:
    """All variables of one worker; ``secret_names`` are those whose values must be redacted. The repr holds names only."""

    variables: Mapping[str, str] = dataclasses.field(repr=False)
    secret_names: frozenset[str]

    def __post_init__(self) -> None:
        object.__setattr__(self, "variables", MappingProxyType(dict(self.variables)))

    def __repr__(self) -> str:
        return f"Environ(names={sorted(self.variables)}, secret_names={sorted(self.secret_names)})"


def read_real() -> Mapping[str, str]:
    """A copy of the engine's own environment, for ``build`` to pick granted credentials from."""
    return MappingProxyType(dict(os.environ))


def build(resolved: Resolved, real: Mapping[str, str]) -> Environ:
    """The worker's variables. Raises PolicyError when a credential is unknown, ambiguous or has no value."""
    secrets = _credential(resolved.credentials, real)
    variables = {**BASELINE, **resolved.environment, **secrets}
    _last_look(variables, resolved, frozenset(secrets))
    return Environ(variables=variables, secret_names=frozenset(secrets))


def _credential(capabilities: tuple[str, ...], real: Mapping[str, str]) -> dict[str, str]:
    if not capabilities:
        return {}
    if len(capabilities) > 1:
        raise error_for("refused.credential_ambiguous", "more than one credential capability for one worker")
    if capabilities[0] not in CAPABILITIES:
        raise error_for("refused.credential_not_listed", "the credential capability is not one that the engine knows")
    found = {name: real[name] for name in CAPABILITIES[capabilities[0]] if real.get(name, "").strip()}
    if not found:
        raise error_for("refused.credential_missing", "the engine was given no value for the granted credential capability")
    # security: with two different keys the tool's library would pick one, and the operator could not say which account it used
    if len(set(found.values())) > 1:
        raise error_for("refused.credential_ambiguous", "the granted credential capability has two different values")
    # a value that is no text (bytes outside UTF-8, line breaks) could be neither sent nor found again in what leaves
    if not all(value.isprintable() for value in found.values()):
        raise error_for("refused.credential_missing", "the value of the granted credential capability is not one printable line")
    return found


def _last_look(variables: Mapping[str, str], resolved: Resolved, secret_names: frozenset[str]) -> None:
    """Refuse to hand over what no step above should have let in; raises EngineBug, because then a step is broken."""
    for name, value in variables.items():
        expected = BASELINE.get(name) if name in BASELINE else resolved.environment.get(name)
        # security: a later merge or a hand-made record must not bring back a scrubbed name or move the search path
        if name not in secret_names and (value != expected or (name not in BASELINE and resolved.denied.denied(name))):
            raise EngineBug("engine_failed.bug", "the environment held a name that may never cross; nothing was started")
