"""Inputs made ready for a worker: reads files, runs nothing."""
