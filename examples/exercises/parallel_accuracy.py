"""13.5, exercise 4: test accuracy on several devices: exact for any split, and its speed.

    python examples/exercises/parallel_accuracy.py
    python examples/exercises/parallel_accuracy.py --devices gpu:all

Prints, on four CPU contexts (… are times, or depend on them):

    LeNet, 10000 test images, batches of 256
    NumPy counts                  1038 correct
    devices                     shares  correct   seconds  times as fast
    1                                1    1038         …           1.00
    2                              1,1    1038         …              …
    2                              3,1    1038         …              …
    4                          1,1,1,1    1038         …              …
    4                          9,4,2,1    1038         …              …

Each device counts the correct rows of its shard, and the host adds the counts, which are whole numbers. The mean of the
devices' accuracies would be wrong whenever shards differ in size.
"""
from __future__ import annotations

from common import median_seconds, part_of, read_flags, run_example, split_by
from gluon_mgpu import evaluate_accuracy_gpus
from gluon_mgpu.scratch import get_params, init_params, lenet
from mxnet import npx

SPLITS = [1], [1, 1], [3, 1], [1, 1, 1, 1], [9, 4, 2, 1]


def counter(params: list, devices: list, batches: list, shares: list):
    """Return a function that returns the number of correct rows, counted on these devices."""
    params_on = {device: get_params(params, device) for device in devices}
    num_rows = sum(len(y) for _, y in batches)
    return lambda: round(num_rows * evaluate_accuracy_gpus(
        lambda X: lenet(X, params_on[X.ctx]), batches, split_by(shares), devices))


def main(argv: list | None = None) -> None:
    args = read_flags(__doc__, argv, devices='cpu:0-3', at_least=4, batch_size=256, test_size=10000, rounds=5,
                      dataset='auto')
    npx.random.seed(1)
    params = init_params(scale=0.1)  # untrained, but large enough to predict several classes
    _, batches = part_of(args.dataset, args.batch_size, 1, args.test_size)
    print(f'LeNet, {sum(len(y) for _, y in batches)} test images, batches of {args.batch_size}')
    on_host = sum((lenet(X, params).asnumpy().argmax(axis=1) == y.asnumpy()).sum() for X, y in batches)
    print(f'NumPy counts  {on_host:23} correct')
    print('devices                     shares  correct   seconds  times as fast')
    counters = [counter(params, args.devices[:len(shares)], batches, shares) for shares in SPLITS]
    seconds = median_seconds(*counters, rounds=args.rounds)
    for shares, count, time in zip(SPLITS, counters, seconds):
        split = ','.join(map(str, shares))
        print(f'{len(shares):<7}  {split:>25}  {count():7}  {time:8.3f}  {seconds[0] / time:13.2f}')


if __name__ == '__main__':
    run_example(main)
