"""The package calls nothing that lets an untrusted file run code, as .github/SECURITY.md promises."""
import ast
import re
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
    """Return the names of all dangerous modules and functions that a source imports or uses."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [getattr(node, 'module', None) or '', *(alias.name for alias in node.names)]
            found |= {name.split('.')[0] for name in names} & MODULES
        elif isinstance(node, ast.Attribute):
            owner = getattr(node.value, 'attr', getattr(node.value, 'id', ''))
            if node.attr in CALLS or (node.attr == 'load' and owner in LOADERS):
                found.add(node.attr)
        elif isinstance(node, ast.Name):
            found |= {node.id} & CALLS
        elif isinstance(node, ast.keyword):
            found |= {node.arg} & {'allow_pickle'}
    return sorted(found)


@pytest.mark.parametrize(('source', 'name'), [
    ('from cloudpickle import loads', 'cloudpickle'), ('import a, dill.x', 'dill'),
    ('f = trainer.load_states', 'load_states'), ('npx.load("f")', 'load'), ('mx.library.load("f")', 'load'),
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
