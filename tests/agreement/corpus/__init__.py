"""Small pure tools over the standard library: what they answer must not depend on which wall they run behind."""

from . import data, failures, flows, numbers, texts

__all__ = ("data", "failures", "flows", "numbers", "texts")
