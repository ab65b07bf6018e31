"""The end of a program whose imports fail: one line instead of a traceback."""
# Imports only what Python itself has imported, as `hidden`
from __future__ import annotations

import atexit
import sys

from ..base.text import print_text
from .hidden import how_to_unhide


def end_program(kind: type[BaseException], error: BaseException, trace: object) -> None:
    """Report an import error in one line and exit with status 2; print others with traceback. For `sys.excepthook`."""
    line = remedy = ''
    if isinstance(error, (ImportError, SyntaxError)) or (isinstance(error, AttributeError) and 'module' in str(error)):
        remedy = how_to_unhide(error)
    if remedy and not isinstance(error, ValueError):  # not MXNetImportError, which has its remedy
        line = f'{kind.__name__}: {error}: {remedy}'
    elif isinstance(error, ImportError):
        from .installation import import_error_line  # here, because a hidden module could make this import fail
        line = import_error_line(error)
        line = line and f'{line} (python -m gluon_mgpu doctor shows the details)'
    if not line:
        return sys.__excepthook__(kind, error, trace)  # type: ignore[arg-type]
    print_text(line, stream=sys.stderr)
    # A part of MXNet could print another error when Python ends
    atexit.unregister(getattr(sys.modules.get('mxnet.base'), '_notify_shutdown', print))
    raise SystemExit(2)
