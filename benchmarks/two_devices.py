"""Speed of both chapters' `train` on two devices against one.

    python benchmarks/two_devices.py                                 # two CPU contexts, about 5 minutes
    python benchmarks/two_devices.py --devices gpu:0,gpu:1 --rounds 9

Each round trains a new network for two epochs on the first device and another for two epochs on both, and keeps the
time of the second epoch. Loading the data is included, compilation is not. Run this on an otherwise idle machine.
"""
import multiprocessing
import statistics
from concurrent.futures import ProcessPoolExecutor

from harness.training import WORK, flags_parser, train_quietly

from gluon_mgpu.devices import devices_text, parse_devices


def epoch_seconds(chapter, devices, dataset, data_dir):
    """Return the seconds of the second epoch on the devices, given as text."""
    return train_quietly(chapter, parse_devices(devices), 2, dataset, data_dir).history[1].seconds


def main():
    parser = flags_parser(__doc__)
    parser.add_argument('--devices', default='cpu:0,cpu:1', help='two devices (default: %(default)s)')
    parser.add_argument('--work', nargs='+', choices=WORK, default=list(WORK), help='chapters (default: both)')
    parser.add_argument('--rounds', type=int, default=5, help='rounds of each chapter (default: %(default)s)')
    args = parser.parse_args()
    try:
        devices = parse_devices(args.devices)
    except ValueError as error:
        parser.error(str(error))
    if len(devices) != 2:
        parser.error(f'--devices {args.devices}: must name two devices')
    for chapter in args.work:
        rows = WORK[chapter][1]
        seconds = {1: [], 2: []}
        for number in range(args.rounds):
            for k in seconds:
                # Separate processes, because MXNet keeps much of the memory of networks that are no longer used
                with ProcessPoolExecutor(1, multiprocessing.get_context('spawn')) as process:
                    seconds[k].append(process.submit(epoch_seconds, chapter, devices_text(devices[:k]), args.dataset,
                                                     args.data_dir).result())
            one, two = (seconds[k][-1] for k in (1, 2))
            print(f'{chapter}, round {number + 1}: {rows / one:,.0f} and {rows / two:,.0f} images/s, '
                  f'{one / two:.2f} times as fast', flush=True)
        one, two = (statistics.median(seconds[k]) for k in (1, 2))
        ratios = [a / b for a, b in zip(seconds[1], seconds[2])]
        print(f'{chapter}, medians: {rows / one:,.0f} images/s on {devices[0]}, {rows / two:,.0f} on both; '
              f'two devices are {statistics.median(ratios):.2f} times as fast as one '
              f'(from {min(ratios):.2f} to {max(ratios):.2f})', flush=True)


if __name__ == '__main__':
    main()
