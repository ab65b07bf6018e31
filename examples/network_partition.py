"""Network partitioning: the layers of a network on two devices, with a pipeline of micro-batches.

    python examples/network_partition.py
    python examples/network_partition.py --devices gpu:0,gpu:1 --width 4096 --batch-size 4096

Prints, on two CPU contexts with a core each (the times and the measured bubbles vary):

    cpu(0): 2 layers
    cpu(1): 3 layers
    gradients differ from those of one device by ~6e-07 of the largest
    micro-batches  one device  pipeline  bubble  (p-1)/(m+p-1)
                1    ~0.218 s  ~0.223 s   ~0.51           0.50
                2    ~0.220 s  ~0.177 s   ~0.38           0.33
                4    ~0.226 s  ~0.166 s   ~0.32           0.20
                8    ~0.244 s  ~0.174 s   ~0.30           0.11

Each device computes its layers and passes the activations on; in the backward pass, the gradients return the same way.
If a batch is in one piece, only one device works at a time. If it is cut into m micro-batches, the first device
continues with the next one while the second computes the previous one. Each of p devices is then idle for a share of

    (p - 1) / (m + p - 1)

of the step, the bubble: until the first micro-batch arrives, and after the last one has left. It is measured as 1 -
t_1 / (p t_p), where t_1 is the time of one device for the same micro-batches and t_p the time of the pipeline. It is
larger than the formula, which assumes equal stages, devices that work strictly in order, and no cost of passing on.
"""
from __future__ import annotations

from flags import read_flags, run_example
from gluon_mgpu import Timer, split_batch
from mxnet import autograd, gluon, np, npx

loss = gluon.loss.SoftmaxCrossEntropyLoss()


def init_params(num_layers: int, width: int) -> list:
    """Return the weights of `num_layers` hidden layers, (width, width), and of the output, (width, 10)."""
    sizes = [width] * num_layers + [10]
    return [np.random.normal(scale=width**-0.5, size=(width, size)) for size in sizes]


def cut(params: list, devices: list) -> list:
    """Copy consecutive layers to each device. Their gradients are summed over micro-batches."""
    k, n = len(devices), len(params)
    stages = [[W.copyto(device) for W in params[n * i // k:n * (i + 1) // k]] for i, device in enumerate(devices)]
    for W in weights(stages):
        W.attach_grad(grad_req='add')
    return stages


def weights(stages: list) -> list:
    """Return the weights of all stages, in the order of the layers."""
    return [W for stage in stages for W in stage]


def forward(X, stages: list, devices: list):
    """Compute scores, (n, width) -> (n, 10), on the last device."""
    for stage, device in zip(stages, devices):
        X = X.as_in_ctx(device)  # (n, width) moves between devices here, and its gradient in the backward pass
        for W in stage:
            X = np.dot(npx.activation(X, act_type='tanh'), W)
    return X


def train_batch(X, y, stages: list, devices: list, num_micro: int, lr: float) -> None:
    """Take one step of SGD on a batch in `num_micro` parts; does not block."""
    for W in weights(stages):
        W.grad[:] = 0
    X_parts, y_parts = split_batch(X, y, [devices[0]] * num_micro)
    with autograd.record():  # parts do not wait for each other: each device takes what is ready
        ls = [loss(forward(X_part, stages, devices), y_part.as_in_ctx(devices[-1]))
              for X_part, y_part in zip(X_parts, y_parts)]
    for l in ls:
        l.backward()
    for W in weights(stages):
        W -= lr / len(X) * W.grad


def relative_difference(grad, of_one) -> float:
    """Return the largest difference between two gradients, relative to the largest entry."""
    grad, of_one = grad.asnumpy(), of_one.asnumpy()
    return float(abs(grad - of_one).max() / abs(of_one).max())


def seconds(X, y, params: list, devices: list, num_micro: int, repeats: int = 3) -> float:
    """Return the shortest time of a step."""
    stages, timer = cut(params, devices), Timer()
    for _ in range(1 + repeats):  # the first step allocates memory
        npx.waitall()
        timer.start()
        train_batch(X, y, stages, devices, num_micro, lr=0.1)
        npx.waitall()
        timer.stop()
    return min(timer.times[1:])


def main(argv: list | None = None) -> None:
    args = read_flags(__doc__, argv, devices='cpu:0,cpu:1', at_least=2, layers=4, width=1024, batch_size=1024)
    devices, p = args.devices, len(args.devices)
    params = init_params(args.layers, args.width)
    X = np.random.uniform(size=(args.batch_size, args.width), ctx=devices[0])
    y = np.random.randint(0, 10, size=args.batch_size, ctx=devices[0])

    one, several = cut(params, devices[:1]), cut(params, devices)
    train_batch(X, y, one, devices[:1], num_micro=1, lr=0.1)
    train_batch(X, y, several, devices, num_micro=4, lr=0.1)
    for device, stage in zip(devices, several):
        print(f'{device}: {len(stage)} layers')
    difference = max(relative_difference(W.grad, W_one.grad) for W, W_one in zip(weights(several), weights(one)))
    print(f'gradients differ from those of one device by {difference:.0e} of the largest')
    print('micro-batches  one device  pipeline  bubble  (p-1)/(m+p-1)')
    for m in (1, 2, 4, 8):
        t_1, t_p = seconds(X, y, params, devices[:1], m), seconds(X, y, params, devices, m)
        print(f'{m:13}  {t_1:8.3f} s  {t_p:6.3f} s  {1 - t_1 / (p * t_p):6.2f}  {(p - 1) / (m + p - 1):13.2f}')


if __name__ == '__main__':
    run_example(main)
