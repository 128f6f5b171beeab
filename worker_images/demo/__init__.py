"""A small desk for refunds, as a project of several files: what ``stockade demo`` runs."""

from demo.mischief import misbehave
from demo.tools import compare_regions, lookup_policy, quote_refund, review_orders

__all__ = ["compare_regions", "lookup_policy", "misbehave", "quote_refund", "review_orders"]
