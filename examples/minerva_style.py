"""The style of Minerva: set the current device, and the following operations run there, with operands from anywhere.

    python examples/minerva_style.py
    python examples/minerva_style.py --devices gpu:0,gpu:1

Prints, on two CPU contexts with a core each (the times vary, and so does the ratio):

    a on cpu(0), b on cpu(1); a + b on cpu(1): [[2.0, 3.0], [4.0, 5.0]]
    a result on each device, in turn:      ~0.38 s
    the same, without waiting in between:  ~0.20 s, ~1.9 times as fast
    small batches: 128 + 128, 128 + 128, 128 + 128, 128 + 128, 128 + 128, 120
    accuracy after 5 epochs: ~0.87

Minerva (2014) computed results only when they were needed, so independent results could be computed at the same time.
MXNet's engine, its successor, starts work immediately without waiting for it, with the same effect. Training takes
bulk-synchronous steps: each device computes the gradient of a small batch, the gradients are added on device 0, and the
weights are updated. The next step begins only then, because all devices need the new weights.
"""
from __future__ import annotations

import operator

import numpy
from flags import read_flags, run_example
from gluon_mgpu import Timer
from mxnet import np, npx


class Owl:
    """Devices of a program, one of which is current."""

    def __init__(self, devices: list):
        self.devices = devices
        self.set_device(0)

    def set_device(self, i: int) -> None:
        self.device = self.devices[i]

    def array(self, data):
        return Array(self, np.array(data, dtype='float32', ctx=self.device))


class Array:
    """Array that moves to the current device when an operation needs it there."""

    def __init__(self, owl: Owl, data):
        self.owl, self.data = owl, data

    def run(self, function, *others):
        here = (a.data.as_in_ctx(self.owl.device) if isinstance(a, Array) else a for a in (self, *others))
        return Array(self.owl, function(*here))

    __add__, __sub__, __mul__, __matmul__ = (
        (lambda self, other, f=f: self.run(f, other)) for f in (operator.add, operator.sub, operator.mul, np.dot))


def gradient(X: Array, Y: Array, W: Array) -> Array:
    """Return the gradient of the cross-entropy of softmax regression, summed over the rows: (inputs, classes)."""
    # P = softmax(X W), gradient = X^T (P - Y)
    P = (X @ W).run(npx.softmax)  # (n, inputs) (inputs, classes) -> (n, classes)
    return X.run(np.transpose) @ (P - Y)


def train_epoch(owl: Owl, X, Y, W: Array, batch_size: int, lr: float) -> tuple[Array, list]:
    """Train on X (n, inputs) and one-hot Y (n, classes); return the weights and the rows of each small batch."""
    k = len(owl.devices)
    size = max(batch_size // k, 1)
    parts = [slice(start, start + size) for start in range(0, len(X), size)]
    steps = [parts[i:i + k] for i in range(0, len(parts), k)]  # the last step may have fewer and smaller batches
    for step in steps:
        grads = []
        for i, part in enumerate(step):
            owl.set_device(i)
            grads.append(gradient(owl.array(X[part]), owl.array(Y[part]), W))
        owl.set_device(0)
        total = sum(grads[1:], grads[0])
        # W <- W - lr / batch_size * sum of the gradients over the rows, so each row has the same weight in an epoch
        W = W - total * (lr / batch_size)
    return W, [[len(X[part]) for part in step] for step in steps]


def powers(owl: Owl, matrices: list, together: bool) -> tuple[float, list]:
    """Compute A^11 on every device, one after another or all `together`; return the seconds and the results."""
    timer, results = Timer(), []
    for i, A in enumerate(matrices):
        owl.set_device(i)
        B = A
        for _ in range(10):
            B = B @ A
        results.append(B)
        if not together:
            npx.waitall()
    npx.waitall()
    return timer.stop(), results


def main(argv: list | None = None) -> None:
    args = read_flags(__doc__, argv, devices='cpu:0,cpu:1', rows=1400, batch_size=256, size=1000, epochs=5)
    owl = Owl(args.devices)
    a = owl.array([[1, 2], [3, 4]])
    owl.set_device(len(args.devices) - 1)
    b = owl.array([[1, 1], [1, 1]])
    print(f'a on {a.data.ctx}, b on {b.data.ctx}; a + b on {(a + b).data.ctx}: {(a + b).data.asnumpy().tolist()}')

    matrices = []
    for i in range(len(args.devices)):
        owl.set_device(i)
        matrices.append(owl.array(numpy.full((args.size, args.size), 1 / args.size)))
    powers(owl, matrices, together=True)  # warm-up: allocates memory and starts libraries
    in_turn, _ = powers(owl, matrices, together=False)
    together, _ = powers(owl, matrices, together=True)
    print(f'a result on each device, in turn:      {in_turn:.2f} s')
    print(f'the same, without waiting in between:  {together:.2f} s, {in_turn / together:.1f} times as fast')

    rng = numpy.random.default_rng(0)
    y = rng.integers(0, 10, args.rows)
    X = 3 * rng.normal(size=(args.rows, 64)) + rng.normal(size=(10, 64))[y]  # ten clusters of points
    W = owl.array(numpy.zeros((64, 10)))
    for _ in range(args.epochs):
        W, small_batches = train_epoch(owl, X, numpy.eye(10)[y], W, args.batch_size, lr=0.1)
    print('small batches:', ', '.join(' + '.join(map(str, step)) for step in small_batches))
    print(f'accuracy after {args.epochs} epochs: {(numpy.argmax(X @ W.data.asnumpy(), 1) == y).mean():.2f}')


if __name__ == '__main__':
    run_example(main)
