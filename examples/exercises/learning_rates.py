"""13.5, exercise 2: test accuracy by learning rate and devices, with the same batch per device or in total.

    python examples/exercises/learning_rates.py --out learning-rates.png

Prints, on four CPU contexts:

    LeNet, 6144 images, 4 epochs, batches of 32 rows per device: test accuracy
    devices  batch  rate 0.1  rate 0.2  rate 0.4  rate 0.8
          1     32     0.614     0.747     0.768     0.102
          2     64     0.102     0.469     0.724     0.698
          4    128     0.102     0.102     0.102     0.102
          4     32     0.620     0.748     0.770     0.102

The number of devices changes only the rounding, but the batch changes the result: compare the last line, which has the
batch of the first. With k times the batch, a larger rate is needed.
"""
from __future__ import annotations

from pathlib import Path

from common import part_of, read_flags, run_example
from gluon_mgpu import DivergenceError, Run, scratch

RATES = (0.1, 0.2, 0.4, 0.8)


def accuracy(devices: list, batch_size: int, lr: float, args) -> float:
    """Return the test accuracy after training, 0.1 (guessing) if it diverges."""
    run = Run(args.num_epochs, quiet=True)
    data = part_of(args.dataset, batch_size, args.train_size, args.test_size)
    try:
        scratch.train(len(devices), batch_size, lr, devices=devices, data=data, run=run)
    except DivergenceError:
        return 0.1
    return run.history[-1].accuracy


def _devices(k: int) -> str:
    return '1 device' if k == 1 else f'{k} devices'


def draw(lines: list, accuracies: list, path: str) -> None:
    """Draw the grid as PNG."""
    from matplotlib.figure import Figure
    fig = Figure(figsize=(6, 3.2), dpi=120, layout='constrained')
    axes = fig.subplots()
    axes.imshow(accuracies, vmin=0, vmax=1, cmap='viridis', aspect='auto')
    for row, line in enumerate(accuracies):
        for column, value in enumerate(line):
            axes.annotate(f'{value:.2f}', (column, row), ha='center', va='center', color='w' if value < 0.6 else 'k')
    axes.set(title='test accuracy of LeNet', xlabel='learning rate', xticks=range(len(RATES)), xticklabels=RATES,
             yticks=range(len(lines)), yticklabels=[f'{_devices(k)},\nbatch {batch}' for k, batch in lines])
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    fig.savefig(path)


def main(argv: list | None = None) -> None:
    args = read_flags(__doc__, argv, devices='cpu:0-3', at_least=4, batch_size=32, train_size=6144, test_size=2048,
                      num_epochs=4, dataset='auto', out='')
    b = args.batch_size
    print(f'LeNet, {args.train_size} images, {args.num_epochs} epochs, batches of {b} rows per device: test accuracy')
    print('devices  batch  ' + '  '.join(f'rate {rate}' for rate in RATES))
    lines, accuracies = [(1, b), (2, 2 * b), (4, 4 * b), (4, b)], []
    for k, batch_size in lines:
        accuracies.append([accuracy(args.devices[:k], batch_size, rate, args) for rate in RATES])
        print(f'{k:7}  {batch_size:5}  ' + '  '.join(f'{value:8.3f}' for value in accuracies[-1]), flush=True)
    if args.out:
        draw(lines, accuracies, args.out)


if __name__ == '__main__':
    run_example(main)
