"""Names that newer versions of NumPy lack are supplied to MXNet, and users of NumPy notice nothing else."""
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import new_process
import numpy
import pytest

from gluon_mgpu.mxnet_setup import numpy_names, runtime
from gluon_mgpu.mxnet_setup.compat import gluon, mx, np

VERSION = tuple(map(int, numpy.__version__.split('.')[:2]))
numpy_2 = pytest.mark.skipif(VERSION < (2, 0), reason='NumPy 1 writes its numbers plainly')


# Names

def of(name):
    return numpy_names.replacements(numpy)[name]


def test_only_missing_names_are_supplied():
    own = dict.fromkeys(('bool', 'inf', 'nan', 'all', 'prod', 'round', 'trapezoid', 'in1d'), 1.0)
    fake = SimpleNamespace(**own, any='any', __expired_functions__={'mirr': 'answered'})
    expected = [name for name in numpy_names.replacements(numpy) if name not in ('bool', 'in1d', 'mirr')]
    assert numpy_names.supply(fake) == expected
    assert fake.sometrue == 'any' and fake.NINF == -1.0
    assert {name: value for name, value in vars(fake).items() if name in own} == own
    assert numpy_names.supply(fake) == []


def test_prepare_supplied_what_this_numpy_lacks():
    expected = ['bool'] if VERSION < (2, 0) else [
        name for name in numpy_names.replacements(numpy)
        if name != 'bool' and (VERSION >= (2, 4) or name not in ('in1d', 'trapz'))]
    assert list(runtime.prepare().names) == expected
    assert numpy.bool is (bool if VERSION < (2, 0) else numpy.bool_)


@pytest.mark.slow
def test_every_name_is_one_that_mxnet_reads():
    source = '\n'.join(path.read_text() for path in Path(mx.__file__).parent.rglob('*.py'))
    lists = set(re.findall(r"^    '(\w+)',$", source, re.M))  # names that MXNet looks up in NumPy
    for name in numpy_names.replacements(numpy):
        assert name in lists or re.search(rf'\b(onp|_np|np)\.{name}\b', source), name


def test_numbers():
    assert numpy.isnan([of('NaN'), of('NAN')]).all()
    assert (of('Inf'), of('PINF'), of('NINF')) == (float('inf'), float('inf'), float('-inf'))
    assert (str(of('PZERO')), str(of('NZERO'))) == ('0.0', '-0.0')


@pytest.mark.skipif(VERSION < (2, 0), reason='numpy.trapezoid is of NumPy 2')
def test_functions():
    a = numpy.array([[3, 0, 5], [1, 2, 4]])
    assert not of('alltrue')(a) and of('sometrue')(a)
    assert of('product')(a + 1) == 4 * 1 * 6 * 2 * 3 * 5
    assert of('round_')(1.26, 1) == 1.3
    assert of('msort')(a).tolist() == [[1, 0, 4], [3, 2, 5]]
    assert of('in1d')(a, [0, 4], invert=True).tolist() == [True, False, True, True, True, False]
    assert of('trapz')([1, 2, 3]) == 4
    assert isinstance('reflect', of('compat').basestring)


# Numbers in MXNet's parameters

SIZES = [numpy.int64(2), numpy.int32(2), 2]


@pytest.mark.parametrize('two', SIZES, ids=lambda size: type(size).__name__)
def test_numpy_scalars_as_sizes(two):
    """As a size, as a bound, in a tuple, and in nested tuples; of mx.np and of mx.nd."""
    x = np.arange(24).reshape(two, 3, -1)
    assert x.shape == (2, 3, 4)
    assert np.split(x, [two], axis=2)[1].shape == (2, 3, 2)
    assert mx.nd.slice(mx.nd.ones((4, 4)), begin=(two, None), end=(None, two)).shape == (2, 2)
    assert np.pad(x, ((two, 0), (0, 0), (0, two))).shape == (4, 3, 6)


@pytest.mark.parametrize('two', SIZES, ids=lambda size: type(size).__name__)
@pytest.mark.parametrize('hybridize', [False, True])
def test_numpy_scalars_as_sizes_of_layers(two, hybridize):
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Conv2D(two, (two, 2), strides=[two, 1]), gluon.nn.Dense(two), gluon.nn.Dense(two, in_units=two))
    net.initialize()
    if hybridize:
        net.hybridize()
    assert net(np.ones((3, 1, 8, 8))).shape == (3, 2)


def test_numpy_scalars_in_symbols():
    two = numpy.int64(2)
    x = mx.sym.var('x', shape=(two, 4))
    y = mx.sym.slice(mx.sym.reshape(x, shape=(two, two, -1)), begin=(0, two - 1, 0), end=(two, two, two))
    assert y.infer_shape()[1] == [(2, 1, 2)]
    assert 'np.' not in y.tojson()


def test_fractions_are_written_as_with_numpy_1():
    """The float32 0.1 is 0.1 also as a double."""
    tenth = numpy.float32(0.1)
    assert mx.sym.slice(mx.sym.var('x'), begin=(0,), end=(1,)).attr('begin') == '(0,)'
    anchors = mx.sym.contrib.MultiBoxPrior(mx.sym.var('x'), sizes=(tenth, numpy.float64(0.25)))
    assert anchors.attr('sizes') == '(0.1, 0.25)'


@numpy_2
def test_mxnets_str_is_a_type_as_pythons_is():
    for name in numpy_names.MODULES:
        text = vars(sys.modules[name])['str']
        assert isinstance('a', text) and not isinstance(1, text)
        assert text() == '' and type(text(3)) is str
        assert text((numpy.int64(1), [numpy.bool_(True), None], 'np.')) == "(1, [True, None], 'np.')"


def test_dtypes_are_the_same_with_numpy_1_and_2():
    """MXNet has its own rules, so that NumPy 2's new ones (NEP 50) change nothing."""
    x32, x16 = np.ones(3, dtype='float32'), np.ones(3, dtype='float16')
    for x in (x32, x16):
        for scalar in (2, 0.5, numpy.float64(0.5), numpy.float32(0.5), numpy.int64(2)):
            assert {(x + scalar).dtype, (scalar * x).dtype, (x / scalar).dtype} == {x.dtype}


def test_imports_without_warning_and_leaves_the_rest_of_numpy_alone():
    """In a fresh process: only the names of the table appear, none changes, and printing stays as it is."""
    facts = new_process.facts()
    assert facts['names of numpy'] == [[], []] and facts['print options']
