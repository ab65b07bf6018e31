"""Options and fixtures of all tests.

    pytest                           the quick tests, on two CPU contexts
    pytest --all                     all tests
    pytest tests/x.py::test_y        this test, quick or slow
    pytest --devices gpu:0,gpu:1     the quick tests on GPUs
    pytest --seed 7                  other random numbers; a failing test prints the seed that it ran with
"""
from __future__ import annotations

import contextlib
import errno
import gc
import os
import random
import shutil
import tempfile
from collections.abc import Callable

import numpy
import pytest

# Before any test module can import MXNet, so that the engine is set up
from gluon_mgpu.devices import parse_devices
from gluon_mgpu.devices.gpus import num_mxnet_gpus

COUNTS = pytest.StashKey[dict]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption('--devices', default='cpu:0,cpu:1', metavar='LIST',
                     help='two or more devices for the tests that need several (default: %(default)s)')
    parser.addoption('--seed', type=int, default=0, metavar='N',
                     help='seed of every test (default: %(default)s)')
    parser.addoption('--all', action='store_true', help='run the slow tests as well')
    parser.addoption('--long', action='store_true',
                     help='cause many more faults in tests/faults: about 10 minutes')


def pytest_configure(config: pytest.Config) -> None:
    if not (config.getoption('all') or config.option.markexpr or any('::' in name for name in config.args)):
        config.option.markexpr = 'not slow'
    # Set in the environment and not by a fixture, so that it applies to the processes that tests start as well
    config.cache_home = tempfile.mkdtemp(prefix='gluon-mgpu-tests-')
    os.environ['XDG_CACHE_HOME'] = config.cache_home   # not the user's cache
    # Those of a make that runs the tests would change a make that a test runs
    for name in ('GLUON_MGPU_DATA', 'MAKEFLAGS', 'MFLAGS', 'MAKEOVERRIDES', 'MAKELEVEL', 'PYTHON', 'ARGS', 'OUT'):
        os.environ.pop(name, None)
    os.environ['MPLBACKEND'] = 'Agg'                   # draw without a screen


def pytest_unconfigure(config: pytest.Config) -> None:
    shutil.rmtree(config.cache_home, ignore_errors=True)


def pytest_report_header(config: pytest.Config) -> str:
    from gluon_mgpu.mxnet_setup import instructions
    return (f'devices: {config.getoption("devices")}, seed: {config.getoption("seed")}, instructions: oneDNN '
            f'{os.environ.get(instructions.ONEDNN_VARIABLE) or "all"}, OpenBLAS {instructions.kernels() or "built in"}')


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item):
    report = (yield).get_result()
    if report.failed:
        report.sections.append(('Seed', f'repeat with: pytest --seed {item.config.getoption("seed")}'))


@pytest.fixture(scope='session', autouse=True)
def small_glyphs_in_the_cache() -> None:
    """Replace the dataset glyphs, which takes 3 s to generate, by noise with 20 test images."""
    from gluon_mgpu.data import glyphs
    from gluon_mgpu.data.folders import cache_dir
    images = numpy.random.default_rng(0).integers(0, 256, (600, 28, 28), 'uint8')
    labels = numpy.arange(60_000, dtype='int32') % 10
    cache_dir().mkdir()
    numpy.savez(cache_dir() / f'glyphs-v{glyphs.VERSION}.npz', train_images=numpy.tile(images, (100, 1, 1)),
                train_labels=labels, test_images=images[:20], test_labels=labels[:20])


@pytest.fixture(scope='module', autouse=True)
def few_objects_for_the_garbage_collector() -> None:
    """Let it skip a million objects of imports and earlier tests: `concise.train` and the check collect garbage."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def seed(request: pytest.FixtureRequest) -> int:
    """The seed of this test; Python, NumPy and MXNet are seeded with it before the test begins."""
    from gluon_mgpu.mxnet_setup.compat import mx
    number = request.config.getoption('seed')
    random.seed(number)
    numpy.random.seed(number)
    mx.random.seed(number)
    return number


@pytest.fixture
def rng(seed: int) -> numpy.random.Generator:
    """NumPy's random numbers with the seed of this test."""
    return numpy.random.default_rng(seed)


@pytest.fixture(scope='session')
def devices(request: pytest.FixtureRequest) -> list:
    """The devices of `--devices`, at least two."""
    try:
        found = parse_devices(request.config.getoption('devices'))
        if len(found) < 2:
            raise ValueError(f'{found} is one device: name two or more')
    except ValueError as error:
        pytest.exit(f'--devices: {error}', returncode=pytest.ExitCode.USAGE_ERROR)
    return found


@pytest.fixture(scope='session')
def device_list(devices: list) -> Callable[[int], list]:
    """A function that returns k different devices of the same kind as the first one in `--devices`.

    The devices in `--devices` come first. The test is skipped if there are fewer than k GPUs.
    """
    from gluon_mgpu.mxnet_setup.compat import mx
    kind = devices[0].device_type

    def first(k: int) -> list:
        if kind == 'gpu' and k > num_mxnet_gpus():
            pytest.skip(f'needs {k} GPUs, MXNet sees {num_mxnet_gpus()}')
        given = [device for device in devices if device.device_type == kind]
        others = [getattr(mx, kind)(i) for i in range(k + len(given))]
        return [*given, *(device for device in others if device not in given)][:k]

    return first


@pytest.fixture
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> Callable[[], contextlib.AbstractContextManager]:
    """A context manager in which every MXNet call that waits for a device raises an AssertionError."""
    from gluon_mgpu.mxnet_setup.compat import mx

    @contextlib.contextmanager
    def context():
        with monkeypatch.context() as patch:
            for name in ('MXNDArrayWaitToRead', 'MXNDArrayWaitToWrite', 'MXNDArrayWaitAll',
                         'MXNDArraySyncCopyToCPU', 'MXNDArraySyncCopyFromCPU'):
                def wait(*args, name=name):
                    raise AssertionError(f'waited: {name}')
                patch.setattr(mx.base._LIB, name, wait)
            yield

    return context


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> Callable[[], contextlib.AbstractContextManager]:
    """A context manager in which writing a file fails because the disk is full."""
    def fsync(descriptor):
        raise OSError(errno.ENOSPC, 'No space left on device')

    @contextlib.contextmanager
    def context():
        with monkeypatch.context() as patch:
            patch.setattr('os.fsync', fsync)
            yield

    return context


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list:
    """The figures that the test draws with Matplotlib."""
    from matplotlib.figure import Figure
    drawn = []
    monkeypatch.setattr('matplotlib.figure.Figure', lambda **options: drawn.append(Figure(**options)) or drawn[-1])
    return drawn


@pytest.fixture(scope='session')
def long(request: pytest.FixtureRequest) -> bool:
    """True with --long: cause many faults instead of a few."""
    return request.config.getoption('long')


@pytest.fixture
def count(request: pytest.FixtureRequest) -> Callable[[str, int], None]:
    """A function that counts the faults of each kind that were handled; pytest prints the table at the end."""
    counts = request.config.stash.setdefault(COUNTS, {})

    def note(kind: str, number: int = 1) -> None:
        counts[kind] = counts.get(kind, 0) + number

    return note


def pytest_terminal_summary(terminalreporter) -> None:
    counts = terminalreporter.config.stash.get(COUNTS, {})
    if counts:
        terminalreporter.section('faults handled')
        for kind, number in counts.items():
            terminalreporter.line(f'{number:6}  {kind}')
