"""Contender: the book's code with the package `d2l`, on MXNet's default settings.

`d2l` 1.0.3 provides the loader, `split_batch`, `sgd`, `resnet18` and the evaluation. It does not contain LeNet and the
loops of the two chapters, so they are written here as in the book: imperative, with an allreduce and an update for each
parameter, and in the scratch chapter a wait after every batch. The curve that the book draws after each epoch is left
out, in its favour. The job's "devices" is the number of CPU contexts.

"tuned": what a user can set without other code: one OpenMP thread per context, the concise chapter's network
hybridized, and with "crop" LeNet without the pixels that do not change its scores.
"""
from __future__ import annotations

import os
import tempfile
import warnings

from common import Stopwatch, read_job, read_rows

if read_job().get('tuned'):
    os.environ['OMP_NUM_THREADS'] = '1'  # before MXNet is imported
with warnings.catch_warnings():
    warnings.simplefilter('ignore')  # MXNet's own warnings about newer Pythons
    from d2l import mxnet as d2l
    from mxnet import autograd, cpu, gluon, init, np, npx

npx.set_np()


def load(job: dict) -> tuple:
    """Return the book's loaders over the job's rows.

    `d2l.load_data_fashion_mnist` uses MXNet's FashionMNIST, which downloads from a host that no longer exists and
    requires fixed checksums. A subclass supplies the rows instead, in the format of that class; sampling, transforms
    and worker processes are unchanged.
    """
    images, labels, test_images, test_labels = read_rows(job)

    class Rows(gluon.data.vision.FashionMNIST):
        def __init__(self, train):
            super().__init__(root=tempfile.gettempdir(), train=train)

        def _get_data(self):
            X, y = (images, labels) if self._train else (test_images, test_labels)
            self._data = np.array(X[..., None], dtype='uint8')  # (n, 28, 28, 1)
            self._label = np.array(y, dtype='int32')

    gluon.data.vision.FashionMNIST = Rows
    return d2l.load_data_fashion_mnist(job['batch_size'])


def lenet(X, params):
    """Compute class scores with the network of the scratch chapter: (n, 1, 28, 28) -> (n, 10)."""
    W1, b1, W2, b2, W3, b3, W4, b4 = params
    for W, b, size in ((W1, b1, (3, 3)), (W2, b2, (5, 5))):
        X = npx.relu(npx.convolution(data=X, weight=W, bias=b, kernel=size, num_filter=W.shape[0]))
        X = npx.pooling(data=X, pool_type='avg', kernel=(2, 2), stride=(2, 2))
    return np.dot(npx.relu(np.dot(X.reshape(-1, 800), W3) + b3), W4) + b4


def allreduce(grads):
    """Give every device the sum of one parameter's gradients, in place."""
    for other in grads[1:]:
        grads[0][:] += other.copyto(grads[0].ctx)
    for other in grads[1:]:
        grads[0].copyto(other)


def scratch(job, devices, batches):
    """Return two functions of the scratch chapter: train for one epoch; accuracy on a test_iter."""
    shapes = ((20, 1, 3, 3), (20,), (50, 20, 5, 5), (50,), (800, 128), (128,), (128, 10), (10,))
    start = [np.random.normal(scale=0.01, size=s) if len(s) > 1 else np.zeros(s) for s in shapes]
    replicas = [[p.copyto(device) for p in start] for device in devices]
    for p in (p for params in replicas for p in params):
        p.attach_grad()
    loss = gluon.loss.SoftmaxCrossEntropyLoss()

    def cropped(X):
        return X[:, :, :26, :26] if job['crop'] else X

    def epoch():
        for X, y in batches:
            shards = zip(replicas, *d2l.split_batch(X, y, devices))
            with autograd.record():
                ls = [loss(lenet(cropped(X_shard), params), y_shard) for params, X_shard, y_shard in shards]
            for l in ls:
                l.backward()
            for same in zip(*replicas):
                allreduce([p.grad for p in same])
            for params in replicas:
                d2l.sgd(params, job['lr'], X.shape[0])
            npx.waitall()
            yield from ls

    def accuracy(test_iter):
        return d2l.evaluate_accuracy_gpu(lambda X: lenet(cropped(X), replicas[0]), test_iter, devices[0])

    return epoch, accuracy


def concise(job, devices, batches):
    """Return the same two functions of the concise chapter."""
    net = d2l.resnet18(10)
    net.initialize(init=init.Normal(sigma=0.01), ctx=devices)
    if job.get('tuned'):
        net.hybridize(static_alloc=True)
    trainer = gluon.Trainer(net.collect_params(), 'sgd', {'learning_rate': job['lr']})
    loss = gluon.loss.SoftmaxCrossEntropyLoss()

    def epoch():
        for X, y in batches:
            X_shards, y_shards = d2l.split_batch(X, y, devices)
            with autograd.record():
                ls = [loss(net(X_shard), y_shard) for X_shard, y_shard in zip(X_shards, y_shards)]
            for l in ls:
                l.backward()
            trainer.step(job['batch_size'])
            yield from ls

    return epoch, lambda test_iter: d2l.evaluate_accuracy_gpus(net, test_iter)


def main() -> None:
    job = read_job()
    train_iter, test_iter = load(job)
    # not d2l.try_gpu, which returns cpu(0) for every missing GPU
    devices = [cpu(i) for i in range(job['devices'])]
    epoch, accuracy = {'scratch': scratch, 'concise': concise}[job['work']](job, devices, train_iter)
    watch = Stopwatch()
    for _ in range(job['epochs']):
        watch.start()
        ls = list(epoch())
        npx.waitall()
        watch.stop()
        test_acc = accuracy(test_iter)
    rows = sum(l.size for l in ls)
    print(watch.line(job, rows, sum(float(l.sum()) for l in ls) / rows, test_acc))


if __name__ == '__main__':
    main()
