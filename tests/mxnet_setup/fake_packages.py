"""Packages that an interpreter without site-packages imports."""
from pathlib import Path

REPO = Path(__file__).parents[2]
MXNET = """
class npx:
    set_np = staticmethod(lambda: print("set_np was called"))

class gluon:
    class data:
        class dataloader:
            pass

class util:
    set_np_shape = staticmethod(lambda active: None)
    _NumpyArrayScope = type('_NumpyArrayScope', (), {'__init__': lambda self, active: None})
"""
NUMPY = '__version__ = "1.26.4"\n'
CAUGHT = """
from gluon_mgpu.mxnet_setup.runtime import MXNetImportError, load_mxnet
try:
    load_mxnet()
except ImportError as error:
    assert type(error) is MXNetImportError and isinstance(error, ValueError)
    print(error)
"""
