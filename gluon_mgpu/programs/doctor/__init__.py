"""Check of this machine for training: facts, problems and remedies.

    python -m gluon_mgpu doctor           one screen; exit status 0 if training can run, 1 if not
    python -m gluon_mgpu doctor --json    the same as JSON, for bug reports

Works without MXNet and NumPy: only `self_test` imports them, in a subprocess.
"""
from .report import examine

__all__ = ['examine']
