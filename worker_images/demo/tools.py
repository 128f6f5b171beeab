"""The desk's tools: a lookup, a quote, a stream, and one that waits for several things at once."""

import asyncio
from collections.abc import Iterator
from typing import Literal, TypedDict

from demo.quotes import Quote, quote
from demo.table import Window, windows
from engine import Context, tool

Region = Literal["EU", "UK", "US"]


class Order(TypedDict):
    """An order as the caller sends it."""

    number: str
    region: Region
    price_cents: int
    days_ago: int


class Reviewed(TypedDict):
    """One order's refund."""

    number: str
    refund_cents: int


@tool(effect="read", data=["demo/windows.csv"])
def lookup_policy(region: Region) -> Window:
    """Read the refund policy of a region."""
    return windows()[region]


@tool(effect="read", data=["demo/windows.csv"])
def quote_refund(region: Region, price_cents: int, days_ago: int) -> Quote:
    """Say what a refund would come to."""
    return quote(windows()[region], price_cents, days_ago)


@tool(effect="read", data=["demo/windows.csv"])
def review_orders(orders: list[Order], ctx: Context) -> Iterator[Reviewed]:
    """Go through a list of orders and tell each refund as soon as it is known."""
    table = windows()
    for count, order in enumerate(orders, 1):
        found = quote(table[order["region"]], order["price_cents"], order["days_ago"])
        ctx.progress(count, len(orders), order["number"])
        yield {"number": order["number"], "refund_cents": found.refund_cents}


@tool(effect="read", data=["demo/windows.csv"])
async def compare_regions(price_cents: int, days_ago: int) -> dict[str, int]:
    """Ask every region at once what it would pay back."""

    async def ask(window: Window) -> int:
        await asyncio.sleep(0)
        return quote(window, price_cents, days_ago).refund_cents

    table = windows()
    refunds = await asyncio.gather(*(ask(window) for window in table.values()))
    return dict(zip(table, refunds, strict=True))
