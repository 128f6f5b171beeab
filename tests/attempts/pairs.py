"""Two children in one jail, the way a running call and a waiting spare are, and a jail whose children lack one of their walls."""

import contextlib
import copy
import dataclasses
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import trio

from engine.call import Request
from engine.host import Engine
from engine.supervision import reaper
from engine.supervision.pump import Pump
from engine.supervision.spare import Recipe, Spare
from engine.wire import messages
from engine.wire.session import Large
from engine.worker.child import NativeChild
from engine.worker.native import Jail
from tests import kit
from tests.attempts import given

# BPF_RET | BPF_K with SECCOMP_RET_ALLOW (linux/seccomp.h)
ALLOW_ALL = "060000000000ff7f"
Order = dict[str, Any]
Change = Callable[[Order], None]


def nothing(order: Order) -> None:
    """The plan as it is."""


def without_filters(order: Order) -> None:
    """Filters that allow everything, for the first process and for its children."""
    order["filters"] = {"jail": ALLOW_ALL, "child": ALLOW_ALL, "tgid": []}


def without_child_filter(order: Order) -> None:
    """Children with no more than the first process's filter."""
    order["filters"] = {**order["filters"], "child": order["filters"]["jail"], "tgid": []}


def without_own_domains(order: Order) -> None:
    """Children that share one Landlock domain: every slot is everybody's, and signals go everywhere in it."""
    rules = order["landlock"]
    order["landlock"] = {**rules, "scope": 0, "paths": [*rules["paths"], ["/tmp", rules["slot"]]]}


def without_landlock(order: Order) -> None:
    """A domain that handles one right that is given everywhere, so that it holds nothing."""
    execute = 1
    order["landlock"] = {**order["landlock"], "files": execute, "network": 0, "scope": 0, "slot": execute, "paths": [["/", execute]]}


def recipe_of(engine: Engine, tool: str, *changes: Change, seconds: int = 30) -> Recipe:
    """What the engine would make a worker of that tool from, with changes to the order that its launcher gets."""
    loaded = engine.loaded(tool)
    return changed(engine._preparation.prepare(loaded, Request(arguments=given())).recipe, *changes, seconds=seconds)


def changed(recipe: Recipe, *changes: Change, seconds: int = 30) -> Recipe:
    """The same with changes to the order that its launcher gets."""
    order = copy.deepcopy({**recipe.plan.order})
    for change in changes:
        change(order)
    return dataclasses.replace(recipe, plan=dataclasses.replace(recipe.plan, order=order), start_ms=seconds * 1000)


def told(recipe: Recipe, **environment: str) -> Recipe:
    """The same, for a child that has these variables from its first line on."""
    return dataclasses.replace(recipe, init=dataclasses.replace(recipe.init, environment={**recipe.init.environment, **environment}))


@contextlib.asynccontextmanager
async def jail_of(engine: Engine, recipe: Recipe) -> AsyncIterator[Jail]:
    """A jail outside the engine's pool, ended when the block does."""
    jail = await Jail.start(await engine._launchers.native(), recipe.plan, seconds=10)
    try:
        yield jail
    finally:
        await jail.close()


class Sibling:
    """A child of a jail with a tool in it."""

    def __init__(self, jail: Jail, recipe: Recipe) -> None:
        self.jail, self.spare = jail, Spare(jail, recipe)

    async def ready(self) -> None:
        """Have it forked and its tool imported."""
        await self.spare.prepare()
        assert self.spare.verdict is None, self.spare.verdict

    @property
    def child(self) -> NativeChild:
        """Its process as the engine holds it."""
        assert self.spare.child is not None
        return self.spare.child

    @property
    def pump(self) -> Pump:
        """Its session."""
        assert self.spare.pump is not None
        return self.spare.pump

    async def call(self, tool: str, **values: Any) -> Any:
        """Send the call; the next message that comes back."""
        await self.pump.send(messages.Call(tool=tool, arguments=given(**values), call=""))
        message = await self.pump.next()
        return messages.decode(message.payload, message.kind) if isinstance(message, Large) else message

    async def reply(self, asked: messages.HostCall, value: Any) -> Any:
        """Answer what it asked; the next message that comes back."""
        await self.pump.send(messages.HostReply(number=asked.number, ok=True, value=value))
        return await self.pump.next()

    async def end(self) -> None:
        """Bury it."""
        await reaper.reap(self.jail, self.child)
        self.child.close()


async def slots_of(jail: Jail, recipe: Recipe) -> list[str]:
    """Where the slots of this jail lie, said by a child in each, whose tool answers ``where=True`` so; both children are gone."""
    scouts = [Sibling(jail, recipe), Sibling(jail, recipe)]
    for scout in scouts:
        await scout.ready()
    places = [(await scout.call("attempt", where=True)).value for scout in scouts]
    for scout in scouts:
        await scout.end()
    return places


async def one_call(engine: Engine, folder: Path, source: Mapping[str, str], *changes: Change, **values: Any) -> Any:
    """The value of one call of the tool ``attempt`` in a jail with changes; it is told where the ``other`` slot lies."""
    await engine.load(kit.write(folder, source))
    with trio.fail_after(30):
        recipe = recipe_of(engine, "attempt", *changes)
        async with jail_of(engine, recipe) as jail:
            _, other = await slots_of(jail, recipe)
            only = Sibling(jail, recipe)
            await only.ready()
            answer = await only.call("attempt", other=other, **values)
            await only.end()
            assert isinstance(answer, messages.Result), answer
            return answer.value
