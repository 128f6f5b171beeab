"""Which variables a credential capability may stand for, where an operator names further ones.

Its job: what is wrong with the families of a policy.
Not its job: the built-in families and the shapes of names (``secrets.py``), values (``egress/vault.py``).
Laws:
1. No family holds a name that steers a loader, a resolver, a shell or a search (tests/unit/test_policy_families.py).
2. A built-in family is what it is, and a variable belongs to one family (tests/unit/test_policy_families.py).
"""

from collections.abc import Mapping

from engine.policy.grants import BASELINE
from engine.policy.secrets import CAPABILITIES, DeniedNames, name_problem, secret_id_problem


def family_problems(families: Mapping[str, tuple[str, ...]], denied: DeniedNames, fixed: frozenset[str]) -> list[str]:
    """What is wrong with these credential families, given the names of variables that have a fixed value."""
    lines = []
    owner: dict[str, str] = {name: family for family, names in CAPABILITIES.items() for name in names}
    for family, names in families.items():
        if (problem := secret_id_problem(family)) is not None:
            lines.append(f"credentials: {problem}")
            continue
        if family in CAPABILITIES:
            # security: else a tool that asks for one provider's key would be given another's
            lines += [] if names == CAPABILITIES[family] else [f"credentials.{family}: this family is built in; give yours another name"]
            continue
        lines += [] if names else [f"credentials.{family}: want at least one name"]
        lines += [f"credentials.{family}: {problem}" for name in names if (problem := _member_problem(name, denied, fixed)) is not None]
        # security: one family per worker means nothing when a variable belongs to two
        lines += [f"credentials.{family}: a variable belongs to one family, {owner[name]} has it" for name in names if name in owner]
        owner |= dict.fromkeys(names, family)
    return lines + [f"credentials.{family}: a built-in family cannot be taken away" for family in CAPABILITIES.keys() - families.keys()]


def _member_problem(name: str, denied: DeniedNames, fixed: frozenset[str]) -> str | None:
    if (problem := name_problem(name)) is not None:
        return problem
    # security: a secret's value under LD_PRELOAD or HTTPS_PROXY would load code or send connections elsewhere
    if denied.steers(name) or name in BASELINE:
        return "a variable that a loader, a resolver, a shell or a search reads is no credential (policies/denied_secrets.toml); rename it"
    return "a variable is a credential or has a fixed value, not both" if name in fixed else None
