"""Does bfloat16 cost accuracy? ResNet-18 in float32 and in bfloat16, the same rows in the same order.

    python benchmarks/bfloat16_accuracy.py --dataset fashion-mnist --data-dir DIR     # 25 minutes on 2 cores
    python benchmarks/bfloat16_accuracy.py --rows 4096 --seeds 0 1 2                  # glyphs

The last epoch takes a tenth of the learning rate: at the full one, accuracy jumps by several points from epoch to
epoch, whatever the precision.
"""
import argparse
import statistics
import time

from gluon_mgpu import concise
from gluon_mgpu.data import load_data
from gluon_mgpu.devices.lists import parse_devices
from gluon_mgpu.mxnet_setup.compat import gluon, init, npx, seed
from gluon_mgpu.networks.hybridize import hybridize_block
from gluon_mgpu.networks.resnet import resnet18
from gluon_mgpu.training.evaluate import evaluate_accuracy_gpus
from gluon_mgpu.training.run import TrainingLog

DTYPES = ('float32', 'bfloat16')


def accuracies(dtype, number, args):
    """Test accuracy after each epoch, from one initialization."""
    devices = parse_devices(args.devices)
    train_iter, test_iter = load_data(args.dataset, args.batch_size, args.data_dir, train_size=args.rows,
                                      seed=number, say=lambda line: None)
    seed(number)
    net = resnet18(10, dtype)
    net.initialize(init=init.Normal(sigma=0.01), ctx=devices)
    hybridize_block(net)
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    hybridize_block(loss)
    trainer = gluon.Trainer(net.collect_params(), 'sgd', {'learning_rate': args.lr})
    log, found = TrainingLog(args.epochs, quiet=True), []
    for epoch in range(args.epochs):
        if epoch == args.epochs - 1:
            trainer.set_learning_rate(args.lr / 10)
        started = time.perf_counter()
        for X, y in log.progress(train_iter):
            log.add(concise.train_batch(X, y, net, loss, trainer, devices))
        npx.waitall()
        seconds = time.perf_counter() - started
        found.append(evaluate_accuracy_gpus(net, test_iter))
        log.end_epoch(seconds, found[-1])
        print(f'seed {number}, {dtype}, epoch {epoch + 1}: loss {log.history[-1].loss:.3f}, '
              f'test acc {found[-1]:.4f}, {seconds:.0f} s', flush=True)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--devices', default='cpu:0,cpu:1', help='(default: %(default)s)')
    parser.add_argument('--epochs', type=int, default=2, help='(default: %(default)s)')
    parser.add_argument('--seeds', type=int, nargs='+', default=[0], help='a run each (default: 0)')
    parser.add_argument('--rows', type=int, help='to train on (default: all)')
    parser.add_argument('--batch-size', type=int, default=64, help='(default: %(default)s)')
    parser.add_argument('--lr', type=float, default=0.1, help='(default: %(default)s)')
    parser.add_argument('--dataset', default='glyphs', help='glyphs or fashion-mnist (default: %(default)s)')
    parser.add_argument('--data-dir', help='where fashion-mnist/ is')
    args = parser.parse_args()
    last = {dtype: [] for dtype in DTYPES}
    for number in args.seeds:
        for dtype in DTYPES:
            last[dtype].append(accuracies(dtype, number, args)[-1])
    points = [100 * (b - a) for a, b in zip(*last.values())]
    print(', '.join(f'{dtype} {statistics.mean(found):.4f}' for dtype, found in last.items()) +
          f'; difference in points: {", ".join(f"{p:+.2f}" for p in points)}')


if __name__ == '__main__':
    main()
