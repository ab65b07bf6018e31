"""Networks of many kinds give the same results in onnxruntime as in MXNet, also with another batch size."""
from concurrent.futures import ThreadPoolExecutor

import pytest
from exported import NETWORKS, ZOO, check, from_zoo, trained
from operators import mxnet_1
from semantics import semantics
from slow import slow

from gluon_mgpu.mxnet_setup.compat import init, mx
from gluon_mgpu.programs.onnx.graph import semantics_of

QUICK = 'squeezenet1.1', 'mobilenetv2_0.25'


@pytest.mark.parametrize('name', NETWORKS)
def test_network(name):
    net, examples = NETWORKS[name]()
    check(trained(net, *examples), examples, **({'batch_axis': [0, 1]} if name == 'language_model' else {}))


@pytest.mark.parametrize('name', [name if name in QUICK else slow(name) for name in ZOO])
def test_model_zoo(name):
    with semantics('nd'):
        net, examples = from_zoo(name)
        check(trained(net, *examples, initializer=init.Xavier()), examples)


@mxnet_1
def test_other_threads_keep_numpy_semantics():
    with ThreadPoolExecutor(1, initializer=mx.util.set_np) as pool:
        with pytest.raises(ZeroDivisionError), semantics_of(mx.nd.ones(1)):
            assert not mx.util.is_np_array() and not mx.util.is_np_shape()
            assert pool.submit(mx.util.is_np_array).result() and pool.submit(mx.util.is_np_shape).result()
            raise ZeroDivisionError
        assert pool.submit(mx.util.is_np_shape).result() and mx.util.is_np_shape() and mx.util.is_np_array()
