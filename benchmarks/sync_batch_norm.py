"""Synchronized batch norm: its cost, and its effect on the accuracy of ResNet-18.

    python benchmarks/sync_batch_norm.py --dataset fashion-mnist --data-dir DIR
    python benchmarks/sync_batch_norm.py --parts cost --dtype bfloat16 --rounds 9
    python benchmarks/sync_batch_norm.py --parts accuracy --rows 12000 --epochs 3 --seeds 0 1 2
    horovodrun --gloo -np 2 -H localhost:2 python benchmarks/sync_batch_norm.py --parts cost --horovod

cost: images/s on two devices, or with --horovod on those of all workers, with and without, in turns, on the same batch.
accuracy: one device, two devices, and two devices synchronized, with the same rows in the same order. Prints Markdown
tables. Run this on an otherwise idle machine.
"""
import statistics
import time

from harness.training import flags_parser, hybridized_resnet18

from gluon_mgpu import concise
from gluon_mgpu.data import load_data
from gluon_mgpu.data.shards import shard_rows
from gluon_mgpu.devices import parse_devices
from gluon_mgpu.distributed.horovod_workers import HorovodWorkers
from gluon_mgpu.mxnet_setup.compat import init, np, npx
from gluon_mgpu.networks.loss import cross_entropy as loss
from gluon_mgpu.networks.precision import DTYPES, check_dtype
from gluon_mgpu.parallel.step import params_with_gradients
from gluon_mgpu.parallel.sync_batch_norm.synchronized import SyncBatchNorm
from gluon_mgpu.parallel.sync_batch_norm.train_batch import train_batch_synchronized
from gluon_mgpu.parallel.workers import Workers
from gluon_mgpu.training.run import Run


def make_step(sync_batch_norm, args, workers):
    """Return a function that queues one step of a new network on the devices of this worker."""
    net = hybridized_resnet18(args.dtype)
    net.initialize(init=init.Normal(sigma=0.01), ctx=args.devices)
    trainer = workers.trainer(params_with_gradients(net), 'sgd', {'learning_rate': args.lr})
    train_batch = concise.train_batch
    if sync_batch_norm:
        net, train_batch = SyncBatchNorm(net, workers), train_batch_synchronized
    rows = shard_rows(args.batch_size, *workers.shard)
    X = np.random.normal(size=(rows.stop - rows.start, 1, 28, 28))
    y = np.random.randint(0, 10, len(X)).astype('int32')
    return lambda: train_batch(X, y, net, loss, trainer, args.devices, args.batch_size)


def print_cost(args):
    """Time steps with and without synchronization in turns."""
    if not args.horovod:
        return _print_cost(args, Workers())
    with HorovodWorkers() as workers:
        args.devices = [workers.device]
        _print_cost(args, workers)


def _print_cost(args, workers):
    steps = {'each device its own': make_step(False, args, workers), 'synchronized': make_step(True, args, workers)}
    speeds = {name: [] for name in steps}
    for number in range(args.rounds + 1):
        for name, step in steps.items():
            start = time.perf_counter()
            for _ in range(args.steps):
                step()
            npx.waitall()
            if number:  # the first round compiles
                speeds[name].append(args.steps * args.batch_size / (time.perf_counter() - start))
    if workers.rank:
        return
    ratios = [after / before for before, after in zip(*speeds.values())]
    print(f'\n{args.dtype}, batch {args.batch_size}, {len(args.devices) * workers.size} devices, medians of '
          f'{args.rounds} rounds of {args.steps} steps\n\n| batch norm | images/s | from | to |\n|---|---|---|---|')
    for name, found in speeds.items():
        print(f'| {name} | {statistics.median(found):.0f} | {min(found):.0f} | {max(found):.0f} |')
    print(f'\nSynchronized: {statistics.median(ratios):.2f} times as fast ({min(ratios):.2f} to {max(ratios):.2f})',
          flush=True)


def history(devices, synchronized, seed, args):
    """Return the epochs of a run."""
    data = load_data(args.dataset, args.batch_size, args.data_dir, train_size=args.rows, seed=seed,
                     log=lambda line: None)
    run, net, train_batch = Run(args.epochs, quiet=True), hybridized_resnet18(args.dtype), concise.train_batch
    if synchronized:
        net, train_batch = SyncBatchNorm(net), train_batch_synchronized
    concise.train(len(devices), args.batch_size, args.lr, devices=devices, data=data, run=run, seed=seed, net=net,
                  train_batch=train_batch)
    return run.history


def print_accuracy(args):
    """Train on one device, on all, and on all synchronized, once for each seed."""
    runs = {'one device': (args.devices[:1], False), f'{len(args.devices)} devices': (args.devices, False),
            f'{len(args.devices)} devices, synchronized': (args.devices, True)}
    print(f'\n{args.dtype}, {args.dataset}, {args.rows} rows, batch {args.batch_size}, learning rate {args.lr:g}: test '
          f'accuracy after {args.epochs} epochs\n\n| devices | '
          f'{" | ".join(f"seed {seed}" for seed in args.seeds)} | mean | last loss, mean |')
    print('|---' * (len(args.seeds) + 3) + '|', flush=True)
    for name, (devices, synchronized) in runs.items():
        last = [history(devices, synchronized, seed, args)[-1] for seed in args.seeds]
        found = [epoch.accuracy for epoch in last]
        print(f'| {name} | {" | ".join(f"{acc:.4f}" for acc in found)} | {statistics.mean(found):.4f} | '
              f'{statistics.mean(epoch.loss for epoch in last):.4f} |', flush=True)


def main():
    parser = flags_parser(__doc__)
    parts = {'cost': print_cost, 'accuracy': print_accuracy}
    parser.add_argument('--parts', nargs='+', choices=parts, default=list(parts), help='(default: both)')
    parser.add_argument('--devices', default='cpu:0,cpu:1', help='(default: %(default)s)')
    parser.add_argument('--horovod', action='store_true', help='measure the cost as a worker of a job')
    parser.add_argument('--dtype', choices=DTYPES, default='float32', help='(default: %(default)s)')
    parser.add_argument('--batch-size', type=int, default=256, help='(default: %(default)s)')
    parser.add_argument('--rounds', type=int, default=5, help='rounds of cost (default: %(default)s)')
    parser.add_argument('--steps', type=int, default=3, help='steps per round (default: %(default)s)')
    parser.add_argument('--lr', type=float, default=0.1, help='(default: %(default)s)')
    parser.add_argument('--rows', type=int, default=12000, help='training rows (default: %(default)s)')
    parser.add_argument('--epochs', type=int, default=3, help='(default: %(default)s)')
    parser.add_argument('--seeds', type=int, nargs='+', default=[0, 1, 2], help='(default: 0 1 2)')
    args = parser.parse_args()
    try:
        args.devices = parse_devices(args.devices)
        check_dtype(args.dtype, args.devices)
    except ValueError as error:
        parser.error(str(error))
    for part in args.parts:
        parts[part](args)


if __name__ == '__main__':
    main()
