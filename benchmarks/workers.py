"""Cost of Horovod's allreduce: measured with two workers in a step of each chapter, modelled for up to 256 workers.

    python benchmarks/workers.py                 # loopback, and a link of 1 Gbit/s if it can be created
    python benchmarks/workers.py --link loopback --json workers.json --png workers.png

The 1 Gbit/s link connects two network namespaces and is limited by tc, which requires root. Each chapter trains with
and without allreduce; the difference is the time that is not hidden behind computation. Bytes are counted by the
network interface. For images/s compared with PyTorch: compare.py --only ours ours-horovod torch-ddp.
"""
from __future__ import annotations

import argparse
import json
import platform
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / 'tests/distributed/hosts'))

from allreduce_cost import gradient_sizes
from allreduce_model import ring
from two_hosts import LAUNCHER, TwoHosts, obstacle

from gluon_mgpu import concise, scratch
from gluon_mgpu.data import load_data
from gluon_mgpu.distributed.horovod_workers import HorovodWorkers
from gluon_mgpu.mxnet_setup.compat import np, npx
from gluon_mgpu.mxnet_setup.installation import GET_HOROVOD
from gluon_mgpu.parallel.workers import Workers
from gluon_mgpu.training.run import Callback, Run

WORK = {'LeNet': (scratch.train, 60, 256, 0.2), 'ResNet-18': (concise.train, 6, 64, 0.1)}  # steps, rows, learning rate
LARGE = 4 * 2**20  # float32 numbers of a large message, 16 MiB
ROUNDS = 5
GBITS = 10, 100    # networks that the model is plotted for


class WithoutSums(HorovodWorkers):
    """Workers that do not sum gradients, so that a step is computation only."""

    def allreduce(self, array):
        return array

    def trainer(self, *args, **settings):
        return Workers.trainer(self, *args, **settings)

    def check_equal(self, *args):
        """Accept parameters that differ."""


class Steps(Callback):
    """Callback that records the seconds of each epoch and the bytes that this worker sent."""

    def __init__(self):
        self.seconds, self.sent = [], []

    def epoch_begin(self, run):
        self.began, self.sent_before = time.perf_counter(), sent_bytes()

    def epoch_trained(self, run):
        self.seconds.append(time.perf_counter() - self.began)
        self.sent.append(sent_bytes() - self.sent_before)


def sent_bytes() -> float:
    """Return the bytes that this worker has sent; on loopback, half of what both have sent."""
    lines = Path('/proc/net/dev').read_text().splitlines()[2:]
    by_name = {name.strip(): int(rest.split()[8]) for name, _, rest in (line.partition(':') for line in lines)}
    return by_name['eth0'] if set(by_name) == {'lo', 'eth0'} else by_name['lo'] / 2


def allreduce_seconds(workers, size: int, rounds: int = 21) -> float:
    """Return the median seconds of one blocking allreduce of `size` numbers."""
    data, seconds = np.zeros(size), []
    for _ in range(rounds + 5):
        npx.waitall()
        began = time.perf_counter()
        workers.sum_by_name(data, f'size.{size}')
        npx.waitall()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds[5:])  # the first are a warm-up


def run_as_worker(task: str, network: str | None) -> None:
    """Run a task as one of the workers; rank 0 prints the result as JSON."""
    with (WithoutSums if task == 'without' else HorovodWorkers)() as workers:
        found = step(workers, network) if network else link(workers)
        if workers.rank == 0:
            print(json.dumps(found), flush=True)


def message_seconds(workers, rounds: int = 200) -> float:
    """Return the median seconds of a one-byte TCP message between the two workers: half a round trip."""
    listener = socket.create_server(('', 0))
    where = workers.allgather((socket.gethostbyname(platform.node()), listener.getsockname()[1]))[0]
    connection = listener.accept()[0] if workers.rank == 0 else socket.create_connection(where)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    seconds = []
    for _ in range(rounds):
        began = time.perf_counter()
        if workers.rank:
            connection.sendall(connection.recv(1))
        else:
            connection.sendall(b'.')
            connection.recv(1)
        seconds.append((time.perf_counter() - began) / 2)
    return statistics.median(seconds)


def link(workers) -> dict:
    """Measure the link: latency, time per byte, Horovod's wait, and an allreduce of each network's gradients."""
    alpha = message_seconds(workers)
    small, large = (allreduce_seconds(workers, size) for size in (1, LARGE))
    return {'alpha': alpha, 'beta': (large - small) / (4 * LARGE),  # with two workers, t = wait + 2 alpha + beta n
            'wait': max(small - 2 * alpha, 0),
            'gradients': {name: allreduce_seconds(workers, size) for name, size in gradient_sizes().items()}}


def model(k: int, num_bytes: int, link: dict, beta: float | None = None) -> float:
    """Return the modelled seconds of one allreduce over k workers: the wait, then a ring."""
    return link['wait'] + ring(k).seconds(num_bytes, link['alpha'], link['beta'] if beta is None else beta)


def step(workers, network: str) -> dict:
    """Return median seconds and sent bytes of a training step."""
    train, steps, rows, lr = WORK[network]
    train_iter, test_iter = load_data('glyphs', rows, train_size=steps * rows, shard=workers.shard)
    timing = Steps()
    run = Run(ROUNDS + 1, quiet=True, callbacks=[timing], workers=workers)
    first = [next(iter(test_iter))]  # one batch is enough, since accuracy is not measured
    sums = ({'allreduce': workers.extend_allreduce(scratch.allreduce)} if train is scratch.train else
            {'Trainer': workers.trainer})
    train(1, rows, lr, devices=[workers.device], data=(train_iter, first), run=run, **sums)
    return {'seconds': statistics.median(timing.seconds[1:]) / steps,
            'bytes': statistics.median(timing.sent[1:]) / steps}


def job(launch: tuple, *task: str) -> dict:
    """Run a task with two workers; return the result of rank 0."""
    done = subprocess.run([*launch, sys.executable, __file__, '--task', *task], capture_output=True,
                          text=True, check=False)
    found = re.findall(r'\[0\]<stdout>:(\{.*)', done.stdout)
    if not found:
        raise SystemExit(f'workers: {" ".join(task)} failed:\n{done.stdout}{done.stderr}')
    return json.loads(found[-1])


def measure(name: str, launch: tuple) -> dict:
    """Run all tasks on one link and print each result."""
    found = job(launch, 'link')
    print(f'{name}: alpha {found["alpha"] * 1e3:.3f} ms, beta {found["beta"] * 1e9:.3f} ns/byte, '
          f'{found["wait"] * 1e3:.2f} ms until an allreduce starts', flush=True)
    for network, size in gradient_sizes().items():
        sums, without = (job(launch, task, network) for task in ('sums', 'without'))
        expected = model(2, 4 * size, found)
        exposed = 1 - without['seconds'] / sums['seconds']
        found[network] = {'step': sums['seconds'], 'without': without['seconds'], 'bytes': sums['bytes'],
                          'model': expected, 'exposed': exposed}
        print(f'{name}, {network}: gradients summed in {found["gradients"][network] * 1e3:.1f} ms (model: '
              f'{expected * 1e3:.1f} ms); {sums["seconds"] * 1e3:.1f} ms per step, {without["seconds"] * 1e3:.1f} ms '
              f'without the sum, which takes {exposed:.0%}; {sums["bytes"] / 1e6:.2f} MB sent per worker and step',
              flush=True)
    return found


def draw(links: dict, path: Path) -> None:
    """Plot the time of one allreduce over the number of workers: measured as dots, modelled as lines."""
    from matplotlib.figure import Figure
    fig = Figure(figsize=(8, 4), dpi=110, layout='tight')
    ks = [2**i for i in range(1, 9)]
    for axes, (network, size) in zip(fig.subplots(1, 2, sharey=True), gradient_sizes().items()):
        for color, (name, found) in zip(('tab:blue', 'tab:orange'), links.items()):
            axes.plot(2, found['gradients'][network] * 1e3, 'o', color=color, label=f'{name}, measured')
            axes.plot(ks, [model(k, 4 * size, found) * 1e3 for k in ks], color=color,
                      label=f'{name}, model')
        for style, gbit in zip(('--', ':'), GBITS):
            times = [model(k, 4 * size, list(links.values())[-1], 8e-9 / gbit) * 1e3 for k in ks]
            axes.plot(ks, times, style, color='tab:gray', label=f'{gbit} Gbit/s, model')
        axes.set(title=f'{network}, {4 * size / 1e6:.1f} MB of gradients', xlabel='workers', xscale='log', yscale='log')
        axes.set_xticks(ks, [str(k) for k in ks])
        axes.minorticks_off()
        axes.grid(alpha=0.4)
    fig.axes[0].set_ylabel('one sum of gradients (ms)')
    fig.axes[0].legend(fontsize=8)
    fig.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
                                     allow_abbrev=False)
    parser.add_argument('--link', choices=('loopback', '1gbit'), help='measure only this one')
    parser.add_argument('--json', type=Path, metavar='FILE', help='write all numbers to this file')
    parser.add_argument('--png', type=Path, metavar='FILE', help='draw the model to this file')
    parser.add_argument('--task', nargs='+', help=argparse.SUPPRESS)  # for the workers
    args = parser.parse_args()
    if args.task:
        return run_as_worker(args.task[0], args.task[1] if len(args.task) > 1 else None)
    if not LAUNCHER.exists():
        sys.exit(f'workers: Horovod is not installed: {GET_HOROVOD}')
    links = {}
    if args.link != '1gbit':
        launch = (sys.executable, str(LAUNCHER), '--gloo', '-np', '2', '-H', 'localhost:2')
        links['loopback'] = measure('loopback', launch)
    problem = obstacle()
    if args.link != 'loopback' and problem:
        print(f'1 Gbit/s was not measured: {problem}')
    elif args.link != 'loopback':
        with tempfile.TemporaryDirectory() as folder, TwoHosts(Path(folder)) as hosts:
            hosts.shape('1gbit')
            links['1 Gbit/s'] = measure('1 Gbit/s', hosts.launch)
    if args.json:
        args.json.write_text(json.dumps(links, indent=2) + '\n')
    if args.png and links:
        draw(links, args.png)


if __name__ == '__main__':
    main()
