"""Timelines of one training step, recorded by MXNet's profiler.

    python -m gluon_mgpu.scratch --timeline            # writes trace.json and timeline.png
    python -m gluon_mgpu.timeline TRACE.json --out FILE

The trace is a Chrome trace, for chrome://tracing and ui.perfetto.dev. Only recording needs MXNet.
"""
