"""Timelines of one training step, recorded by MXNet's profiler as Chrome traces. Only recording needs MXNet."""
