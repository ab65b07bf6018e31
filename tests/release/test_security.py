"""The source calls nothing by which a stranger's file could run code: SECURITY.md says so."""
from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

REPO = Path(__file__).parents[2]
MODULES = {'pickle', 'cPickle', '_pickle', 'cloudpickle', 'dill', 'joblib', 'marshal', 'shelve'}
# Of MXNet, what unpickles, loads a library, or parses files in C++ that is mended no more; of others, what unpickles
CALLS = {'load_states', 'set_states', 'load_optimizer_states', 'load_parameters', 'load_params', 'load_dict', 'imports',
         'load_checkpoint', 'load_frombuffer', 'imread', 'imdecode', 'ImageIter', 'MXRecordIO', 'MXIndexedRecordIO',
         'read_pickle', 'allgather_object', 'broadcast_object', 'eval', 'exec'}
LOADERS = {'nd', 'npx', 'np', 'mx', 'mxnet', 'library', 'torch'}  # whose load() is one of these, too
# Between workers, which trust each other and their network, as SECURITY.md says
ALLOWED = {('gluon_mgpu/distributed/horovod_workers.py', 'allgather_object')}


def dangerous(source: str) -> list[str]:
    """The names of what a source imports or calls, of the above."""
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
def test_it_would_be_found(source, name):
    assert dangerous(source) == [name]


def test_numpys_own_load_is_none_of_them():
    assert dangerous('numpy.load(f); checkpoint.load(f, net); glyphs.load(folder)') == []


def test_the_package_calls_none():
    files = [*(REPO / 'gluon_mgpu').rglob('*.py')]
    assert len(files) > 50
    found = {(str(path.relative_to(REPO)), name) for path in files for name in dangerous(path.read_text())}
    assert found == ALLOWED


def test_what_security_md_warns_of_is_looked_for():
    """The names in code style in its section on MXNet's readers."""
    section = (REPO / 'SECURITY.md').read_text().partition('\n## MXNet is retired\n')[2].partition('\n## ')[0]
    named = {name.rpartition('.')[2] for name in re.findall(r'`([A-Za-z]+(?:\.[a-z_]+)+|load_parameters|set_states)`',
                                                            section)}
    named -= {'image', 'recordio', 'so'}  # modules, of which the calls are looked for; libmxnet.so
    assert named and named <= CALLS | {'load'}
