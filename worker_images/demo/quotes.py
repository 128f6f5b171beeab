"""What a refund comes to."""

from dataclasses import dataclass

from demo.table import Window


@dataclass
class Quote:
    """One refund, in cents."""

    refund_cents: int
    fee_cents: int
    reason: str


def quote(window: Window, price_cents: int, days_ago: int) -> Quote:
    """The refund of an order: nothing after the window, the price without the fee within it."""
    if days_ago > window.days:
        return Quote(0, 0, f"the window of {window.days} days in {window.region} is over")
    fee = price_cents * window.fee_percent // 100
    return Quote(price_cents - fee, fee, f"within {window.days} days in {window.region}")
