# %% [markdown]
# # Concise Implementation for Multiple GPUs
#
# This notebook follows chapter 13.6 of [*Dive into Deep Learning*](https://d2l.ai). [The chapter
# before](multiple_gpus.ipynb) copies parameters, splits batches and sums gradients by hand. Gluon does all three; we
# only name the devices.
#
# The network is larger: ResNet-18 needs about two hundred times the arithmetic of LeNet. That is much for CPU contexts,
# so this notebook trains on few images. On GPUs, use all of them.

# %%
import os
from itertools import islice

import gluon_mgpu as d2l  # before MXNet: it configures MXNet so that CPU contexts run in parallel
from mxnet import autograd, gluon, init, np, npx
from mxnet.gluon import nn

npx.set_np()
npx.random.seed(0)

# Number of training images, and the largest number of test images. Fashion-MNIST has 60,000 and 10,000. Use a multiple
# of 32, the batch size below: a Trainer needs rows on every device.
num_rows = int(os.environ.get('GLUON_MGPU_ROWS', 2048))

# %% [markdown]
# ## A Toy Network
#
# ResNet-18 was made for photographs. These images are 28 pixels wide, so the first convolution is smaller than in the
# original, and no pooling follows it. Eight residual blocks of two convolutions follow. The first block of 128, 256 and
# 512 channels halves width and height.

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
# `initialize` takes a list of devices and puts a copy of the parameters on each, as `get_params` did, for any network.

# %%
devices = [d2l.try_gpu(i) for i in range(2)]
net.initialize(init=init.Normal(sigma=0.01), ctx=devices)
devices

# %% [markdown]
# A network on two devices accepts arrays on either device and uses the parameters on that device. With four images in
# two shards, each device computes ten scores for two rows. The scores stay on the device (`ctx`, short for context, is
# the device of an array).

# %%
X = np.random.uniform(size=(4, 1, 28, 28))
for X_shard in d2l.split_and_load(X, devices):
    scores = net(X_shard)
    print(scores.shape, 'on', scores.ctx)

# %% [markdown]
# Layers learn the number of input channels from their first input, so the parameters exist only now. They exist on the
# two devices and *nowhere else*: asking for a copy on a third device is an error that names the two.

# %%
weight = net[0].weight
try:
    weight.data(npx.cpu(7))
except RuntimeError as error:
    print(error)

# %% [markdown]
# The copies are equal. This is the 3x3 kernel of the first channel on both devices:

# %%
for device in devices:
    print(f'on {device}:', weight.data(device)[0, 0], sep='\n')

# %% [markdown]
# The accuracy can be computed on all devices as well. The network knows the devices of its parameters, so the function
# needs no list of devices. It splits each batch and counts the correct predictions on all devices.

# %%
def evaluate_accuracy_gpus(net, data_iter, split_f=d2l.split_batch):
    devices = next(iter(net.collect_params().values())).list_ctx()
    correct_and_all = d2l.Accumulator(2)
    for X, y in data_iter:
        X_shards, y_shards = split_f(X, y, devices)
        scores = [net(X_shard) for X_shard in X_shards]  # starts all devices before waiting for the first
        correct = sum(d2l.accuracy(s, y_shard) for s, y_shard in zip(scores, y_shards))
        correct_and_all.add(correct, len(y))
    return correct_and_all[0] / correct_and_all[1]

# %% [markdown]
# ## Training
#
# Compare this loop with that of the chapter before. Forward and backward are the same. `allreduce` and the updates are
# now one line, `trainer.step`: the Trainer sums the gradients over the devices, divides by the batch size, and updates
# all copies. The book passes all parameters. From those without gradients, batch norm's running statistics, the first
# step would copy the first device's to the others. `hybridize` compiles the network into one graph, so that Python
# starts a whole pass in one call and the devices do not wait for Python. Each call sets the random seed, so that two
# calls start from the same weights and differ only in their arguments.

# %%
def train(num_gpus, batch_size, lr, num_epochs=3):
    npx.random.seed(0)
    train_iter, test_iter = d2l.load_data('auto', batch_size, train_size=num_rows)
    test_batches = list(islice(test_iter, max(num_rows // batch_size, 1)))
    devices = [d2l.try_gpu(i) for i in range(num_gpus)]
    net.initialize(init=init.Normal(sigma=0.01), ctx=devices, force_reinit=True)
    net.hybridize(static_alloc=True, static_shape=True)
    params = [param for param in net.collect_params().values() if param.grad_req != 'null']
    trainer = gluon.Trainer(params, 'sgd', {'learning_rate': lr})
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
    return animator.Y[0], timer.avg()

# %% [markdown]
# One device. After so few steps the test accuracy can jump, because batch norm's running statistics come from few
# batches.

# %%
accuracy_on_one, seconds_on_one = train(num_gpus=1, batch_size=32, lr=0.1)

# %% [markdown]
# Two devices, with everything else the same:

# %%
accuracy_on_two, seconds_on_two = train(num_gpus=2, batch_size=32, lr=0.1)

# %% [markdown]
# Both runs in numbers, as in the chapter before:

# %%
print('test accuracy after each epoch, on one device: ', *(f'{a:.3f}' for a in accuracy_on_one))
print('test accuracy after each epoch, on two devices:', *(f'{a:.3f}' for a in accuracy_on_two))
print(f'two devices are {seconds_on_one / seconds_on_two:.2f} times as fast as one')

# %% [markdown]
# This is the speed of one short run; it depends on what else the machine does. Two things differ from LeNet. ResNet-18
# computes more for each gradient that it exchanges, so [with an idle core for each
# device](../../docs/results.md#two-devices-against-one), a second one gains more. And batch norm computes mean and
# variance from the rows of its own device, here 16 instead of 32, so two devices take other steps than one, and the
# accuracies differ more.
#
# ## Things to Try
#
# * On GPUs: `GLUON_MGPU_ROWS=60000`, ten epochs, `train(1, 256, 0.1)` against `train(2, 512, 0.2)`, as in the
#   book. Why does it use a larger batch and a larger learning rate on two GPUs?
# * Remove the line with `hybridize`. Does one device lose as much speed as two?
# * After training, compare `net[1].running_mean.data(device)` on both devices, and `net[0].weight.data(device)`.
#   Which are equal, and why?
