"""Tests of the conversion of operators, and of those that cannot be converted."""
import importlib.util
import re
from pathlib import Path

import onnx
import pytest
from exported import Lambda, random, run_model
from small_models import block

from gluon_mgpu.mxnet_setup.compat import MXNET_MAJOR, gluon, mx
from gluon_mgpu.programs.onnx.export import to_onnx
from gluon_mgpu.programs.onnx.graph import semantics_of

nn, rnn = gluon.nn, gluon.rnn
REPO = Path(__file__).parents[3]


def test_the_table_of_the_docs_is_up_to_date():
    spec = importlib.util.spec_from_file_location('operators_table', REPO / 'tools/operators_table.py')
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    page = tool.PAGE.read_text()
    assert page == tool.with_table(page), 'an operator has changed: python tools/operators_table.py'
    assert '| detection | boxnms, multiboxprior, roialign |' in page


def test_operators_that_cannot_be_converted(tmp_path):
    """The line has the operator, the setting, and the layer before or around it, whose result can be kept."""
    for layer, words in ((Lambda(lambda F, X: F.npx.gamma(X)), 'gamma near 0 .*, which docs/export.md does not list'),
                         (Lambda(lambda F, X: F.np.argmax(X)), 'argmax near 0 .*, no axis'),
                         (Lambda(lambda F, X: F.np.dot(X, X)), 'dot near 0 .*, more than two dimensions'),
                         (Lambda(lambda F, X: F.np.roll(X, 1, axis=0)), 'roll near 0 .*, its sizes depend on the'),
                         (Lambda(lambda F, X: F.np.pad(X, ((0, 0), (0, 0), (1, 1)), mode='maximum')),
                          'pad near 0 .*, mode maximum'),
                         (Lambda(lambda F, X: F.npx.leaky_relu(X.astype('float64'), act_type='gelu')),
                          'LeakyReLU near 0 .*, not for float64 in onnxruntime, .*')):
        net = nn.HybridSequential()
        net.add(nn.Conv1D(4, 1), layer)
        net.initialize()
        with pytest.raises(ValueError, match=f'^no model is written because _?[a-z]*_?{words}') as error:
            to_onnx(net, 'a.onnx', random(2, 4, 4))
        assert '\n' not in str(error.value) and list(tmp_path.iterdir()) == []
        assert re.search(r": cut the network before it, symbol.get_internals\(\)\['\w+'\], as in docs/export.md$",
                         str(error.value))
    with pytest.raises(ValueError, match='gamma at the input .*, which .* does not list: leave it out of the network$'):
        to_onnx(Lambda(lambda F, X: F.npx.gamma(X)), 'a.onnx', random(2, 4))


@pytest.mark.skipif(MXNET_MAJOR >= 2, reason='MXNet 2 has no networks in the style of mx.nd')
def test_upsampling_of_several_inputs_is_refused():
    class Net(gluon.HybridBlock):
        def hybrid_forward(self, F, X, Y):
            return F.UpSampling(X, Y, scale=2, sample_type='nearest', num_args=2)

    with semantics_of(mx.nd.ones(1)), pytest.raises(ValueError, match='several inputs'):
        to_onnx(Net(), 'a.onnx', random(1, 2, 4, 4).as_nd_ndarray(), random(1, 2, 8, 8).as_nd_ndarray())


def test_names_that_operators_of_the_model_have():
    net = block(nn.Dense(4, activation='relu'), nn.Dense(2))
    to_onnx(net, 'a.onnx', X := random(2, 784), log=lambda line: None)
    for name in [node.output[0] for node in onnx.load('a.onnx').graph.node]:
        to_onnx(net, 'b.onnx', X, input_names=[f'{name}_0'], output_names=[name], log=lambda line: None)
        assert abs(run_model('b.onnx', X)[0] - net(X).asnumpy()).max() < 1e-6
