"""The package calls nothing that lets an untrusted file run code, as .github/SECURITY.md promises."""
import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).parents[2]
MODULES = {'pickle', 'cPickle', '_pickle', 'cloudpickle', 'dill', 'joblib', 'marshal', 'shelve'}
# Functions of MXNet that unpickle, load a library, or parse files in unmaintained C++; others that unpickle
CALLS = {'load_states', 'set_states', 'load_optimizer_states', 'load_parameters', 'load_params', 'load_dict', 'imports',
         'load_checkpoint', 'load_frombuffer', 'load_json', 'imread', 'imdecode', 'ImageIter', 'MXRecordIO',
         'MXIndexedRecordIO', 'read_pickle', 'allgather_object', 'broadcast_object', 'eval', 'exec'}
LOADERS = {'nd', 'npx', 'np', 'mx', 'mxnet', 'library', 'torch'}  # modules with a load() of this kind
# Used between workers, which trust each other and their network, as .github/SECURITY.md says
ALLOWED = {('gluon_mgpu/distributed/horovod_workers.py', 'allgather_object'),
           ('gluon_mgpu/mxnet_setup/compat.py', 'load_json'), ('gluon_mgpu/programs/onnx/symbol_files.py', 'load')}


def dangerous(source: str) -> list[str]:
    """Return the names of all dangerous modules and functions that a source imports or calls."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [alias.name for alias in node.names] + [getattr(node, 'module', None) or '']
            found += [name for name in names if name.split('.')[0] in MODULES]
        elif isinstance(node, ast.Call):
            name = getattr(node.func, 'attr', getattr(node.func, 'id', ''))
            owner = getattr(node.func, 'value', None)
            owner = getattr(owner, 'attr', getattr(owner, 'id', ''))
            if name in CALLS or (name == 'load' and owner in LOADERS):
                found.append(name)
            found += [k.arg for k in node.keywords if k.arg == 'allow_pickle']
        elif isinstance(node, ast.Attribute) and node.attr in CALLS:
            found.append(node.attr)
    return sorted(set(found))


@pytest.mark.parametrize(('source', 'name'), [
    ('import pickle', 'pickle'), ('from cloudpickle import loads', 'cloudpickle'), ('import a, dill.x', 'dill.x'),
    ('trainer.load_states("f")', 'load_states'), ('f = trainer.load_states', 'load_states'),
    ('mx.nd.load("f")', 'load'), ('npx.load("f")', 'load'), ('np.load("f")', 'load'), ('mx.library.load("f")', 'load'),
    ('net.load_parameters("f")', 'load_parameters'), ('gluon.SymbolBlock.imports("f", ["x"])', 'imports'),
    ('numpy.load(f, allow_pickle=True)', 'allow_pickle'), ('eval("1")', 'eval')])
def test_dangerous_calls_are_found(source, name):
    assert dangerous(source) == [name]


def test_other_functions_named_load_are_allowed():
    assert dangerous('numpy.load(f); checkpoint.load(f, net); glyphs.load(folder)') == []


def test_the_package_makes_no_dangerous_calls():
    files = [*(REPO / 'gluon_mgpu').rglob('*.py')]
    assert len(files) > 50
    found = {(str(path.relative_to(REPO)), name) for path in files for name in dangerous(path.read_text())}
    assert found == ALLOWED


def test_functions_named_in_security_md_are_searched_for():
    """They are in code style in its section on MXNet."""
    section = (REPO / '.github/SECURITY.md').read_text().partition('\n## MXNet is retired\n')[2].partition('\n## ')[0]
    named = {name.rpartition('.')[2] for name in re.findall(r'`([A-Za-z]+(?:\.[a-z_]+)+|load_parameters|set_states)`',
                                                            section)}
    named -= {'image', 'recordio', 'so'}  # modules, whose functions are searched for, and libmxnet.so
    assert named and named <= CALLS | {'load'}


@pytest.mark.slow
@pytest.mark.skipif(sys.version_info < (3, 11), reason='Python before 3.11 does not know the variable')
def test_code_in_the_current_folder_runs_only_without_the_variable_of_security_md(tmp_path):
    (tmp_path / 'csv.py').write_text('print("foreign code")')
    page = (REPO / '.github/SECURITY.md').read_text()
    assert '`gluon-mgpu`' in page and '`PYTHONSAFEPATH=1`' in page
    for value in ('', '1'):
        done = subprocess.run([sys.executable, '-m', 'gluon_mgpu', 'plot', '.'], cwd=tmp_path, text=True,
                              capture_output=True, env={**os.environ, 'PYTHONSAFEPATH': value, 'PYTHONPATH': str(REPO)})
        assert done.returncode == 2 and ('foreign code' in done.stdout) == (not value)
