# %% [markdown]
# # Training on Multiple GPUs
#
# This notebook follows chapter 13.5 of [*Dive into Deep Learning*](https://d2l.ai). It trains LeNet on several devices
# at once, from scratch: each device holds a copy of the parameters and gets its shard of every batch, the gradients
# are summed over the devices, and every device takes the same step. All of this takes about thirty lines.
#
# No GPU is needed. Without one, the devices are `cpu(0)` and `cpu(1)`, which compute in parallel as two GPUs would.
# To see a single step with its numbers first, open [one_step.ipynb](one_step.ipynb).

# %%
import os

import gluon_mgpu as d2l  # before MXNet: it configures MXNet so that CPU contexts run in parallel
from mxnet import autograd, gluon, np, npx

npx.set_np()
npx.random.seed(0)

# Number of training images: enough for LeNet to learn, few enough to wait for. Fashion-MNIST has 60,000.
num_rows = int(os.environ.get('GLUON_MGPU_ROWS', 16384))

# %% [markdown]
# `try_gpu(i)` returns `gpu(i)` if this machine has it, otherwise the CPU context `cpu(i)`: two *different* devices in
# both cases.

# %%
devices = [d2l.try_gpu(i) for i in range(2)]
devices

# %% [markdown]
# ## A Toy Network
#
# LeNet from bare arrays: two convolutions, each followed by relu and a pooling that halves width and height, then
# two dense layers. It has eight parameters. They are in a list, so that it is easy to copy them to a device.

# %%
def weight(*shape):
    return np.random.normal(scale=0.01, size=shape)


params = [weight(20, 1, 3, 3), np.zeros(20),    # W1, b1: convolution 3x3, 20 channels
          weight(50, 20, 5, 5), np.zeros(50),   # W2, b2: convolution 5x5, 50 channels
          weight(800, 128), np.zeros(128),      # W3, b3: dense, 128 outputs
          weight(128, 10), np.zeros(10)]        # W4, b4: dense, a score for each of 10 classes


def conv_relu_pool(X, W, b):
    h = npx.convolution(data=X, weight=W, bias=b, kernel=W.shape[2:], num_filter=W.shape[0])
    return npx.pooling(data=npx.relu(h), pool_type='avg', kernel=(2, 2), stride=(2, 2))


def lenet(X, params):
    W1, b1, W2, b2, W3, b3, W4, b4 = params
    h = conv_relu_pool(X, W1, b1)                 # (n, 1, 28, 28) -> (n, 20, 13, 13)
    h = conv_relu_pool(h, W2, b2)                 # -> (n, 50, 4, 4)
    h = h.reshape(h.shape[0], -1)                 # -> (n, 800)
    h = npx.relu(np.dot(h, W3) + b3)              # -> (n, 128)
    return np.dot(h, W4) + b4                     # -> (n, 10)


loss = gluon.loss.SoftmaxCrossEntropyLoss()       # one number per row

# %% [markdown]
# There are ten classes and the network is not trained yet, so the loss should be close to log 10 = 2.303.

# %%
loss(lenet(np.random.uniform(size=(4, 1, 28, 28)), params), np.array([0, 1, 2, 3]))

# %% [markdown]
# ## Data Synchronization
#
# Two things are copied between devices. The first is the parameters, once, before training starts. Each copy gets its
# own gradient.

# %%
def get_params(params, device):
    copies = [param.copyto(device) for param in params]
    for copy in copies:
        copy.attach_grad()
    return copies

# %% [markdown]
# `b1` on the first device is twenty zeros, and so is its gradient, because nothing has been computed yet. `ctx`, short
# for context, is MXNet's name for the device of an array.

# %%
b1 = get_params(params, devices[0])[1]
print('b1:', b1, 'on', b1.ctx)
print('its gradient:', b1.grad, 'on', b1.grad.ctx)

# %% [markdown]
# The second is the gradients, in every step. `allreduce` takes one array per device, sums them on the first device, and
# copies the sum to the others. It works in place: the array of each device is overwritten with the sum.

# %%
def allreduce(data):
    total, *others = data
    for array in others:
        total += array.as_in_ctx(total.ctx)  # fetched to the first device, then added in place
    for array in others:
        total.copyto(array)

# %% [markdown]
# A small example: before, ones on the first device and twos on the second; after, 1 + 2 = 3 on *both*. Each array is
# still on its own device.

# %%
data = [np.full((1, 2), i + 1, ctx=device) for i, device in enumerate(devices)]
for array in data:
    print('before:', array, 'on', array.ctx)
allreduce(data)
for array in data:
    print('after: ', array, 'on', array.ctx)

# %% [markdown]
# ## Distributing Data
#
# A batch is split by rows into one shard per device. `split_and_load` splits and copies. (Gluon has a function of the
# same name; this one accepts any number of rows.) With four rows and two devices, the first device gets rows 0 and 1,
# the second rows 2 and 3.

# %%
batch = np.arange(24).reshape(4, 6)
shards = d2l.split_and_load(batch, devices)
print('the batch:', batch, sep='\n')
for shard in shards:
    print(f'the shard on {shard.ctx}:', shard, sep='\n')

# %% [markdown]
# Images and labels must be split at the same rows. If the last batch of an epoch does not divide evenly, some devices
# get one row more than others.

# %%
def split_batch(X, y, devices):
    assert len(X) == len(y), 'each image needs a label'
    return d2l.split_and_load(X, devices), d2l.split_and_load(y, devices)

# %% [markdown]
# ## Training
#
# One step has four parts. They run in parallel because MXNet is asynchronous: each line only *starts* work on a device
# and returns at once, so the second device starts while the first one is still busy. The allreduce and the update are
# started in the same way, and MXNet runs them when the results that they need are ready.
#
# Gradients are sums over rows. Dividing their sum by the size of the whole batch gives the step that one device would
# take with the whole batch. (The last batch of an epoch may be smaller. Its update is divided by the same number, so
# that each image has the same weight. The book divides by the rows of the batch, `X.shape[0]`, which gives the few
# images of a small last batch more weight.)

# %%
def train_batch(X, y, device_params, devices, lr, batch_size):
    X_shards, y_shards = split_batch(X, y, devices)
    # 1. Forward: each device computes the loss of its own rows
    with autograd.record():
        losses = [loss(lenet(X_shard, params), y_shard)
                  for X_shard, y_shard, params in zip(X_shards, y_shards, device_params)]
    # 2. Backward: each device computes the gradient of its own rows
    for l in losses:
        l.backward()
    # (A device that got no rows still has the gradient of the step before: set it to zero)
    for params in device_params[len(X_shards):]:
        for param in params:
            param.grad[:] = 0
    # 3. Allreduce: sum the gradients of each of the eight parameters over the devices
    for replicas in zip(*device_params):
        allreduce([param.grad for param in replicas])
    # 4. Update: all replicas take the same step, so they stay equal
    for params in device_params:
        d2l.sgd(params, lr, batch_size)

# %% [markdown]
# `train` is the usual loop around it. The timer needs `npx.waitall()`: without it, we would measure the time to *start*
# an epoch. The test accuracy is not timed. It is computed on the first device, because all devices have the same
# parameters. Each call starts from the same `params` and gets the images in the same order, so that two calls differ
# only in their arguments.

# %%
def train(num_gpus, batch_size, lr, num_epochs=5):
    train_iter, test_iter = d2l.load_data('auto', batch_size, train_size=num_rows)
    devices = [d2l.try_gpu(i) for i in range(num_gpus)]
    device_params = [get_params(params, device) for device in devices]
    timer = d2l.Timer()
    animator = d2l.Animator('epoch', 'test acc', xlim=[1, num_epochs])
    for epoch in range(1, num_epochs + 1):
        timer.start()
        for X, y in train_iter:
            train_batch(X, y, device_params, devices, lr, batch_size)
        npx.waitall()
        timer.stop()
        test_acc = d2l.evaluate_accuracy_gpu(lambda X: lenet(X, device_params[0]), test_iter, devices[0])
        animator.add(epoch, test_acc)
    print(f'test acc: {animator.Y[0][-1]:.2f}, {timer.avg():.1f} sec/epoch on {devices}')
    return animator.Y[0], timer.avg()

# %% [markdown]
# One device first. In the first epochs the accuracy can stay at 0.10, that of guessing, because the weights are close
# to zero and so are their gradients. (The book trains on all 60,000 images for ten epochs in batches of 256. With fewer
# images, smaller batches give LeNet enough steps to learn.)

# %%
accuracy_on_one, seconds_on_one = train(num_gpus=1, batch_size=64, lr=0.2)

# %% [markdown]
# Now two devices. Only one argument is different. Batch size, learning rate, initial parameters and order of images are
# the same.

# %%
accuracy_on_two, seconds_on_two = train(num_gpus=2, batch_size=64, lr=0.2)

# %% [markdown]
# The two runs in numbers:

# %%
print('test accuracy after each epoch, on one device: ', *(f'{a:.3f}' for a in accuracy_on_one))
print('test accuracy after each epoch, on two devices:', *(f'{a:.3f}' for a in accuracy_on_two))
print(f'two devices are {seconds_on_one / seconds_on_two:.2f} times as fast as one')

# %% [markdown]
# * **Accuracy.** Both runs take the same steps, so the accuracies are close. They are not equal: sums in another order
#   are rounded differently, and small differences grow over more than a thousand steps.
# * **Speed.** Two devices help if each has an idle core or GPU, and enough work. Here each has only 32 rows per step,
#   and Python takes much of the time to start a step, because this network is not hybridized. So the second device may
#   gain nothing. [With batches of 256 and the package's own
#   `lenet`](../../docs/results.md#two-devices-against-one), two devices are almost twice as fast.
#
# ## Things to Try
#
# * Set the environment variable `GLUON_MGPU_ROWS` to 60000, the batch size to 256 and `num_epochs` to 10: the
#   book's own run.
# * In `train_batch`, run one device after the other: forward, backward, then `npx.waitall()`. What happens to the time
#   of two devices, and why does the accuracy not change?
# * Add `from gluon_mgpu.scratch import lenet` in front of the cell with `train`: the same function, but started as one
#   operator. How much faster are one and two devices?
# * Leave `allreduce` out. Which rows does the first device learn from?
#
# Next: [the same with Gluon's Trainer](multiple_gpus_concise.ipynb), in fewer lines.
