"""Pixels that no window reaches make no difference; all others do."""
import pytest

from gluon_mgpu import scratch
from gluon_mgpu.mxnet_setup.compat import autograd, mx, np, npx
from gluon_mgpu.networks.hybridize import hybridized
from gluon_mgpu.networks.used_pixels import used_size


def convolution(X, **options):
    return mx.sym.npx.convolution(X, W, no_bias=True, num_filter=2, **options)


def pooling(X, **options):
    return mx.sym.npx.pooling(X, pool_type='max', **options)


X, W = (mx.sym.var(name).as_np_ndarray() for name in 'XW')
by_5 = {'kernel': (5, 5)}
by_2 = {'kernel': (2, 2), 'stride': (2, 2)}


@pytest.mark.parametrize('graph, size', [
    (convolution(X, **by_5), (28, 27)),  # windows overlap: all is read
    (pooling(X, **by_2), (28, 26)),  # 27 columns: the last one fills no window
    (pooling(pooling(X, **by_2), **by_2), (28, 24)),
    (pooling(convolution(X, **by_5), **by_2), (28, 26)),  # 24 x 23, of which 24 x 22
    (mx.sym.npx.relu(pooling(X, **by_2)), (28, 26)),  # what follows does not matter
    (pooling(mx.sym.npx.activation(X, act_type='relu'), **by_2), (28, 26)),
    (convolution(X, kernel=(3, 3), stride=(5, 4)), (28, 27)),  # 6 windows of 3 rows, 5 rows apart, reach to 28
    (convolution(X, kernel=(3, 2), stride=(6, 4)), (27, 26)),
    (pooling(convolution(X, kernel=(3, 3), dilate=(2, 3)), **by_2), (28, 26)),
    (pooling(X, pad=(1, 1), **by_2), (28, 27)),  # unknown: nothing is cut
    (pooling(X, pooling_convention='full', **by_2), (28, 27)),
    (pooling(X, global_pool=True, **by_2), (28, 27)),
    (mx.sym.np.sum(pooling(X, **by_2)) + mx.sym.np.sum(X), (28, 27)),  # X is read twice
    (mx.sym.np.tanh(X), (28, 27)),
    (mx.sym.npx.convolution(W, X, no_bias=True, num_filter=2, stride=(2, 2), **by_5), (28, 27)),  # X is the filter
    (convolution(X, kernel=(29, 29)), (28, 27)),  # too large: left to MXNet to refuse
    (pooling(W, **by_2), (28, 27)),
])
def test_used_size_by_hand(graph, size):
    assert used_size(graph, 'X', (28, 27)) == size


def test_lenet_does_not_look_at_the_last_two_rows_and_columns(devices):
    """As written: what lies there changes nothing, and it has no gradient; what lies before does and has."""
    params = scratch.init_params(0.3)
    images = np.random.uniform(size=(4, 1, 28, 28))
    images.attach_grad()
    with autograd.record():
        scores = scratch.lenet.__wrapped__(images, params)
    scores.backward()
    gradient = images.grad.asnumpy()
    assert not gradient[:, :, 26:].any() and not gradient[:, :, :, 26:].any()
    assert gradient[:, :, 25].any() and gradient[:, :, :, 25].any()


def test_lenet_hybridized_is_the_same_function():
    params = scratch.init_params(0.3)
    images = np.random.uniform(size=(4, 1, 28, 28))
    results = []
    for array in (images, *params):
        array.attach_grad()
    for lenet in (scratch.lenet, scratch.lenet.__wrapped__):
        with autograd.record():
            scores = lenet(images, params)
        scores.backward()
        results.append([a.asnumpy() for a in (scores, images.grad, *(p.grad for p in params))])
    for by_graph, as_written in zip(*results):
        assert by_graph.shape == as_written.shape
        assert abs(by_graph - as_written).max() <= 1e-6 * abs(as_written).max()


def test_images_of_another_size_are_cut_anew():
    @hybridized
    def halve(images, bias):
        return npx.pooling(images, pool_type='max', **by_2) + bias

    for rows, columns in ((5, 4), (4, 5), (5, 4), (7, 7)):
        images = np.random.uniform(size=(2, 1, rows, columns))
        halved = halve(images, np.zeros(1))
        assert halved.shape == (2, 1, rows // 2, columns // 2)
        assert (halved == halve.__wrapped__(images, np.zeros(1))).all()
