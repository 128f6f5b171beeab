"""The soak's mix: how many calls misbehave, in which ways, and that what it calls is there."""

import ast
from collections import Counter

import pytest

from bench.soak_mix import SOURCE, attempts


@pytest.mark.parametrize("calls", [20, 400, 10_000])
def test_one_call_in_twenty_misbehaves(calls: int) -> None:
    """Exactly one in twenty, all calls counted."""
    made = list(attempts(calls))
    assert (len(made), sum(not one.benign for one in made)) == (calls, calls // 20)


def test_each_way_of_misbehaving_comes_equally_often() -> None:
    """The ways differ by one call at most, and tenants share them out."""
    made = [one for one in attempts(10_000) if not one.benign]
    ways = Counter(one.arguments["how"] for one in made)
    assert len(ways) == 13
    assert max(ways.values()) - min(ways.values()) <= 1
    assert {one.tenant for one in made} == {None, "first", "second"}


def test_every_way_is_in_the_source() -> None:
    """Each call names a tool that is there, and each way of misbehaving is one that the source knows."""
    tree = ast.parse(SOURCE)
    tools = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    made = list(attempts(2000))
    assert {one.tool for one in made} == tools
    assert {one.arguments["how"] for one in made if not one.benign} <= texts


def test_the_order_is_the_same_each_time() -> None:
    """Two runs make the same calls in the same order; another seed makes others."""
    first, again, other = attempts(200), attempts(200), attempts(200, seed=2)
    named = [[(one.tool, one.arguments, one.tenant) for one in made] for made in (first, again, other)]
    assert named[0] == named[1] != named[2]
