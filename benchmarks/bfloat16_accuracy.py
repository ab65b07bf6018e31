"""Test accuracy of ResNet-18 in float32 and in bfloat16, on the same rows in the same order.

    python benchmarks/bfloat16_accuracy.py --dataset fashion-mnist --data-dir DIR     # 25 minutes on 2 cores
    python benchmarks/bfloat16_accuracy.py --rows 4096 --seeds 0 1 2                  # glyphs

On a processor with AMX, DNNL_MAX_CPU_ISA=AVX512_CORE_BF16 compares bfloat16 without AMX. The last epoch uses a tenth of
the learning rate. At the full rate, accuracy varies by several points from epoch to epoch in either precision.
"""
import statistics

from harness.training import flags_parser, hybridized_resnet18

from gluon_mgpu import concise
from gluon_mgpu.data import load_data
from gluon_mgpu.devices import parse_devices
from gluon_mgpu.networks.precision import check_dtype
from gluon_mgpu.training.run import Run

DTYPES = ('float32', 'bfloat16')


def last_accuracy(dtype, number, args):
    """Return the test accuracy after the last epoch, with initial parameters from seed `number`."""
    data = load_data(args.dataset, args.batch_size, args.data_dir, train_size=args.rows, seed=number,
                     log=lambda line: None)
    full_rate = (args.epochs - 1) * len(data[0])  # steps
    print(f'seed {number}, {dtype}:', flush=True)
    run = Run(args.epochs)
    concise.train(len(args.devices), args.batch_size, lambda step: args.lr if step <= full_rate else args.lr / 10,
                  devices=args.devices, data=data, run=run, seed=number, net=hybridized_resnet18(dtype))
    return run.history[-1].accuracy


def main():
    parser = flags_parser(__doc__)
    parser.add_argument('--devices', default='cpu:0,cpu:1', help='(default: %(default)s)')
    parser.add_argument('--epochs', type=int, default=2, help='(default: %(default)s)')
    parser.add_argument('--seeds', type=int, nargs='+', default=[0],
                        help='train once in each precision for each seed (default: 0)')
    parser.add_argument('--rows', type=int, help='training rows (default: all)')
    parser.add_argument('--batch-size', type=int, default=64, help='(default: %(default)s)')
    parser.add_argument('--lr', type=float, default=0.1, help='(default: %(default)s)')
    args = parser.parse_args()
    try:
        args.devices = parse_devices(args.devices)
        check_dtype('bfloat16', args.devices)
    except ValueError as error:
        parser.error(str(error))
    last = {dtype: [] for dtype in DTYPES}
    for number in args.seeds:
        for dtype in DTYPES:
            last[dtype].append(last_accuracy(dtype, number, args))
    points = [100 * (b - a) for a, b in zip(*last.values())]
    print(', '.join(f'{dtype} {statistics.mean(found):.4f}' for dtype, found in last.items()) +
          f'; difference in points: {", ".join(f"{p:+.2f}" for p in points)}')


if __name__ == '__main__':
    main()
