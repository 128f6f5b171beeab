"""Watching one call: moving its frames, its deadline, its end, and the pool it takes workers from."""
