"""`import gluon_mgpu as d2l`: quick, without MXNet, and with the names that the chapters use."""
import ast
import importlib.util
import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import gluon_mgpu
from gluon_mgpu import __main__ as programs
from gluon_mgpu.mxnet_setup import installation

REPO = Path(__file__).parents[1]
NAMES = [
    'Accumulator', 'Animator', 'BatchIterator', 'Callback', 'CheckpointCallback', 'ClippingTrainer',
    'DivergenceError', 'DownloadError', 'HorovodWorkers', 'Residual', 'Run', 'StaticSequential', 'SyncBatchNorm',
    'Timer', 'accuracy', 'check_data_parallel', 'check_profiler', 'concise_in_parts', 'cross_entropy',
    'draw_timeline', 'evaluate_accuracy_gpu', 'evaluate_accuracy_gpus', 'gradients', 'hybridized',
    'load_checkpoint', 'load_data', 'load_data_fashion_mnist', 'parameters_by_name', 'parse_devices',
    'prepare_idle_devices', 'record_timeline', 'resnet18', 'ring', 'run_program', 'save_checkpoint', 'schedule',
    'scratch_in_parts', 'sgd', 'shard_rows', 'split_and_load', 'split_batch', 'to_onnx', 'train_batch_ch13',
    'train_batch_synchronized', 'train_ch13', 'tree', 'try_all_gpus', 'try_gpu',
]


def run(code, *flags):
    return subprocess.run([sys.executable, *flags, '-c', code], env={**os.environ, 'PYTHONPATH': str(REPO)},
                          text=True, capture_output=True, timeout=120)


def test_import_with_nothing_installed():
    code = ('import gluon_mgpu, sys; print(gluon_mgpu.__version__, "numpy" in sys.modules, '
            'sorted(set(gluon_mgpu.__all__) - set(dir(gluon_mgpu))))')
    result = run(code, '-S')
    assert (result.stdout, result.stderr) == (f'{gluon_mgpu.__version__} False []\n', '')


@pytest.mark.slow
def test_import_is_quick_and_loads_little():
    # Without NumPy's import, which takes 0.1 s, or 0.3 s with older versions
    code = ('import time, numpy; start = time.process_time(); import gluon_mgpu; '
            'print(time.process_time() - start); import sys; '
            'print([name for name in ("mxnet", "matplotlib", "tqdm", "requests") if name in sys.modules])')
    seconds = []
    for _ in range(3):
        first, second = run(code).stdout.splitlines()
        seconds.append(float(first))
        assert second == '[]'
    assert min(seconds) < 0.1  # 0.02 s on an idle machine; the best of three for busy ones


def test_public_names():
    pytest.importorskip('mxnet')
    assert gluon_mgpu.__all__ == NAMES
    assert set(NAMES) <= set(dir(gluon_mgpu))
    namespace = {}
    exec('from gluon_mgpu import *', namespace)
    for name in NAMES:
        assert namespace[name] is getattr(gluon_mgpu, name)
        assert namespace[name].__name__ == gluon_mgpu.PLACES[name][1]
        assert namespace[name].__module__.startswith('gluon_mgpu.')


def test_unknown_name():
    assert not hasattr(gluon_mgpu, 'no_such_name')
    words = ('For a name of an earlier version, see CHANGELOG.md. .* pip install --no-deps d2l pandas ipython, import '
             'gluon_mgpu first, and then: from d2l import mxnet as d2l$')
    for name in ('train_ch6', 'zero_grad'):  # of the book's chapter 7, and of version 3
        with pytest.raises(AttributeError, match=f"has no attribute '{name}'. {words}"):
            getattr(gluon_mgpu, name)


def test_names_that_need_mxnet_raise_an_import_error_without_it():
    result = run('from gluon_mgpu.mxnet_setup import installation; installation.package_folder = lambda name: None\n'
                 'from gluon_mgpu import accuracy')
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1].startswith(
        'gluon_mgpu.mxnet_setup.installation.MXNetImportError: MXNet is not installed: pip install')


def test_other_names_work_without_mxnet():
    result = run("import sys; sys.modules['mxnet'] = None\nfrom gluon_mgpu import Accumulator, Timer")
    assert result.returncode == 0, result.stderr


def test_the_cu112_extra_has_the_wheel_of_every_library_that_is_preloaded():
    pins = re.findall(r"'nvidia-(\S+)-cu11==[\d.]+'", (REPO / 'pyproject.toml').read_text())
    folders = {library.split('/')[0].replace('_', '-') for library in installation.NVIDIA_LIBRARIES}
    assert sorted(pins) == sorted(folders)


def test_typed():
    assert (REPO / 'gluon_mgpu' / 'py.typed').exists()


# From top to bottom; each layer imports only from layers below it
LAYERS = [
    {'__main__'}, {'programs'}, {'scratch', 'concise', 'ch13'}, {'settings'}, {'outputs'}, {'checkpoints'},
    {'training'}, {'distributed'}, {'parallel'}, {'networks'}, {'data'}, {'devices'}, {'mxnet_setup'}, {'base'},
]


def test_the_architecture_page_lists_the_layers():
    rows = re.findall(r'^\| (`[^|]+) \|', (REPO / 'docs' / 'architecture.md').read_text(), re.MULTILINE)
    listed = [set(re.findall(r'`(\w+)(?:/|\.py)`', row)) for row in rows]
    level = {name: i for i, names in enumerate(LAYERS) for name in names}
    assert set().union(*listed) == level.keys() - {'__main__'}
    levels = [[level[name] for name in names] for names in listed]
    assert all(max(above) < min(below) for above, below in itertools.pairwise(levels))


def imports_of(path):
    """Yield the files and folders of this package that a file imports, such as data in `from ..data import x`."""
    package = path.relative_to(REPO / 'gluon_mgpu').parts[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.split('.')[1] for alias in node.names if alias.name.startswith('gluon_mgpu.'))
        elif isinstance(node, ast.ImportFrom) and node.level > len(package):
            yield from ([node.module.split('.')[0]] if node.module else [alias.name for alias in node.names])
        elif isinstance(node, ast.ImportFrom) and (node.module or '').startswith('gluon_mgpu.'):
            yield node.module.split('.')[1]


def test_every_import_points_down():
    level = {name: i for i, names in enumerate(LAYERS) for name in names}
    files = [path for path in (REPO / 'gluon_mgpu').rglob('*.py') if path != REPO / 'gluon_mgpu' / '__init__.py']
    found = {path.relative_to(REPO / 'gluon_mgpu').parts[0].replace('.py', '') for path in files}
    assert found == set(level)
    up = []
    for path in files:
        here = path.relative_to(REPO / 'gluon_mgpu').parts[0].replace('.py', '')
        up += [f'{path.name} in {here} imports {name}' for name in imports_of(path)
               if name != here and level[name] <= level[here]]
    assert up == []


def test_no_two_modules_have_the_same_name():
    names = [path.name for path in (REPO / 'gluon_mgpu').rglob('*.py') if not path.name.startswith('__')]
    assert len(names) > 50 and sorted(names) == sorted({*names})


def test_init_files_hold_no_logic():
    """Except the package's own, which prepares MXNet."""
    for path in (REPO / 'gluon_mgpu').glob('*/**/__init__.py'):
        nodes = ast.walk(ast.parse(path.read_text()))
        found = [node.name for node in nodes if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
        assert found == [], path


def test_commands_are_listed_and_exist(capsys):
    assert programs.main([]) == 0
    _, *listed, _ = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in listed] == [*programs.PROGRAMS]
    for name, (module, _) in programs.PROGRAMS.items():
        assert callable(importlib.import_module(f'gluon_mgpu.{module}').main), name
    # The chapters, and the list of devices, can also be run as modules
    as_module = run('import runpy; runpy.run_module("gluon_mgpu.devices", run_name="__main__")')
    assert programs.main(['devices']) == 0
    assert 'one CPU context per core' in as_module.stdout and as_module.stdout == capsys.readouterr().out


def test_a_wrong_command_names_the_right_ones(capsys):
    assert programs.main(['dotcor']) == 2
    assert capsys.readouterr().err.startswith('gluon_mgpu: dotcor: no such program; use scratch, concise, ')


@pytest.mark.parametrize('folder', ['benchmarks', 'examples', 'tools'])
def test_programs_outside_the_package_import_names_that_exist(folder):
    for path in (REPO / folder).rglob('*.py'):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or '').startswith('gluon_mgpu'):
                module = importlib.import_module(node.module)
                for name in [alias.name for alias in node.names]:
                    assert hasattr(module, name) or importlib.util.find_spec(f'{node.module}.{name}'), (path, name)
