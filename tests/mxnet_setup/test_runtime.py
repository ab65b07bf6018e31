"""Tests of `prepare`: its settings, those of the user that it keeps, and its warning if MXNet was imported first."""
import ctypes
import importlib
import os
import shutil
import subprocess
import sys
import sysconfig
import warnings
from pathlib import Path

import pytest

import gluon_mgpu
from gluon_mgpu.mxnet_setup import compat, installation, runtime

REPO = Path(__file__).parents[2]
OURS = ('OMP_NUM_THREADS', 'MXNET_CPU_TEMP_COPY', 'MALLOC_', 'GLIBC_TUNABLES', 'DNNL_', 'OPENBLAS_')
CORES = len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()
TEMP_COPY = runtime.ENVIRONMENT['MXNET_CPU_TEMP_COPY']
FAKE_MXNET = "import sys, types; sys.modules['mxnet'] = types.ModuleType('mxnet'); "
linux = pytest.mark.skipif(sys.platform != 'linux', reason='needs glibc and libgomp, which are on Linux')


def run(code, *flags, path=(), python=sys.executable, **environment):
    """Run `code` in a new interpreter without the settings of this process."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    env.update(environment, PYTHONPATH=os.pathsep.join([str(REPO), *path]))
    command = [python, *flags, '-c', code]
    result = subprocess.run(command, cwd=REPO, env=env, text=True, capture_output=True, timeout=120)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


# The environment

@pytest.mark.parametrize(('user', 'expected'), [
    ({}, f'1 {TEMP_COPY} 1'), ({'OMP_NUM_THREADS': '3'}, f'3 {TEMP_COPY} 3'),
    ({'OMP_NUM_THREADS': '', 'MXNET_CPU_TEMP_COPY': ''}, f'1 {TEMP_COPY} 1'),
    ({'OMP_NUM_THREADS': '2', 'MXNET_CPU_TEMP_COPY': '8'}, '2 8 2'),
    ({'OMP_NUM_THREADS': 'abc'}, f'abc {TEMP_COPY} {CORES}'), ({'OMP_NUM_THREADS': '2,1'}, f'2,1 {TEMP_COPY} {CORES}'),
])
def test_the_users_environment_has_priority(user, expected):
    """The number of threads is that of the import."""
    code = ('import gluon_mgpu, os; print(os.environ["OMP_NUM_THREADS"], os.environ["MXNET_CPU_TEMP_COPY"], end=" "); '
            'os.environ["OMP_NUM_THREADS"] = "7"; '
            'from gluon_mgpu.mxnet_setup import runtime; print(runtime.omp_threads())')
    assert run(code, '-S', **user) == expected


@pytest.mark.slow
@linux
@pytest.mark.parametrize('text', ['', '1', '3'])
def test_other_programs_do_not_inherit_our_threads(text):
    """MXNet uses one thread; child processes use their default or the user's setting."""
    pytest.importorskip('mxnet')
    code = """
import os, subprocess
from gluon_mgpu.mxnet_setup import runtime
from gluon_mgpu.mxnet_setup.compat import mx, np
(np.ones((99, 99)) @ np.ones((99, 99))).wait_to_read()
threads = mx.base._LIB.omp_get_max_threads()
child = subprocess.run('echo "$OMP_NUM_THREADS"', shell=True, stdout=subprocess.PIPE, text=True).stdout.strip()
print(threads, runtime.omp_threads(), child or 'unset', runtime.environment()['OMP_NUM_THREADS'])
"""
    own = text or '1'
    assert run(code, OMP_NUM_THREADS=text).splitlines()[-1] == f'{own} {own} {text or "unset"} {own}'


@linux
def test_omp_threads_if_openmp_was_loaded_before():
    # OpenMP has read its environment already, so our setting comes too late
    code = ('import ctypes, os; ctypes.CDLL("libgomp.so.1"); from gluon_mgpu.mxnet_setup import runtime; '
            'print(os.environ["OMP_NUM_THREADS"], runtime.omp_threads())')
    assert run(code, '-S') == f'1 {CORES}'


# MXNet imported first

def test_a_warning_if_the_settings_come_too_late():
    code = FAKE_MXNET + """
import os, warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter('always')
    import gluon_mgpu
from gluon_mgpu.mxnet_setup import runtime
for warning in caught:
    print(warning.filename, warning.message)
print('OMP_NUM_THREADS' in os.environ, runtime.omp_threads())
"""
    warning, left = run(code, '-S').splitlines()
    assert warning == ('<string> MXNet was imported before gluon_mgpu, so CPU contexts may hardly run in parallel: '
                       'restart Python and import gluon_mgpu first')
    assert left == f'False {CORES}'


@pytest.mark.slow
def test_too_late_for_the_real_mxnet():
    pytest.importorskip('mxnet')
    if any('-cu' in build for build in installation.installed_builds()):
        pytest.skip('the CUDA build finds its libraries only if gluon_mgpu is imported first')
    code = """
import numpy, warnings
numpy_names = {'__name__': 'numpy_names'}
exec(open('gluon_mgpu/mxnet_setup/numpy_names.py').read(), numpy_names)  # importing it would import gluon_mgpu
names = numpy_names['supply'](numpy)
warnings.simplefilter('ignore')
import mxnet
for name in names:
    delattr(numpy, name)
import gluon_mgpu
from gluon_mgpu.mxnet_setup import compat, runtime
print(list(runtime.prepare().names) == names, runtime.omp_threads() == mxnet.base._LIB.omp_get_max_threads())
print(compat.mx is mxnet, mxnet.util.is_np_array())
"""
    assert run(code) == 'True True\nTrue True'


def test_no_warning_when_imported_first_nor_when_reloaded():
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        importlib.reload(gluon_mgpu)  # `prepare` ran when pytest started, before MXNet was imported
    assert run('import gluon_mgpu, sys; print("mxnet" in sys.modules)', '-W', 'error') == 'False'


# Missing names

@pytest.mark.parametrize('source', ['1 / 0', '__version__ = "unknown"', '__version__ = "2.0.0"'])
def test_a_broken_numpy_does_not_stop_the_import(source, tmp_path):
    (tmp_path / 'numpy.py').write_text(source)
    assert run('import gluon_mgpu; print(gluon_mgpu.__version__)', '-S', path=[str(tmp_path)]) == gluon_mgpu.__version__


@pytest.mark.skipif(sys.version_info < (3, 12), reason='distutils is part of Python before 3.12')
def test_distutils_without_the_pth_file_of_setuptools():
    site = sysconfig.get_paths()['purelib']  # on the path, but with -S its .pth files are not read
    code = 'from distutils.version import LooseVersion; print("there")'
    assert run(f'import gluon_mgpu; {code}', '-S', path=[site]) == 'there'


# The allocator

LARGE_ARRAY = """
import ctypes, gluon_mgpu
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
block = libc.malloc(64 << 20)
heap = next(line for line in open('/proc/self/maps') if '[heap]' in line).split()[0]
start, end = (int(address, 16) for address in heap.split('-'))
print(start <= block < end)
"""


@linux
@pytest.mark.parametrize(('user', 'expected'), [
    ({'DNNL_MAX_CPU_ISA': 'AVX2'}, f'{runtime.ENVIRONMENT} ()'),  # otherwise more is set on processors with AMX
    ({'DNNL_MAX_CPU_ISA': 'AVX2', 'OMP_NUM_THREADS': '1'}, f"{{'MXNET_CPU_TEMP_COPY': '{TEMP_COPY}'}} ()"),
])
def test_prepare_returns_its_settings(user, expected):
    assert run('from gluon_mgpu.mxnet_setup import runtime; print(*runtime.prepare())', '-S', **user) == expected


def test_prepare_changes_nothing_when_too_late():
    code = FAKE_MXNET + 'from gluon_mgpu.mxnet_setup import runtime; print(*runtime.prepare())'
    assert run(code, '-S', '-W', 'ignore', OMP_NUM_THREADS='1') == '{} ()'


@linux
@pytest.mark.parametrize('python', [sys.executable, '/usr/bin/python3'])
def test_large_arrays_stay_in_the_heap(python):
    """The Python of Debian is not position-independent, so the address of its malloc is in Python and not in libc."""
    if not shutil.which(python) or run('import sys; print(sys.version_info >= (3, 10))', '-S', python=python) != 'True':
        pytest.skip('needs Python 3.10 or newer in /usr/bin')
    assert run(LARGE_ARRAY, '-S', python=python) == 'True'


def test_another_c_library_is_left_alone(monkeypatch):
    monkeypatch.setattr(ctypes, 'CDLL', lambda name: object())  # has no mallopt: calling it would raise
    runtime._keep_arrays_in_heap()


# NVIDIA's libraries

@linux
def test_nvidia_libraries_are_loaded_at_import(tmp_path):
    for name in 'mxnet_cu112-1.9.1.dist-info', 'nvidia/cudnn/lib/libcudnn.so.8':
        (tmp_path / name).mkdir(parents=True)
    code = """
import ctypes
import os
class CDLL:
    def __new__(cls, name, mode=0):
        if name:
            if '/' in name and not os.path.exists(name):
                raise OSError
            print(name, mode == ctypes.RTLD_GLOBAL)
ctypes.CDLL = CDLL
import gluon_mgpu
"""
    first, *others = run(code, '-S', path=[str(tmp_path)], DNNL_MAX_CPU_ISA='AVX2').splitlines()
    assert first == 'libcuda.so.1 True' and f'{tmp_path}/nvidia/cudnn/lib/libcudnn.so.8 True' in others


def test_dependencies_come_first():
    order = [Path(library).name.split('.so')[0] for library in installation.NVIDIA_LIBRARIES]
    for library, needs in {'libcublas': ['libcublasLt'], 'libcusolver': ['libcublas', 'libcusparse'],
                           'libcudnn': ['libcublas', 'libnvrtc'], 'libnccl': ['libcudart']}.items():
        for need in needs:
            assert order.index(need) < order.index(library)


# The ring of scratch areas

def test_hybridized_networks_on_up_to_52_devices_share_no_area():
    """Each device takes the same number of consecutive areas; in a ring of a prime number none are shared."""
    areas = int(TEMP_COPY)
    for areas_per_device in range(1, 20):
        first_areas = {device * areas_per_device % areas for device in range(52)}
        assert len(first_areas) == 52


IMPERATIVE_RESNET = """
from gluon_mgpu import concise, resnet18
from gluon_mgpu.mxnet_setup.compat import gluon, init, mx, np, npx
devices = [mx.cpu(0), mx.cpu(1)]
net = resnet18(10)
net.initialize(init.Normal(0.01), ctx=devices)
trainer = gluon.Trainer(net.collect_params(), 'sgd', {'learning_rate': 0.01})
X, y = np.ones((64, 1, 28, 28)), np.zeros(64)
for _ in range(3):
    concise.train_batch(X, y, net, gluon.loss.SoftmaxCrossEntropyLoss(), trainer, devices)
    npx.waitall()
lines = dict(line.split(':') for line in open('/proc/self/status'))
print(lines['VmHWM'].split()[0])
"""


@pytest.mark.slow
@linux
def test_a_network_that_is_not_hybridized_takes_at_most_twice_the_memory_of_mxnets_own_ring():
    pytest.importorskip('mxnet')
    small, ours = (int(run(IMPERATIVE_RESNET, **settings)) for settings in ({'MXNET_CPU_TEMP_COPY': '4'}, {}))
    assert 2**19 < small < ours < 2 * small  # KiB: 0.9 GB with a ring of 4


# Semantics

@pytest.mark.parametrize('first', ['import mxnet', 'd2l.try_all_gpus()'])
def test_numpy_semantics_begin_with_the_import_of_mxnet(first):
    """A later choice of the program stays, also when names of the package are used for the first time."""
    if compat.MXNET_MAJOR >= 2:
        pytest.skip('MXNet 2 has only NumPy semantics')
    code = f"""
import gluon_mgpu as d2l
{first}
from mxnet import npx
print(npx.is_np_array(), npx.is_np_shape())
npx.reset_np()
d2l.split_and_load, d2l.Run, d2l.check_data_parallel
print(npx.is_np_array(), npx.is_np_shape())
"""
    assert run(code) == 'True True\nFalse False'


# Threads

def test_semantics_of_other_threads():
    """MXNet's own in each, until it calls ``npx.set_np()``: NumPy's begin in the thread of the import only."""
    code = """
import threading
semantics = []

def work():
    import gluon_mgpu as d2l
    d2l.Run
    from mxnet import npx
    semantics.append((npx.is_np_array(), npx.is_np_shape()))

def in_thread():
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()

in_thread()
in_thread()
work()
from mxnet import npx
npx.set_np()
work()
in_thread()
print(*semantics)
"""
    assert run(code) == '(True, True) (False, False) (False, False) (True, True) (False, False)'


@pytest.mark.skipif(compat.MXNET_MAJOR >= 2, reason='MXNet 2 has no networks of mx.nd')
@pytest.mark.parametrize('k', [1, 2, 3])
def test_a_program_with_a_thread_for_each_device(k):
    """As gluon-nlp's scripts are: the first batch in the main thread, the others in threads that stay."""
    code = f"""
import queue
import threading
import gluon_mgpu
from mxnet import autograd, cpu, gluon, nd, npx

npx.reset_np()
devices = [cpu(i) for i in range({k})]
net = gluon.nn.HybridSequential()
net.add(gluon.nn.Conv2D(4, 3), gluon.nn.GroupNorm(2), gluon.nn.Dense(3))
net.initialize(ctx=devices)
net.hybridize()
loss = gluon.loss.SoftmaxCrossEntropyLoss()
trainer = gluon.Trainer(net.collect_params(), 'sgd', {{'learning_rate': 0.1}})
shards, losses = queue.Queue(), queue.Queue()

def forward_backward(X, y):
    with autograd.record():
        l = loss(net(X), y)
    l.backward()
    return l.sum().asscalar()

def work():
    while True:
        losses.put(forward_backward(*shards.get()))

for _ in devices:
    threading.Thread(target=work, daemon=True).start()
X, y = nd.random.normal(shape=(6, 1, 6, 6)), nd.arange(6) % 3
sums = []
for number in range(3):
    batch = [*zip(*[gluon.utils.split_and_load(array, devices) for array in (X, y)])]
    if number:
        for shard in batch:
            shards.put(shard)
        sums.append(sum(losses.get(timeout=20) for _ in batch))
    else:
        sums.append(sum(forward_backward(*shard) for shard in batch))
    trainer.step(len(X))
print(sums[0] > sums[1] > sums[2])
"""
    assert run(code) == 'True'


@pytest.mark.slow
def test_training_in_a_thread():
    """With the same losses after ``npx.set_np()``. Without, in MXNet 1.9, random numbers are those of ``mx.nd``."""
    pytest.importorskip('mxnet')
    code = """
import threading
import numpy
from gluon_mgpu import concise, scratch
from gluon_mgpu.data.batches import BatchIterator
from gluon_mgpu.mxnet_setup.compat import MXNET_MAJOR, gluon, mx, npx
from gluon_mgpu.training.run import Run

rng = numpy.random.default_rng(0)
images, labels = rng.integers(0, 256, (24, 28, 28)).astype('uint8'), rng.integers(0, 10, 24).astype('int32')
losses = []

def train(chapter, **settings):
    run = Run(2, quiet=True)
    data = BatchIterator(images, labels, 8, 'noise'), BatchIterator(images, labels, 8, 'noise')
    chapter.train(2, 8, 0.1, devices=[mx.cpu(0), mx.cpu(1)], data=data, run=run, **settings)
    return [e.loss for e in run.history]

def work():
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Conv2D(4, 5), gluon.nn.BatchNorm(), gluon.nn.Dense(10))
    losses.append((train(scratch), train(concise, net=net), train(concise)))

def work_with_numpy_semantics():
    npx.set_np()
    work()

def in_thread(function):
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()

work()
in_thread(work_with_numpy_semantics)
in_thread(work_with_numpy_semantics)
work()
if MXNET_MAJOR < 2:
    in_thread(work)
first = losses[0]
print([each == first for each in losses[:4]], all(each[0] == first[0] for each in losses),
      len(losses) == 4 + (MXNET_MAJOR < 2) and numpy.isfinite(losses).all())
"""
    assert run(code).splitlines()[-1] == '[True, True, True, True] True True'


@pytest.mark.skipif(sys.platform != 'linux', reason='elsewhere, processes are not forked')
@pytest.mark.slow
@pytest.mark.parametrize('method', ['fork', 'forkserver', 'spawn'])
def test_workers_of_a_data_loader(method):
    """They read arrays of MXNet and call a function of the program, also where Python would not fork."""
    run(f"""
import multiprocessing
multiprocessing.set_start_method({method!r})  # forkserver is the default of Python 3.14
from gluon_mgpu.mxnet_setup.compat import gluon, np
rows = gluon.data.ArrayDataset(np.arange(10), np.arange(10)).transform_first(lambda x: 2 * x)
batches = [(X.tolist(), y.tolist()) for X, y in gluon.data.DataLoader(rows, 4, num_workers=2)]
assert batches == [([0, 2, 4, 6], [0, 1, 2, 3]), ([8, 10, 12, 14], [4, 5, 6, 7]), ([16, 18], [8, 9])], batches
""")
