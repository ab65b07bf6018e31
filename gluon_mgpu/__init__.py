"""Multi-device training with Apache MXNet's Gluon: the multi-GPU chapters of *Dive into Deep Learning*.

``import gluon_mgpu as d2l`` provides the names that the chapters' code uses. The import is fast: MXNet is loaded when a
name that needs it is first used.
"""
from __future__ import annotations

import sys

# Python 3.9 has no orig_argv, but argv begins with -m while it looks for the module
if ' -m gluon_mgpu' in ' '.join(getattr(sys, 'orig_argv', ['python', *sys.argv[:1], __name__])[:5]):
    from gluon_mgpu.mxnet_setup.hidden import end_program
    sys.excepthook = end_program  # before other imports, which may fail
    import signal

    # Ctrl-C ends a program of this package without a traceback while it is imported; see `base.program.run_program`
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)

import importlib

from gluon_mgpu.mxnet_setup import runtime

__version__ = '1.0.0'

runtime.prepare()

_NAMES_OF = {  # module -> its public names
    'devices.lists': ('try_gpu', 'try_all_gpus'),
    'parallel.split': ('split_and_load', 'split_batch'),
    'data': ('load_data_fashion_mnist',),
    'training.timer': ('Timer', 'Accumulator'),
    'plot': ('Animator',),
    'training.evaluate': ('accuracy', 'evaluate_accuracy_gpu', 'evaluate_accuracy_gpus'),
    'networks.resnet': ('Residual', 'resnet18'),
    'scratch': ('sgd',),
    'check': ('check_data_parallel',),
}
_MODULE_OF = {name: module for module, names in _NAMES_OF.items() for name in names}

__all__ = sorted(_MODULE_OF)


def __getattr__(name: str):
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}: names of the book's other chapters are "
                             "in the book's package; pip install --no-deps d2l, and write from d2l import mxnet")
    return getattr(importlib.import_module(f'{__name__}.{_MODULE_OF[name]}'), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
