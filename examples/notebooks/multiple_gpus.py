# %% [markdown]
# # Training on Multiple GPUs
#
# Chapter 13.5 of [*Dive into Deep Learning*](https://d2l.ai), retold with `gluon_mgpu`: one LeNet, trained by
# several devices at once, with nothing hidden. Each device keeps a copy of the parameters and gets its share of
# every batch. The gradients are added up over the devices, and every device takes the same step. At the end of
# this page you have written all of that yourself, in about thirty lines.
#
# No GPU? Read on: the devices are then `cpu(0)` and `cpu(1)`, which compute in parallel just as two GPUs would.

# %%
import os

import gluon_mgpu as d2l  # before MXNet, which it sets up so that CPU contexts run in parallel
from gluon_mgpu.data import load_data
from mxnet import autograd, gluon, np, npx

npx.set_np()
npx.random.seed(0)

# How many training images to use: enough to see LeNet learn, few enough to wait for. Fashion-MNIST has 60,000.
num_rows = int(os.environ.get('GLUON_MGPU_ROWS', 16384))

# %% [markdown]
# `try_gpu(i)` is GPU number `i` if this machine has it, and otherwise the CPU context of that number. Either way
# we get two *different* devices.

# %%
devices = [d2l.try_gpu(i) for i in range(2)]
devices

# %% [markdown]
# ## A Toy Network
#
# LeNet from bare arrays: two convolutions, each followed by a relu and a pooling that halves width and height,
# then two dense layers. Eight arrays hold everything there is to learn, and keeping them in a plain list will
# make it easy to copy them from device to device.

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
# Ten classes and no training yet: the loss should be close to log 10 = 2.303, that of a blind guess.

# %%
loss(lenet(np.random.uniform(size=(4, 1, 28, 28)), params), np.array([0, 1, 2, 3]))

# %% [markdown]
# ## Data Synchronization
#
# Two things have to travel between devices. The first is the parameters, once, before training begins. The copy
# that arrives gets room for a gradient of its own.

# %%
def get_params(params, device):
    copies = [param.copyto(device) for param in params]
    for copy in copies:
        copy.attach_grad()
    return copies

# %% [markdown]
# Here is `b1` on the first device: twenty zeros, and twenty more for a gradient that nothing has been added to.
# `ctx`, short for context, is MXNet's word for the device that an array is on.

# %%
b1 = get_params(params, devices[0])[1]
print('b1:', b1, 'on', b1.ctx)
print('its gradient:', b1.grad, 'on', b1.grad.ctx)

# %% [markdown]
# The second is the gradients, in every step. `allreduce` takes one array from each device, adds all of them up
# on the first, and sends the sum back to the others. What each device had is overwritten, which is just what we
# want.

# %%
def allreduce(data):
    total, *others = data
    for array in others:
        total += array.as_in_ctx(total.ctx)  # fetched to the first device, then added in place
    for array in others:
        total.copyto(array)

# %% [markdown]
# Try it with something small. Before: ones here, twos there. After: 1 + 2 = 3 on *both*, and each array is still
# on the device that it was on.

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
# A batch is cut by rows, one slice for each device, and `split_and_load` cuts and copies in one go. (Gluon has a
# function of that name, too. Ours takes any number of rows.) Four rows and two devices make two rows each: rows 0
# and 1 for the first device, rows 2 and 3 for the second.

# %%
batch = np.arange(24).reshape(4, 6)
shards = d2l.split_and_load(batch, devices)
print('the batch:', batch, sep='\n')
for shard in shards:
    print(f'the shard on {shard.ctx}:', shard, sep='\n')

# %% [markdown]
# Images and labels have to be cut at the same places. The last batch of an epoch may not divide evenly, and then
# one device gets a row more than another.

# %%
def split_batch(X, y, devices):
    assert len(X) == len(y), 'a label for every image'
    return d2l.split_and_load(X, devices), d2l.split_and_load(y, devices)

# %% [markdown]
# ## Training
#
# Now one step, in four moves. The order of the loops is what makes it parallel: every line only *asks* a device
# for work and returns at once, so while the first device is busy the second one is asked too. Even `allreduce`
# and the update are only asked for: MXNet knows whose results they need, and starts them when those are there.
#
# Gradients are sums over rows. Dividing the sum by the size of the whole batch gives the very step that a single
# device would have taken with the whole batch. (The last batch of an epoch may be smaller. We divide it by the same
# number, so that each image counts equally. The book divides by the rows in the batch, `X.shape[0]`, and then the few
# images of a small last batch count more than the others.)

# %%
def train_batch(X, y, device_params, devices, lr, batch_size):
    X_shards, y_shards = split_batch(X, y, devices)
    # 1. Forward: every device computes the loss of its own rows
    with autograd.record():
        losses = [loss(lenet(X_shard, params), y_shard)
                  for X_shard, y_shard, params in zip(X_shards, y_shards, device_params)]
    # 2. Backward: every device computes the gradient of its own rows
    for l in losses:
        l.backward()
    # (A device that got no row of a tiny batch still holds the gradient of the step before: away with it)
    for params in device_params[len(X_shards):]:
        for param in params:
            param.grad[:] = 0
    # 3. For each of the eight parameters, add up the gradients of all devices
    for replicas in zip(*device_params):
        allreduce([param.grad for param in replicas])
    # 4. Update: all replicas take the same step, and so stay equal
    for params in device_params:
        d2l.sgd(params, lr, batch_size)

# %% [markdown]
# Around it, the usual loop. `npx.waitall()` is there for the clock: without it we would time how long it takes
# to *ask* for an epoch. The test accuracy is computed outside the timed part, on the first device, since all of
# them have the same parameters.

# %%
def train(num_gpus, batch_size, lr, num_epochs=5):
    train_iter, test_iter = load_data('auto', batch_size, train_size=num_rows)
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

# %% [markdown]
# One device first. The weights begin so close to zero that at first hardly anything seems to happen; then the
# curve takes off. (The book trains on all 60,000 images for ten epochs in batches of 256. We use fewer images in
# smaller batches: LeNet needs a good number of steps, more than it needs images.)

# %%
train(num_gpus=1, batch_size=64, lr=0.2)

# %% [markdown]
# Now two. Only one argument has changed: batch size, learning rate and initial parameters have not. So compare
# two things with the run above. The *curve* should be nearly the same, because two devices with half a batch each
# take the steps that one takes with the whole batch. (Nearly, because sums in another order round differently, and
# small differences grow over more than a thousand steps.) The *seconds* depend on the machine. Two devices can only be
# faster if each has an idle core or GPU, and with small batches Python takes much of the time to start each step.

# %%
train(num_gpus=2, batch_size=64, lr=0.2)

# %% [markdown]
# ## Things to Try
#
# * Set the environment variable `GLUON_MGPU_ROWS` to 60000, the batch size to 256 and `num_epochs` to 10: the
#   book's own run.
# * In `train_batch`, take one device after the other: forward, backward, then `npx.waitall()`. What happens to
#   the time of two devices, and why not to their accuracy?
# * Every step calls `allreduce` eight times. `python -m gluon_mgpu.scratch` keeps all parameters of a device in
#   one array, so that one call does, and compiles `lenet`. How much faster is that?
# * Leave `allreduce` out. Which rows does the first device learn from now?
#
# Next: [the same with Gluon's Trainer](multiple_gpus_concise.ipynb), in far fewer lines.
