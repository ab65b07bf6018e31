"""`import gluon_mgpu as d2l`: the names that the code of the two chapters uses."""
import pytest
from idx_files import dataset, write

import gluon_mgpu as d2l
from gluon_mgpu.devices.gpus import usable_gpus
from gluon_mgpu.mxnet_setup.compat import autograd, gluon, init, np, npx


@pytest.fixture
def fashion_mnist(tmp_path, monkeypatch):
    """Write a small dataset for load_data_fashion_mnist: 40 training rows, 24 test rows."""
    write(tmp_path / 'fashion-mnist', dataset(num_train=40, num_test=24))
    monkeypatch.setenv('GLUON_MGPU_DATA', str(tmp_path))


def test_devices_differ_even_without_gpus():
    devices = d2l.try_all_gpus()
    assert len(devices) == (len(usable_gpus()) or 2)
    assert len({str(d2l.try_gpu(i)) for i in range(2)}) == 2


def test_a_loop_from_scratch(fashion_mnist):
    """13.5: parameters as lists, gradients summed one by one, d2l.sgd, accuracy on one device."""
    batch_size, lr = 16, 0.1
    train_iter, test_iter = d2l.load_data_fashion_mnist(batch_size)
    devices = [d2l.try_gpu(i) for i in range(2)]
    W = np.random.normal(scale=0.01, size=(784, 10))
    device_params = []
    for device in devices:
        copy = W.copyto(device)
        copy.attach_grad()
        device_params.append([copy])
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    timer, animator = d2l.Timer(), d2l.Animator('epoch', 'test acc', xlim=[1, 2])
    for epoch in range(2):
        timer.start()
        for X, y in train_iter:
            X_shards, y_shards = d2l.split_batch(X, y, devices)
            with autograd.record():
                ls = [loss(np.dot(X_shard.reshape(-1, 784), params[0]), y_shard)
                      for X_shard, y_shard, params in zip(X_shards, y_shards, device_params)]
            for l in ls:
                l.backward()
            grads = [params[0].grad for params in device_params]
            total = sum(g.as_in_ctx(devices[0]) for g in grads)
            for g in grads:
                total.copyto(g)
            for params in device_params:
                d2l.sgd(params, lr, X.shape[0])
        npx.waitall()
        timer.stop()
        animator.add(epoch + 1, (d2l.evaluate_accuracy_gpu(
            lambda x: np.dot(x.reshape(-1, 784), device_params[0][0]), test_iter, devices[0]),))
    assert len(timer.times) == 2 and timer.avg() > 0
    assert 0 <= animator.Y[0][-1] <= 1 and animator.X == [[1, 2]]
    assert (device_params[0][0].asnumpy() == device_params[1][0].asnumpy()).all()
    assert abs(device_params[0][0].asnumpy() - W.asnumpy()).max() > 0


def test_a_network_of_residual_blocks_on_all_devices(fashion_mnist):
    """13.6: d2l.Residual inside nn.Sequential, initialize on a list, a Trainer, accuracy on all devices."""
    net = gluon.nn.Sequential()
    net.add(d2l.Residual(4, use_1x1conv=True, strides=2), gluon.nn.GlobalAvgPool2D(), gluon.nn.Dense(10))
    devices = d2l.try_all_gpus()
    net.initialize(init=init.Normal(sigma=0.01), ctx=devices, force_reinit=True)
    trainer = gluon.Trainer(net.collect_params(), 'sgd', {'learning_rate': 0.1})
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    train_iter, test_iter = d2l.load_data_fashion_mnist(8)
    for features, labels in train_iter:
        X_shards, y_shards = d2l.split_batch(features, labels, devices)
        with autograd.record():
            ls = [loss(net(X_shard), y_shard) for X_shard, y_shard in zip(X_shards, y_shards)]
        for l in ls:
            l.backward()
        trainer.step(labels.size)
    first, *others = (net[2].weight.data(device).asnumpy() for device in devices)
    assert all((first == other).all() for other in others)
    assert 0 <= d2l.evaluate_accuracy_gpus(net, test_iter) <= 1


