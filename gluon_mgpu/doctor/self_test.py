"""What `child` runs: MXNet imported, two devices beside each other, sums and a step against what they must be.

Prints a line of JSON per stage, as soon as it has ended.
"""
from __future__ import annotations

import faulthandler
import json
import os
import time
from collections.abc import Callable
from statistics import median
from typing import Any

from ..devices.nvidia_driver import ask_driver

# One device against two: how far a step of training differs, |two - one| / |one| for each parameter. Rounding made 2e-5
# at most on CPU contexts; GPUs that multiply in TF32 round to 5e-4. One row lost out of 255 made 3e-2, a gradient 0.6.
TOLERANCE = 1e-2
ROWS = {'cpu': 256, 'gpu': 16384}  # in a batch; a GPU would wait for Python in a smaller one
ROUNDS, STEPS, WARM_UP = 7, 5, 3


def driver() -> dict[str, Any]:
    """What the NVIDIA driver says."""
    gpus, cuda_version, reason = ask_driver()
    return {'gpus': [{**gpu._asdict(), 'builds': gpu.builds()} for gpu in gpus], 'cuda_version': cuda_version,
            'reason': reason}


def mxnet() -> dict[str, Any]:
    """Import MXNet; MXNetImportError says why not."""
    start = time.perf_counter()
    from ..devices.gpus import num_mxnet_gpus
    from ..mxnet_setup.compat import compute_capabilities, mx
    cuda = mx.runtime.Features().is_enabled('CUDA')
    return {'version': mx.__version__, 'cuda': cuda, 'num_gpus': num_mxnet_gpus(),
            'code_for': compute_capabilities() if cuda else None, 'seconds': time.perf_counter() - start}


def devices() -> dict[str, Any]:
    """The devices that the chapters train on by default; ValueError if that is refused."""
    return {'devices': [str(device) for device in _chosen()]}


def allreduce() -> dict[str, Any]:
    """Sum over the devices by each algorithm; whole numbers, so that the sum is exact in any order."""
    import numpy

    from .. import scratch
    from ..mxnet_setup.compat import np
    from ..parallel.allreduce import ALGORITHMS
    chosen, rng = _chosen(), numpy.random.default_rng(0)
    wrong = []
    for name, algorithm in {"the chapter's": scratch.allreduce, **ALGORITHMS}.items():
        values = rng.integers(-1000, 1000, (len(chosen), 1001)).astype('float32')
        data = [np.array(value, ctx=device) for value, device in zip(values, chosen)]
        algorithm(data)
        if not all((array.asnumpy() == values.sum(axis=0)).all() for array in data):
            wrong.append(name)
    return {'right': not wrong, 'wrong': wrong}


def step() -> dict[str, Any]:
    """A step of training on the devices, and the same on the first one; of a single GPU, on a CPU context."""
    import numpy

    from .. import scratch
    from ..mxnet_setup.compat import mx, np
    chosen, rng = _chosen(), numpy.random.default_rng(0)
    single = chosen[:1] if len(chosen) > 1 else [mx.cpu(0)]
    X = np.array(rng.random((255, 1, 28, 28), dtype='float32'))  # an odd number: the shards differ in rows
    y = np.array(rng.integers(0, 10, 255))
    mx.random.seed(0)
    initial = scratch.init_params(scale=0.1)
    moved = []
    for group in (single, chosen):
        replicas = [scratch.get_params(initial, device) for device in group]
        scratch.train_batch(X, y, replicas, group, lr=1.0)
        moved += [[new.asnumpy() - old.asnumpy() for new, old in zip(params, initial)] for params in replicas]
    reference, *others = moved
    differences = [float(numpy.linalg.norm(a - b) / numpy.linalg.norm(b))
                   for other in others for a, b in zip(other, reference)]
    right = all(difference <= TOLERANCE for difference in differences)  # NaN is not
    worst = max(differences) if right else None
    return {'right': right, 'difference': worst, 'tolerance': TOLERANCE, 'reference': [str(d) for d in single]}


def speed() -> dict[str, Any]:
    """Seconds per step of LeNet on the first device and on both, in turns; medians."""
    import numpy

    from .. import scratch
    from ..mxnet_setup.compat import np, npx
    chosen, rng = _chosen(), numpy.random.default_rng(0)
    if len(chosen) < 2:
        return {}
    rows = ROWS[chosen[0].device_type]
    X = np.array(rng.random((rows, 1, 28, 28), dtype='float32'))
    y = np.array(rng.integers(0, 10, rows))
    initial, groups = scratch.init_params(), (chosen[:1], chosen)
    replicas = [[scratch.get_params(initial, device) for device in group] for group in groups]
    load = os.getloadavg()[0] if hasattr(os, 'getloadavg') else None

    def train(which: int, steps: int) -> float:
        start = time.perf_counter()
        for _ in range(steps):
            scratch.train_batch(X, y, replicas[which], groups[which], lr=0.1)
        npx.waitall()
        return (time.perf_counter() - start) / steps

    seconds: tuple[list, list] = ([], [])
    for which in (0, 1):
        train(which, WARM_UP)
    for n in range(ROUNDS):
        for which in ((0, 1), (1, 0))[n % 2]:
            seconds[which].append(train(which, STEPS))
    one, two = map(median, seconds)
    return {'rows': rows, 'seconds': [one, two], 'speed_up': one / two, 'load': load}


def horovod() -> dict[str, Any]:
    """Whether several workers can train together."""
    from ..distributed.horovod_checks import check_horovod
    check_horovod()
    return {}


def _chosen() -> list:
    from ..devices import devices_from
    from ..devices.gpus import num_mxnet_gpus
    return devices_from(min(num_mxnet_gpus(), 2) or 2)


# By the names in `child.STAGES` and in their order
WORK: dict[str, Callable[[], dict]] = {
    'driver': driver, 'mxnet': mxnet, 'devices': devices, 'allreduce': allreduce, 'step': step, 'speed': speed,
    'horovod': horovod,
}


def main() -> None:
    """Go through the stages; the first of MXNet's that fails is the last."""
    answers = os.fdopen(os.dup(1), 'w')
    os.dup2(2, 1)  # what libraries print is not ours
    faulthandler.enable()
    for name, work in WORK.items():
        try:
            answer = work()
        except (Exception, SystemExit) as error:  # MXNet ends the process where DMLC_ROLE makes it a server
            line = ' '.join(str(error).split())
            answer = {'error': line if isinstance(error, ValueError) else f'{type(error).__name__}: {line}'}
        print(json.dumps({name: answer}), file=answers, flush=True)
        if 'error' in answer:
            break
    answers.flush()
    os._exit(0)  # MXNet may have errors in store, and raise them when Python ends
