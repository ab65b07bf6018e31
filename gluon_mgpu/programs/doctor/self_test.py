"""The self-test: import MXNet, and check sums, a training step and the speed on two devices.

It prints a line of JSON after each stage: a result, with ``'says'`` for the screen, or ``'error'`` and ``'remedy'``.
"""
import faulthandler
import json
import os
import time
from statistics import median
from typing import Any

from ...base.program import ProblemError
from ...devices.nvidia_driver import ask_driver
from ...mxnet_setup import instructions
from ...mxnet_setup.installation import with_type
from ...mxnet_setup.runtime import prepare

ROWS = {'cpu': 256, 'gpu': 16384}  # in a batch; with fewer, a GPU would wait for Python
ROUNDS, STEPS = 7, 5
REPORT = 'report it with the output of python -m gluon_mgpu doctor --json'
DO_NOT_TRAIN = f'do not train; {REPORT}'


def driver() -> dict[str, Any]:
    """Ask the NVIDIA driver for its GPUs."""
    answer = ask_driver()
    return {**answer._asdict(), 'gpus': [{**gpu._asdict(), 'name': str(gpu), 'builds': gpu.builds(),
                                          'description': gpu.description()} for gpu in answer.gpus]}


def mxnet() -> dict[str, Any]:
    """Import MXNet; raises MXNetImportError with the reason if that fails."""
    from ...devices.gpus import compute_capabilities, num_mxnet_gpus
    from ...mxnet_setup.compat import mx
    cuda = mx.runtime.Features().is_enabled('CUDA')
    return {'version': mx.__version__, 'cuda': cuda, 'num_gpus': num_mxnet_gpus(),
            'code_for': compute_capabilities() if cuda else None,
            'openblas_kernels': instructions.kernels() or prepare().variables.get(instructions.OPENBLAS_VARIABLE, '')}


def arithmetic() -> dict[str, Any]:
    """Compare matrix products and convolutions with NumPy's; raises ProblemError if they are wrong."""
    from .processor_check import check
    return {'says': f'{", ".join(check())} are right'}


def devices() -> dict[str, Any]:
    """Choose the devices that the chapters use by default; raises ProblemError if they cannot be used."""
    return {'devices': [str(device) for device in _chosen()]}


def allreduce() -> dict[str, Any]:
    """Sum over the devices with each algorithm. Whole numbers make the sum exact in any order; ProblemError if not."""
    import numpy

    from ... import scratch
    from ...mxnet_setup.compat import np
    from ...parallel.allreduce import ALGORITHMS
    chosen, wrong = _chosen(), []
    algorithms: dict[str, Any] = {"the chapter's": scratch.allreduce, **ALGORITHMS}
    values = numpy.random.default_rng(0).integers(-1000, 1000, (len(chosen), 1001)).astype('float32')
    for name, algorithm in algorithms.items():
        data = [np.array(value, ctx=device) for value, device in zip(values, chosen, strict=True)]
        algorithm(data)
        if not all((array.asnumpy() == values.sum(axis=0)).all() for array in data):
            wrong.append(name)
    if wrong:
        raise ProblemError(f'sums over the devices are wrong ({", ".join(wrong)})', DO_NOT_TRAIN)
    return {'says': 'sums over the devices are right'}


def step() -> dict[str, Any]:
    """Compare training steps on two devices with steps on the first; ProblemError if they differ."""
    from ... import scratch
    from ...mxnet_setup.compat import mx
    from ..check import check_data_parallel
    first, second, *_ = [*_chosen(), mx.cpu(0)]  # a single GPU and a CPU context
    initial = scratch.init_params(scale=0.1)
    report = check_data_parallel(lambda devices: [scratch.get_params(initial, device) for device in devices],
                                 lambda params, X, y, devices: scratch.train_batch(X, y, params, devices, lr=1.0),
                                 [_batch(32)], [first, second])
    if not report.ok:
        raise ProblemError(f'training steps on {first} and {second} differ from those on {first}', DO_NOT_TRAIN)
    return {'says': f'training steps on {first} and {second} equal those on {first}'}


def speed() -> dict[str, Any]:
    """Measure the median seconds per step of LeNet on the first device and on both, in turns, after a warm-up."""
    from ... import scratch
    from ...mxnet_setup.compat import npx
    chosen, initial = _chosen(), scratch.init_params()
    if len(chosen) < 2:
        return {}
    X, y = _batch(ROWS[chosen[0].device_type])

    def train(devices: list, replicas: list) -> float:
        start = time.perf_counter()
        for _ in range(STEPS):
            scratch.train_batch(X, y, replicas, devices, lr=0.1)
        npx.waitall()
        return (time.perf_counter() - start) / STEPS

    groups = [(devices, [scratch.get_params(initial, device) for device in devices])
              for devices in (chosen[:1], chosen)]
    seconds = [[train(*group) for group in groups] for _ in range(1 + ROUNDS)]
    one, two = map(median, zip(*seconds[1:]))
    return {'seconds': [one, two], 'speed_up': one / two,
            'says': f'LeNet: {1000 * one:.0f} ms per step on one device, {1000 * two:.0f} ms on two, which are '
                    f'{one / two:.2f} times as fast'}


def _batch(rows: int) -> tuple:
    import numpy

    from ...mxnet_setup.compat import np
    rng = numpy.random.default_rng(0)
    return np.array(rng.random((rows, 1, 28, 28), dtype='float32')), np.array(rng.integers(0, 10, rows))


def _chosen() -> list:
    from ...devices import devices_from
    from ...devices.gpus import num_mxnet_gpus
    return devices_from(min(num_mxnet_gpus(), 2) or 2)


STAGES = {  # in order, with words for messages
    'driver': (driver, 'asking the NVIDIA driver'),
    'mxnet': (mxnet, 'importing MXNet'),
    'arithmetic': (arithmetic, 'computing products and convolutions'),
    'devices': (devices, 'choosing devices'),
    'allreduce': (allreduce, 'summing over the devices'),
    'step': (step, 'training for one step'),
    'speed': (speed, 'training LeNet on one device and on two'),
}


def main() -> None:
    """Run the stages until one fails."""
    stdout = os.fdopen(os.dup(1), 'w')
    os.dup2(2, 1)  # keeps the output of libraries out of ours
    faulthandler.enable()
    for stage, (work, words) in STAGES.items():
        try:
            result = work()
        except ProblemError as error:
            result = dict(zip(('error', 'remedy'), error.args, strict=True))
        except ModuleNotFoundError as error:
            result = {'error': f'{error.name} is not installed', 'remedy': f'pip install {error.name}'}
        except Exception as error:
            result = {'error': f'{words} failed ({with_type(error)})', 'remedy': REPORT}
        print(json.dumps({stage: result}), file=stdout, flush=True)
        if 'error' in result:
            break
    os._exit(0)  # skip MXNet's shutdown, which can raise stored errors
