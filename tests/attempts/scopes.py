"""Scopes for tests of the wall, and the recipes of workers that have one: made from places, without a policy that grants them."""

import dataclasses
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.call import Request
from engine.host import Engine
from engine.jail import plan as plans
from engine.policy.network import Destination, EgressBounds, Rule, Scope, place_of
from engine.preparing import LoadedTool, Prepared
from engine.supervision.spare import Recipe
from tests.attempts import given, pairs


def scope(*places: str, trust: Path | None = None, **rule: Any) -> Scope:
    """What a call may reach that asked for these, each granted by an entry of its own."""
    made = [place_of(text) for text in places]
    destinations = tuple(Destination(place=one, rule=Rule(place=one, upstream_port=one.port, **rule)) for one in sorted(made))
    known = {} if trust is None else {"trust": str(trust), "trust_digest": digest(trust)}
    return Scope(profile="tested", destinations=destinations, bounds=EgressBounds(), **known)


def digest(trust: Path) -> str:
    """Of a file of certificates, as a policy that is read now has it; of one that cannot be read, none that any file has."""
    return f"sha256:{hashlib.sha256(trust.read_bytes()).hexdigest()}" if trust.is_file() else "sha256:"


def prepared(engine: Engine, tool: LoadedTool, request: object, wanted: Scope, **changes: Any) -> Prepared:
    """What the engine would make of a request, if its policy granted that scope."""
    preparation = engine._preparation
    made = preparation.prepare(tool, request)
    resolved = dataclasses.replace(made.resolved, scope=wanted, **changes)
    plan = plans.make(resolved, preparation._facts, preparation._places, tool.loaded.content(resolved.layers))
    recipe = dataclasses.replace(made.recipe, plan=plan, scope=wanted, key=f"{made.recipe.key} {wanted}")
    return dataclasses.replace(made, resolved=resolved, recipe=recipe)


def recipe_of(engine: Engine, tool: str, wanted: Scope, *changes: pairs.Change, **granted: Any) -> Recipe:
    """The recipe of a worker of that tool with that scope, with changes to what it is granted and to the order of its launcher."""
    made = prepared(engine, engine.loaded(tool), Request(arguments=given()), wanted, **granted).recipe
    return pairs.changed(made, *changes)


def grant(engine: Engine, patch: pytest.MonkeyPatch, wanted: Scope) -> None:
    """Have every call of the engine get that scope."""
    prepare: Callable[..., Prepared] = engine._preparation.prepare
    kept: dict[str, Prepared] = {}

    def with_scope(tool: LoadedTool, request: object) -> Prepared:
        with patch.context() as plain:
            plain.setattr(engine._preparation, "prepare", prepare)
            made = prepared(engine, tool, request, wanted)
        return kept.setdefault(f"{tool.name} {made.recipe.key}", made)

    patch.setattr(engine._preparation, "prepare", with_scope)
