# %% [markdown]
# # Concise Implementation for Multiple GPUs
#
# Chapter 13.6 of [*Dive into Deep Learning*](https://d2l.ai), retold with `gluon_mgpu`. In [the chapter
# before](multiple_gpus.ipynb) we copied parameters, cut batches and added up gradients by hand. Gluon can do all
# three. What remains for us is to name the devices, and to keep them all busy.
#
# With more of the work done for us we can afford a bigger network: ResNet-18, some two hundred times the
# arithmetic of LeNet. That is a lot for CPU contexts, so this page looks at few images; on GPUs, give it all of
# them.

# %%
import os
from itertools import islice

import gluon_mgpu as d2l  # before MXNet, which it sets up so that CPU contexts run in parallel
from gluon_mgpu.data import load_data
from mxnet import autograd, gluon, init, np, npx
from mxnet.gluon import nn

npx.set_np()
npx.random.seed(0)

# How many images to train on, and to test on at most. Fashion-MNIST has 60,000 and 10,000.
num_rows = int(os.environ.get('GLUON_MGPU_ROWS', 2048))

# %% [markdown]
# ## A Toy Network
#
# ResNet-18 was made for photographs. Ours are 28 pixels wide, so the first convolution is smaller than in the
# original and no pooling follows it. After that come eight residual blocks of two convolutions each. The first
# block of 128, of 256 and of 512 channels halves width and height.

# %%
def resnet18(num_classes):
    net = nn.HybridSequential()
    net.add(nn.Conv2D(64, kernel_size=3, strides=1, padding=1), nn.BatchNorm(), nn.Activation('relu'))
    net.add(d2l.Residual(64), d2l.Residual(64))                                       # 28x28
    for num_channels in (128, 256, 512):
        net.add(d2l.Residual(num_channels, use_1x1conv=True, strides=2),              # 14x14, 7x7, 4x4
                d2l.Residual(num_channels))
    net.add(nn.GlobalAvgPool2D(), nn.Dense(num_classes))
    return net


net = resnet18(10)

# %% [markdown]
# ## Initialization on Several Devices
#
# `initialize` takes a list of devices and puts a copy of the parameters on each. That is all that `get_params`
# did, for any network.

# %%
devices = [d2l.try_gpu(i) for i in range(2)]
net.initialize(init=init.Normal(sigma=0.01), ctx=devices)
devices

# %% [markdown]
# A network on two devices is called with arrays of either, and uses the copy that lies beside its input. Four
# images in two shards: each device gives two rows with ten scores, and keeps them (`ctx`, for context, is the
# device that an array is on).

# %%
X = np.random.uniform(size=(4, 1, 28, 28))
for X_shard in d2l.split_and_load(X, devices):
    scores = net(X_shard)
    print(scores.shape, 'on', scores.ctx)

# %% [markdown]
# Layers wait for their first input to know how many channels come in, so only now do the parameters really
# exist. They do on the two devices and *nowhere else*: asked for a copy on a third, Gluon refuses, and names
# those it has.

# %%
weight = net[0].weight
try:
    weight.data(npx.cpu(7))
except RuntimeError as error:
    print(error)

# %% [markdown]
# The copies are equal. Here is the 3x3 kernel of the first channel, from both.

# %%
for device in devices:
    print(f'on {device}:', weight.data(device)[0, 0], sep='\n')

# %% [markdown]
# The test can be spread over the devices as well. The network itself knows where its parameters are, so the
# function needs no list of devices: it cuts every batch to fit and counts right answers on all of them.

# %%
def evaluate_accuracy_gpus(net, data_iter, split_f=d2l.split_batch):
    devices = next(iter(net.collect_params().values())).list_ctx()
    right_and_all = d2l.Accumulator(2)
    for X, y in data_iter:
        X_shards, y_shards = split_f(X, y, devices)
        scores = [net(X_shard) for X_shard in X_shards]  # asks all devices before it waits for the first
        right = sum(d2l.accuracy(s, y_shard) for s, y_shard in zip(scores, y_shards))
        right_and_all.add(right, len(y))
    return right_and_all[0] / right_and_all[1]

# %% [markdown]
# ## Training
#
# Compare this loop with the one before. Forward and backward are as they were, a shard to each device.
# `allreduce` and the updates have become one line, `trainer.step`: the Trainer finds the gradients on all
# devices, adds them up, divides by the batch size that we pass, and updates every copy. `hybridize`
# compiles the network into one graph, so that Python asks for a whole pass at once and the devices are never
# kept waiting for it.

# %%
def train(num_gpus, batch_size, lr, num_epochs=3):
    train_iter, test_iter = load_data('auto', batch_size, train_size=num_rows)
    test_batches = list(islice(test_iter, max(num_rows // batch_size, 1)))
    devices = [d2l.try_gpu(i) for i in range(num_gpus)]
    net.initialize(init=init.Normal(sigma=0.01), ctx=devices, force_reinit=True)
    net.hybridize(static_alloc=True, static_shape=True)
    trainer = gluon.Trainer(net.collect_params(), 'sgd', {'learning_rate': lr})
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    timer = d2l.Timer()
    animator = d2l.Animator('epoch', 'test acc', xlim=[1, num_epochs])
    for epoch in range(1, num_epochs + 1):
        timer.start()
        for X, y in train_iter:
            X_shards, y_shards = d2l.split_batch(X, y, devices)
            with autograd.record():
                losses = [loss(net(X_shard), y_shard) for X_shard, y_shard in zip(X_shards, y_shards)]
            for l in losses:
                l.backward()
            trainer.step(batch_size)
        npx.waitall()
        timer.stop()
        animator.add(epoch, evaluate_accuracy_gpus(net, test_batches))
    print(f'test acc: {animator.Y[0][-1]:.2f}, {timer.avg():.1f} sec/epoch on {devices}')

# %% [markdown]
# One device. Even with so few images the accuracy is far from the 0.1 of guessing; expect it to jump about, with
# batch norm's running statistics still young.

# %%
train(num_gpus=1, batch_size=32, lr=0.1)

# %% [markdown]
# Two devices, all else the same. Look at the seconds first: a big network computes much for each number that it
# exchanges, so two devices are clearly faster than one, if each has an idle core or GPU. The curve,
# however, is *not* the one above. Batch norm takes mean and variance from the rows that its own device got, 16
# instead of 32, and the weights began from other random numbers. Two devices are close to one here, not equal to
# it.

# %%
train(num_gpus=2, batch_size=32, lr=0.1)

# %% [markdown]
# ## Things to Try
#
# * On GPUs: `GLUON_MGPU_ROWS=60000`, ten epochs, `train(1, 256, 0.1)` against `train(2, 512, 0.2)`, as in the
#   book. Why the larger batch and learning rate for two?
# * Take the line with `hybridize` out. Does one device lose as much as two?
# * After training, compare `net[1].running_mean.data(device)` on both devices, and `net[0].weight.data(device)`.
#   Which are equal, and why?
