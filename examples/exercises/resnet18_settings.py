"""13.6, exercise 1: ResNet-18 with other epochs, batch sizes and learning rates.

    python examples/exercises/resnet18_settings.py
    python examples/exercises/resnet18_settings.py --devices gpu:all --train-size 60000 --test-size 10000

Prints, on two CPU contexts:

    ResNet-18, 768 images: test accuracy on 512 after each epoch
    batch  rate
       32  0.05   0.094 0.084 0.477 0.773
       32  0.20   0.109 0.102 0.188 0.312
      128  0.05   0.094 0.094 0.078 0.094
      128  0.20   0.139 0.088 0.104 0.109
"""
from __future__ import annotations

from common import part_of, read_flags, run_example
from gluon_mgpu import DivergenceError, Run, concise


def accuracies(batch_size: int, lr: float, args) -> list[float]:
    """Return the test accuracy after each epoch, until training diverges."""
    run = Run(args.num_epochs, quiet=True)
    train_iter, _ = part_of(args.dataset, batch_size, args.train_size, 1)
    _, test_batches = part_of(args.dataset, min(64, args.test_size), 1, args.test_size)
    try:
        concise.train(len(args.devices), batch_size, lr, devices=args.devices, data=(train_iter, test_batches), run=run)
    except DivergenceError as error:
        print(error)
    return [epoch.accuracy for epoch in run.history]


def main(argv: list | None = None) -> None:
    args = read_flags(__doc__, argv, devices='cpu:0,cpu:1', train_size=768, test_size=512, num_epochs=4, dataset='auto')
    print(f'ResNet-18, {args.train_size} images: test accuracy on {args.test_size} after each epoch')
    print('batch  rate')
    for batch_size in (32, 128):
        for lr in (0.05, 0.2):
            found = accuracies(batch_size, lr, args)
            print(f'{batch_size:5}  {lr:.2f}   {" ".join(f"{accuracy:.3f}" for accuracy in found)}', flush=True)


if __name__ == '__main__':
    run_example(main)
