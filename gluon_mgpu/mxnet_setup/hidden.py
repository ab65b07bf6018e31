"""Files in the program's folder that hide modules of the same name, and the remedy."""
# Imports only what Python itself has imported, because such a file can hide any other module
from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder


def how_to_unhide(error: BaseException) -> str:
    """Return the remedy if files in the program's folder hide modules of the same name and caused `error`, or ''."""
    program = sys.modules['__main__']  # after the import of multiprocessing, also by another name
    used = {getattr(module, '__file__', '') for module in [*sys.modules.values()] if module is not program}
    used.add(getattr(error, 'filename', ''))  # of a SyntaxError
    trace = error.__traceback__
    while trace:
        if trace.tb_frame.f_globals.get('__name__') != '__main__':
            used.add(trace.tb_frame.f_code.co_filename)
        trace = trace.tb_next
    folder = os.path.abspath(sys.path[0])
    others = [entry for entry in sys.path if os.path.abspath(entry) != folder]
    names = {path: os.path.basename(path)[:-3] for path in sorted(map(str, filter(None, used)))
             if os.path.dirname(path) == folder and path.endswith('.py')}
    hiding = [path for path, name in names.items() if name in ('mxnet', 'numpy') or PathFinder.find_spec(name, others)]
    return f'rename {" and ".join(hiding)}, which Python imports instead of the module of that name' if hiding else ''
