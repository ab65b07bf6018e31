"""13.2, exercise 2: `waitall` against `wait_to_read`.

    python examples/exercises/wait_for_one.py

Prints, on two CPU contexts (… are times):

    40 products in a row on each of [cpu(0), cpu(1)]
    product 10 on cpu(0), wait_to_read:     … s
    product 40 on cpu(0), wait_to_read:     … s
    everything, waitall:                    … s

`wait_to_read` waits for one array and for what it was computed from. `waitall` waits for everything that any device has
to do, also for work that has nothing to do with the result, such as the next batch.
"""
from __future__ import annotations

from common import median_seconds, read_flags, run_example
from mxnet import np, npx


def chains(Xs: list, times: int) -> list:
    """Dispatch a chain of products on each device, each with the result of the one before; return all results."""
    results: list = [[X] for X in Xs]
    for _ in range(times):
        for X, chain in zip(Xs, results):
            chain.append(np.dot(chain[-1], X))
    return results


def main(argv: list | None = None) -> None:
    args = read_flags(__doc__, argv, devices='cpu:0,cpu:1', size=1000, times=40, rounds=5)
    Xs = [np.eye(args.size, ctx=device) for device in args.devices]
    print(f'{args.times} products in a row on each of {args.devices}')
    early, late, everything = median_seconds(
        lambda: chains(Xs, args.times)[0][args.times // 4].wait_to_read(),
        lambda: chains(Xs, args.times)[0][args.times].wait_to_read(),
        lambda: chains(Xs, args.times) and npx.waitall(), rounds=args.rounds, until_done=False)
    print(f'product {args.times // 4} on {args.devices[0]}, wait_to_read: {early:.2f} s')
    print(f'product {args.times} on {args.devices[0]}, wait_to_read: {late:.2f} s')
    print(f'everything, waitall:                {everything:.2f} s')


if __name__ == '__main__':
    run_example(main)
