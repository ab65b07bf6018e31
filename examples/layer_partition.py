"""Layer-wise partitioning: the channels of each layer are split over the devices.

    python examples/layer_partition.py
    python examples/layer_partition.py --devices gpu:0-3

Prints, on two devices (the difference varies, the bytes do not):

    cpu(0) has weights (10, 1, 3, 3), (25, 20, 5, 5), (800, 64), (128, 5)
    cpu(1) has weights (10, 1, 3, 3), (25, 20, 5, 5), (800, 64), (128, 5)
    gradients differ from those of one device by ~9e-07 of the largest
    counted while it ran: 8.83 MB; by the formulas, a step of 256 rows moves, with
      network partitioning      1.64 MB
      layer-wise partitioning   8.83 MB
      data parallelism          1.03 MB

Each device holds a part of every layer's output channels. A channel of the next layer needs all channels of this one.
So after each layer, every device sends its part to all others, and in the backward pass the gradients return. This
moves many bytes, and all devices wait for them. Data parallelism moves only the gradients of the parameters, here to
the first device, and their sum back: once per step, and the same number of bytes for any batch size.
"""
from __future__ import annotations

import numpy
from flags import read_flags, run_example
from gluon_mgpu.scratch import init_params, loss
from mxnet import autograd, np, npx

FLOAT = 4  # bytes


def cut(params: list, devices: list) -> list:
    """Split LeNet's parameters by the outputs of each layer; with two devices, W1 (20, 1, 3, 3) -> (10, 1, 3, 3)."""
    device_params = []
    for i, device in enumerate(devices):
        parts = [numpy.array_split(param.asnumpy(), len(devices), axis=1 if param.ndim == 2 else 0)[i]
                 for param in params]  # outputs are the columns of a dense layer's weight, and the rows otherwise
        device_params.append([np.array(part, ctx=device) for part in parts])
        for part in device_params[i]:
            part.attach_grad()
    return device_params


def gather(parts: list, devices: list, moved: list) -> list:
    """Give each of `devices` all channels: parts (n, 10, 13, 13) of two devices -> (n, 20, 13, 13) on each.

    Append the bytes of each copy between devices to `moved`. The backward pass moves as many bytes again.
    """
    moved += [part.size * FLOAT for device in devices for part in parts if part.ctx != device]
    return [np.concatenate([part.as_in_ctx(device) for part in parts], axis=1) for device in devices]


def conv_layer(X, W, b):
    """Apply convolution, relu and pooling as in the book: (n, c, h, w) -> (n, channels of W, h / 2, w / 2)."""
    h = npx.relu(npx.convolution(data=X, weight=W, bias=b, kernel=W.shape[2:], num_filter=W.shape[0]))
    return npx.pooling(data=h, pool_type='avg', kernel=(2, 2), stride=(2, 2))


def split_lenet(X, device_params: list, devices: list, moved: list):
    """Compute scores, (n, 1, 28, 28) -> (n, 10), on the first device."""
    Xs = [X.as_in_ctx(device) for device in devices]
    Xs = gather([conv_layer(X, p[0], p[1]) for X, p in zip(Xs, device_params)], devices, moved)  # (n, 20, 13, 13)
    Xs = gather([conv_layer(X, p[2], p[3]) for X, p in zip(Xs, device_params)], devices, moved)  # (n, 50, 4, 4)
    Xs = [X.reshape(-1, 800) for X in Xs]                                                        # (n, 800)
    Xs = gather([npx.relu(np.dot(X, p[4]) + p[5]) for X, p in zip(Xs, device_params)], devices, moved)  # (n, 128)
    return gather([np.dot(X, p[6]) + p[7] for X, p in zip(Xs, device_params)], devices[:1], moved)[0]   # (n, 10)


def bytes_by_way(n: int, k: int) -> dict:
    """Return for each way the bytes that a step of LeNet on n rows moves between k <= 4 devices, without images."""
    sizes = [20 * 13 * 13, 50 * 4 * 4, 128]  # numbers per row in the output of each layer except the last
    # at each of the k - 1 cuts between layers: activations forward, gradients back
    network = sum(2 * n * sizes[4 * i // k - 1] for i in range(1, k))
    # every output to the k - 1 other devices, the scores to the first device, and all gradients back
    layers = 2 * n * ((k - 1) * sum(sizes) + 10 - -(-10 // k))
    # the gradient of each parameter to the first device, and the sum back
    data = 2 * (k - 1) * sum(param.size for param in init_params())
    return {'network partitioning': FLOAT * network, 'layer-wise partitioning': FLOAT * layers,
            'data parallelism': FLOAT * data}


def gradients(X, y, params: list, devices: list) -> tuple[list, int]:
    """Return the gradients of all parameters, computed in parts, as NumPy arrays; and the bytes moved."""
    device_params, moved = cut(params, devices), []
    with autograd.record():
        l = loss(split_lenet(X, device_params, devices, moved), y)
    l.backward()
    return [numpy.concatenate([part.grad.asnumpy() for part in parts], axis=1 if parts[0].ndim == 2 else 0)
            for parts in zip(*device_params)], 2 * sum(moved)


def main(argv: list | None = None) -> None:
    args = read_flags(__doc__, argv, devices='cpu:0,cpu:1', at_least=2, batch_size=256)
    devices = args.devices[:4]
    X = np.random.uniform(size=(args.batch_size, 1, 28, 28), ctx=devices[0])
    y = np.random.randint(0, 10, size=args.batch_size, ctx=devices[0])
    params = init_params(0.1)
    for device, parts in zip(devices, cut(params, devices)):
        print(f'{device} has weights {", ".join(str(part.shape) for part in parts[::2])}')

    grads, moved = gradients(X, y, params, devices)
    grads_of_one, _ = gradients(X, y, params, devices[:1])
    difference = max(abs(grad - of_one).max() / abs(of_one).max() for grad, of_one in zip(grads, grads_of_one))
    print(f'gradients differ from those of one device by {difference:.0e} of the largest')
    print(f'counted while it ran: {moved / 1e6:.2f} MB; '
          f'by the formulas, a step of {args.batch_size} rows moves, with')
    for way, size in bytes_by_way(args.batch_size, len(devices)).items():
        print(f'  {way:24}{size / 1e6:6.2f} MB')


if __name__ == '__main__':
    run_example(main)
