"""Tests of the conversion of operators, and of those that cannot be converted."""
import re

import pytest
from exported import Lambda, random

from gluon_mgpu.mxnet_setup.compat import gluon
from gluon_mgpu.programs.onnx.writing import to_onnx

nn, rnn = gluon.nn, gluon.rnn


def test_operators_that_cannot_be_converted(tmp_path):
    """The line has the operator, the setting, and the layer before or around it, whose result can be kept."""
    for layer, words in ((Lambda(lambda F, X: F.npx.gamma(X)), 'gamma near 0 .*, which is not in the table of op.*'),
                         (Lambda(lambda F, X: F.np.argmax(X)), 'argmax near 0 .*, no axis'),
                         (Lambda(lambda F, X: F.np.dot(X, X)), 'dot near 0 .*, more than two dimensions'),
                         (Lambda(lambda F, X: F.npx.topk(X, k=0, axis=0)), 'topk near 0 .*, its sizes depend on the'),
                         (Lambda(lambda F, X: F.np.pad(X, ((0, 0), (0, 0), (1, 1)), mode='maximum')),
                          'pad near 0 .*, mode maximum')):
        net = nn.HybridSequential()
        net.add(nn.Conv1D(4, 1), layer)
        net.initialize()
        with pytest.raises(ValueError, match=f'^no model is written because _?[a-z]*_?{words}') as error:
            to_onnx(net, 'a.onnx', random(2, 4, 4))
        assert '\n' not in str(error.value) and list(tmp_path.iterdir()) == []
        assert re.search(r": cut the network before it, symbol.get_internals\(\)\['\w+'\], as in docs/export.md$",
                         str(error.value))
    with pytest.raises(ValueError, match="onnxruntime cannot run it, .* node with name 'input/Erf_"):
        to_onnx(Lambda(lambda F, X: F.npx.leaky_relu(X.astype('float64'), act_type='gelu')), 'a.onnx', random(2, 4))
    with pytest.raises(ValueError, match='gamma near input .*, which is not in .*: leave it out of the network$'):
        to_onnx(Lambda(lambda F, X: F.npx.gamma(X)), 'a.onnx', random(2, 4))
