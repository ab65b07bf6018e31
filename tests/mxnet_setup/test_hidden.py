"""Tests of files that hide modules of Python."""
import re

import pytest
from fake_packages import CAUGHT, MXNET, NUMPY
from slow import slow


@pytest.mark.parametrize(('name', 'source', 'mxnet'), [
    ('mxnet', '', None), ('mxnet', 'import nothing', None), ('numpy', '', 'import numpy; numpy.array'),
    ('numpy', 'raise ImportError', MXNET), ('queue', '', 'import queue; queue.Queue'),
    ('queue', 'print(', 'import queue'), ('numpy', '', 'import numpy.core')])
def test_a_file_that_hides_a_module(site, name, source, mxnet, tmp_path):
    (tmp_path / f'{name}.py').write_text(source)
    (tmp_path / 'test.py').touch()  # hides one as well, but is not imported
    (tmp_path / 'pdb.py').write_text(CAUGHT)  # hides one as well, but is the program
    result = site('pdb.py', mxnet=mxnet, numpy=None if name == 'numpy' else NUMPY)
    assert result.stdout.endswith(f'): rename {tmp_path}/{name}.py, which Python imports instead of the module of that '
                                  'name\n'), result.stderr


@pytest.mark.parametrize('module', ['doctor', slow('scratch')])
@pytest.mark.parametrize('name', ['random', 'token', 'signal', 'ctypes', 'pathlib'])
def test_a_file_that_hides_a_module_from_a_program(site, name, module, tmp_path):
    """Also one that the report of other errors needs."""
    (tmp_path / f'{name}.py').touch()
    result = site('-m', f'gluon_mgpu.{module}', '--help')
    assert result.returncode == 2, result.stderr
    assert re.fullmatch(f'(Attribute|Import)Error: .*: rename {tmp_path}/{name}.py, which Python imports instead of '
                        'the module of that name\n', result.stderr), result.stderr


def test_other_errors_beside_a_file_that_hides_a_module(site, tmp_path):
    """Only an error of an import or a missing name can come from it."""
    (tmp_path / 'code.py').write_text('def make(devices):\n    return {}[1]\n')
    (tmp_path / 'mine.py').write_text('import sys\nimport code\n'
                                      'from gluon_mgpu.mxnet_setup.import_errors import end_program\n'
                                      'sys.excepthook = end_program\ncode.make([])\n')
    result = site('mine.py')
    assert result.stderr.endswith('\nKeyError: 1\n') and 'rename' not in result.stderr
