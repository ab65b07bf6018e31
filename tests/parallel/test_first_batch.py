"""A first batch without rows."""
import numpy
import pytest

import gluon_mgpu as d2l
from gluon_mgpu.mxnet_setup.compat import autograd, gluon


@pytest.mark.parametrize('in_units', [0, 6])
def test_a_first_batch_without_rows(in_units, devices):
    """Layers that wait for their shape need rows; others do not."""
    net = gluon.nn.Dense(4, in_units=in_units)
    net.initialize(ctx=devices)
    trainer = gluon.Trainer(net.collect_params(), 'sgd', {'learning_rate': 0.1})
    loss = gluon.loss.SoftmaxCrossEntropyLoss()

    def train_batch(X, y):
        X_shards, y_shards = d2l.split_batch(X, y, devices)
        with autograd.record():
            ls = [loss(net(X_shard), y_shard) for X_shard, y_shard in zip(X_shards, y_shards)]
        d2l.backward(net, ls)
        d2l.zero_grad(net, devices[len(y):])
        trainer.step(4)
    X, y = numpy.ones((5, 6), 'float32'), numpy.zeros(5, 'int32')
    if not in_units:
        with pytest.raises(ValueError, match='^the first batch has no rows, so the shapes of layers are unknown'):
            train_batch(X[:0], y[:0])
        train_batch(X, y)
    train_batch(X[:0], y[:0])
