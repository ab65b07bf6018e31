"""Packages that an interpreter without site-packages imports."""
from pathlib import Path

REPO = Path(__file__).parents[2]
MXNET = """
print("mxnet was imported")

class gluon:
    class data:
        class dataloader:
            pass

class npx:
    set_np = str
"""
NUMPY = '__version__ = "1.26.4"\n'
CAUGHT = """
from gluon_mgpu.mxnet_setup.runtime import MXNetImportError, import_mxnet
try:
    import_mxnet()
except ImportError as error:
    assert type(error) is MXNetImportError and isinstance(error, ValueError)
    print(error)
"""
