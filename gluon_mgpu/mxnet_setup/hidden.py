"""Files in the program's folder that hide modules of the same name: the remedy, and the end of a program."""
# Imports only what Python itself has imported, because such a file can hide any other module
from __future__ import annotations

import atexit
import os
import sys
from importlib.machinery import PathFinder

from ..base.text import print_text


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


def end_program(kind: type[BaseException], error: BaseException, trace: object) -> None:
    """Report an import error in one line and exit with status 2; print others with traceback. For `sys.excepthook`."""
    line = remedy = ''
    if isinstance(error, (ImportError, SyntaxError)) or (isinstance(error, AttributeError) and 'module' in str(error)):
        remedy = how_to_unhide(error)
    if remedy and not isinstance(error, ValueError):  # not MXNetImportError, which has its remedy
        line = f'{kind.__name__}: {error}: {remedy}'
    elif isinstance(error, ImportError):
        from .installation import import_error_line
        line = import_error_line(error)
        line = line and f'{line} (python -m gluon_mgpu doctor shows the details)'
    if not line:
        return sys.__excepthook__(kind, error, trace)  # type: ignore[arg-type]
    print_text(line, stream=sys.stderr)
    # A part of MXNet could print another error when Python ends
    atexit.unregister(getattr(sys.modules.get('mxnet.base'), '_notify_shutdown', print))
    raise SystemExit(2)
