"""What the devices do in one step of training: recorded by MXNet's profiler, read, drawn.

    python -m gluon_mgpu.scratch --timeline            # leaves trace.json and timeline.png
    python -m gluon_mgpu.timeline TRACE.json --out PNG

The trace is a Chrome trace: chrome://tracing and ui.perfetto.dev show it, too. Reading and drawing need no
MXNet. `record`, which loads it, is imported by its full name: `gluon_mgpu.timeline.record`.
"""
from .draw import draw
from .read import Event, read

__all__ = ['Event', 'draw', 'read']
