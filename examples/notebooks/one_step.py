# %% [markdown]
# # One Step to Watch
#
# This notebook takes one step of data-parallel training on 8 rows and two devices, and shows the numbers of each stage.
# It takes a few seconds. `python examples/one_step.py` shows the same in a terminal. The functions come from
# [`gluon_mgpu.scratch`](../../gluon_mgpu/scratch.py), chapter 13.5 of [*Dive into Deep Learning*](https://d2l.ai);
# [the next notebook](multiple_gpus.ipynb) writes them.

# %%
import gluon_mgpu as d2l  # before MXNet: it configures MXNet so that CPU contexts run in parallel
from gluon_mgpu.scratch import allreduce, get_params, init_params, lenet, loss, sgd, split_batch, train_batch
from mxnet import autograd, np, npx

npx.set_np()
npx.random.seed(0)
devices = [d2l.try_gpu(i) for i in range(2)]
devices

# %% [markdown]
# ## The Batch
#
# Eight images. Image i has a bar at height i, and its label is i, so each label is also the number of its row.

# %%
X, y = np.zeros((8, 1, 28, 28)), np.arange(8)
for i in range(8):
    X[i, 0, 3 * i + 1:3 * i + 4] = 1
print('X', X.shape, 'y', y.shape)

# %% [markdown]
# ## Parameters
#
# Each device gets a copy of all parameters, called a replica. A third copy is for the comparison with one device.

# %%
initial = init_params(scale=0.1)
device_params = [get_params(initial, device) for device in devices]
alone = get_params(initial, devices[0])

# %% [markdown]
# ## Split
#
# Each device gets half of the rows. Before you run the cell: which labels are on which device?

# %%
X_shards, y_shards = split_batch(X, y, devices)
for X_shard, y_shard in zip(X_shards, y_shards):
    print(X_shard.ctx, X_shard.shape, 'labels', y_shard.astype(int))

# %% [markdown]
# ## Forward
#
# Each device computes the loss of its own rows with its own replica.

# %%
with autograd.record():
    ls = [loss(lenet(X_shard, params), y_shard)
          for X_shard, y_shard, params in zip(X_shards, y_shards, device_params)]
for l in ls:
    print(l.ctx, l.asnumpy().round(2))

# %% [markdown]
# ## Backward
#
# `b4`, the last bias, has ten numbers, one per class. Its gradient is easy to read: the entry of class c is the sum of
# the rows' probabilities of c, minus the number of rows with label c. Which entries are negative on which device?

# %%
def show(name, array):
    print(name, array.asnumpy().round(2))


for l in ls:
    l.backward()
for device, params in zip(devices, device_params):
    show(device, params[-1].grad)

# %% [markdown]
# The two gradients differ, because the rows differ.
#
# ## Allreduce
#
# `allreduce` overwrites the gradients of both devices with their sum. One device with all eight rows computes the same.

# %%
for i in range(len(alone)):
    allreduce([params[i].grad for params in device_params])
train_batch(X, y, [alone], devices[:1], lr=0.1)
for device, params in zip(devices, device_params):
    show(device, params[-1].grad)
show('alone ', alone[-1].grad)

# %% [markdown]
# ## Update
#
# Each device subtracts lr / 8 times the sum from its replica. Equal parameters minus equal updates stay equal.

# %%
def largest_difference(params, *others):
    return max(float(abs(p.asnumpy() - q.asnumpy()).max()) for other in others for p, q in zip(params, other))


for params in device_params:
    sgd(params, lr=0.1, batch_size=8)
print('between the replicas:', largest_difference(*device_params))
print('from one device:     ', largest_difference(device_params[0], alone))

# %% [markdown]
# The first difference is exactly zero. The second is rounding: the sum over eight rows is computed in another order.
#
# ## Without Allreduce
#
# The same training, 20 steps, with allreduce and with a function that does nothing in its place. What will the replicas
# learn?

# %%
def train(allreduce, num_steps=20):
    device_params = [get_params(initial, device) for device in devices]
    animator = d2l.Animator('step', legend=['difference between replicas', 'loss of the first on all rows'],
                            xlim=[0, num_steps], figsize=(5, 3))
    for step in range(num_steps + 1):
        of_first = loss(lenet(X.as_in_ctx(devices[0]), device_params[0]), y.as_in_ctx(devices[0])).mean()
        animator.add(step, (largest_difference(*device_params), float(of_first)))
        train_batch(X, y, device_params, devices, 0.1, allreduce=allreduce)
    print(f'difference {animator.Y[0][-1]:.2f}, loss {animator.Y[1][-1]:.2f}')


train(allreduce)

# %%
train(lambda data: None)

# %% [markdown]
# With allreduce, the difference stays zero and the loss on all rows falls. Without it, each replica learns only its own
# four rows. The replicas drift apart, and the loss on all rows first falls and then rises, because the other four rows
# are never seen.
#
# ## Things to Try
#
# * Use three devices: `[d2l.try_gpu(i) for i in range(3)]`. How are the eight rows split?
# * Replace `allreduce` by a function that rebinds names: `data = [sum(data)] * len(data)`. Why does it change nothing?
# * Call `sgd` with `batch_size=4`, the rows of one device. What happens to the difference from one device?
#
# Next: [training on multiple GPUs](multiple_gpus.ipynb).
