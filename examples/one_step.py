"""One training step on 8 rows, a stage at a time, on two devices and on one.

    python examples/one_step.py                                   # Enter continues
    python examples/one_step.py --no-pause --without-allreduce    # also draws replicas that drift apart

Prints, on two CPU contexts:

    1. Batch: X (8, 1, 28, 28), y (8,). Image i shows a bar at height i. Label: i.
    2. Split: each device gets some of the rows.
       cpu(0)  X_shard (4, 1, 28, 28), labels 0 1 2 3
       cpu(1)  X_shard (4, 1, 28, 28), labels 4 5 6 7
    3. Forward: the loss of each row, computed by the device that has the row.
       cpu(0)   2.44  2.46  2.60  2.00
       cpu(1)   2.51  2.38  1.96  2.06
    4. Backward: the gradient of b4. Negative: the classes of the device's rows.
       cpu(0)  -0.68 -0.65 -0.70 -0.54  0.39  0.36  0.49  0.49  0.39  0.44
       cpu(1)   0.34  0.37  0.34  0.48 -0.66 -0.61 -0.39 -0.57  0.35  0.35
    5. Allreduce: every device has the sum, which one device with all rows computes.
       cpu(0)  -0.34 -0.28 -0.35 -0.06 -0.27 -0.25  0.10 -0.08  0.74  0.79
       cpu(1)  -0.34 -0.28 -0.35 -0.06 -0.27 -0.25  0.10 -0.08  0.74  0.79
       alone   -0.34 -0.28 -0.35 -0.06 -0.27 -0.25  0.10 -0.08  0.74  0.79
    6. Update: b4 minus 0.1 / 8 times this sum, shown times 1000. Replicas agree.
       cpu(0)   4.21  3.52  4.42  0.78  3.37  3.14 -1.25  0.96 -9.22 -9.94
       cpu(1)   4.21  3.52  4.42  0.78  3.37  3.14 -1.25  0.96 -9.22 -9.94
       largest difference between the replicas: 0.0; from one device: ~2e-08

The entry of class c in b4's gradient is the sum of the rows' probabilities of c, minus the number of rows with label c.
--without-allreduce also trains for 20 steps with stage 5 and without it, and draws runs/one_step.png: without it, each
replica learns only its own rows, and the replicas drift apart.
"""
from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from flags import read_flags, run_example
from gluon_mgpu import split_batch
from gluon_mgpu.scratch import allreduce, get_params, init_params, lenet, loss, sgd, train_batch
from mxnet import autograd, np, npx


def bars() -> tuple:
    """Return 8 images, (8, 1, 28, 28), each with a bar at another height, and their labels 0 to 7."""
    X, y = np.zeros((8, 1, 28, 28)), np.arange(8)
    for i in range(8):
        X[i, 0, 3 * i + 1:3 * i + 4] = 1
    return X, y


def stages(X, y, device_params: list, alone: list, devices: list, lr: float) -> Iterator[tuple[str, list]]:
    """Take one step with `device_params`, and the same step with `alone` on the first device.

    Yield (text, lines) after each stage; the values in `lines` are strings or arrays, one per device.
    """
    yield f'Batch: X {X.shape}, y {y.shape}. Image i shows a bar at height i. Label: i.', []

    X_shards, y_shards = split_batch(X, y, devices)
    yield 'Split: each device gets some of the rows.', [
        f'{X_shard.ctx}  X_shard {X_shard.shape}, labels {" ".join(str(int(label)) for label in y_shard)}'
        for X_shard, y_shard in zip(X_shards, y_shards)]

    with autograd.record():
        ls = [loss(lenet(X_shard, params), y_shard)
              for X_shard, y_shard, params in zip(X_shards, y_shards, device_params)]
    yield 'Forward: the loss of each row, computed by the device that has the row.', list(map(numbers, ls))

    for l in ls:
        l.backward()
    yield ("Backward: the gradient of b4. Negative: the classes of the device's rows.",
           [numbers(params[-1].grad) for params in device_params])

    for i in range(len(alone)):
        allreduce([params[i].grad for params in device_params])
    train_batch(X, y, [alone], devices[:1], lr)
    yield ('Allreduce: every device has the sum, which one device with all rows computes.',
           [*(numbers(params[-1].grad) for params in device_params), numbers(alone[-1].grad, 'alone')])

    for params in device_params:
        sgd(params, lr, len(X))
    yield (f'Update: b4 minus {lr:g} / {len(X)} times this sum, shown times 1000. Replicas agree.',
           [*(numbers(1000 * params[-1]) for params in device_params),
            f'largest difference between the replicas: {largest_difference(device_params)}; '
            f'from one device: {largest_difference([device_params[0], alone]):.0e}'])


def numbers(array, name: str = '') -> str:
    """Return a line with the device and the numbers of a short array."""
    return f'{name or str(array.ctx):6} ' + ''.join(f'{value:6.2f}' for value in array.asnumpy())


def largest_difference(device_params: list) -> float:
    """Return the largest absolute difference between the first replica and another one."""
    first, *others = device_params
    return max(float(abs(param - its_copy.as_in_ctx(param.ctx)).max())
               for other in others for param, its_copy in zip(first, other))


def train(X, y, params: list, devices: list, lr: float, num_steps: int, allreduce: Callable) -> tuple[list, list]:
    """Train; return, before and after each step, the replicas' difference and the loss of each on all rows."""
    device_params = [get_params(params, device) for device in devices]
    differences, losses = [], []
    for step in range(num_steps + 1):
        if step:
            train_batch(X, y, device_params, devices, lr, allreduce=allreduce)
        differences.append(largest_difference(device_params))
        losses.append([float(loss(lenet(X.as_in_ctx(device), params), y.as_in_ctx(device)).mean())
                       for device, params in zip(devices, device_params)])
    return differences, losses


def draw(runs: dict, path: Path) -> None:
    """Draw the results of `train` with and without allreduce, as PNG."""
    from matplotlib.figure import Figure
    fig = Figure(figsize=(8, 3.2), dpi=120, layout='tight')
    left, right = fig.subplots(1, 2)
    for name, (differences, losses) in runs.items():
        line, = left.plot(differences, label=name)
        right.plot(losses, color=line.get_color())
    left.set(title='Largest difference between replicas', xlabel='steps')
    left.legend()
    right.set(title='Loss of each replica on all 8 rows', xlabel='steps', ylabel='nats')
    for axes in (left, right):
        axes.grid(alpha=0.4)
        axes.xaxis.get_major_locator().set_params(integer=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    fig.savefig(path)


def main(argv: list | None = None) -> None:
    args = read_flags(__doc__, argv, devices='cpu:0,cpu:1', at_least=2, lr=0.1, steps=20, no_pause=False,
                      without_allreduce=False, out='runs/one_step.png')
    npx.random.seed(0)
    (X, y), params, devices = bars(), init_params(scale=0.1), args.devices
    device_params, alone = [get_params(params, device) for device in devices], get_params(params, devices[0])
    for i, (text, lines) in enumerate(stages(X, y, device_params, alone, devices, args.lr), 1):
        if i > 1 and not args.no_pause and sys.stdin and sys.stdin.isatty():
            with contextlib.suppress(EOFError):  # Ctrl-D
                input('(Enter continues) ')
        print(f'{i}. {text}', *lines, sep='\n   ')
    if args.without_allreduce:
        runs = {name: train(X, y, params, devices, args.lr, args.steps, function)
                for name, function in (('with allreduce', allreduce), ('without allreduce', lambda data: None))}
        draw(runs, Path(args.out))
        for name, (differences, losses) in runs.items():
            steps = '1 step' if args.steps == 1 else f'{args.steps} steps'
            print(f'{steps} {name}: replicas differ by {differences[-1]:.2g}, losses on {len(X)} '
                  'rows', *(f'{loss:.2f}' for loss in losses[-1]))
        print(f'picture: {args.out}')


if __name__ == '__main__':
    run_example(main)
