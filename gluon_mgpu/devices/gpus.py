"""Which GPUs MXNet can use, and why not the others: what it sees, next to what the driver says."""
from __future__ import annotations

from .nvidia_driver import Gpu, ask_driver, hidden


def num_mxnet_gpus() -> int:
    """Return how many GPUs MXNet sees, including those that it has no code for."""
    from ..mxnet_setup.compat import mx, npx
    try:
        return npx.num_gpus()
    except mx.base.MXNetError:   # a CUDA build, and a driver that is missing or too old for it
        return 0


def why_no_gpus() -> str:
    """Return, for a machine where MXNet sees no GPU, the reason in one line."""
    from ..mxnet_setup.compat import mx
    gpus, cuda_version, reason = ask_driver()
    if not gpus:
        return reason
    found = f'MXNet cannot see {", ".join(map(str, gpus))}'
    if mx.runtime.Features().is_enabled('CUDA'):
        return f'{found}: the driver, for CUDA {dotted(cuda_version)}, may be too old'
    return f'{found}: its CPU build is installed, not {" or ".join(gpus[0].builds()) or "one with CUDA"}'


def _no_code_for() -> dict[int, str]:
    """Return the GPUs that this MXNet has no code for: number -> the line that refuses it."""
    from ..mxnet_setup.compat import compute_capabilities
    lowest, highest = compute_capabilities()
    gpus = ask_driver().gpus
    others = ','.join(f'gpu:{gpu.index}' for gpu in gpus if lowest <= gpu.capability <= highest)

    def line(gpu: Gpu) -> str:
        instead = [*([others] if others and num_mxnet_gpus() else []), *gpu.builds(), 'CPU contexts (cpu:0,cpu:1)']
        return (f'gpu({gpu.index}) is {gpu}, and this MXNet has code only for {dotted(lowest)} to '
                f'{dotted(highest)}: use {" or ".join(instead)}')

    return {gpu.index: line(gpu) for gpu in gpus if not lowest <= gpu.capability <= highest}


def usable_gpus() -> list[int]:
    """Return the numbers of the GPUs that MXNet sees and has code for."""
    numbers = range(num_mxnet_gpus())
    no_code = _no_code_for() if numbers else {}
    return [i for i in numbers if i not in no_code]


def check_gpus(numbers: list[int]) -> None:
    """Raise ValueError, with the remedy, for a GPU that does not exist or that MXNet has no code for.

    Parameters
    ----------
    numbers : list of int
        i of each ``mx.gpu(i)``.
    """
    if not numbers:
        return
    seen, no_code = num_mxnet_gpus(), _no_code_for()
    for i in numbers:
        # First, since no installation of this MXNet would make such a GPU visible
        if i in no_code:
            raise ValueError(no_code[i])
        if not seen:
            raise ValueError(f'gpu({i}) does not exist ({why_no_gpus()}): use CPU contexts (cpu:0,cpu:1)')
        if i >= seen:
            is_mig = any(gpu.is_mig for gpu in ask_driver().gpus)
            one_instance = ', as a process has one MIG instance at most' if is_mig else ''
            raise ValueError(f'gpu({i}) does not exist (MXNet sees {seen}{one_instance}{hidden()}): '
                             f'use gpu:0{f" to gpu:{seen - 1}" if seen > 1 else ""}')


def gpu_of_worker(local_rank: int) -> int:
    """Return the number of the GPU that the i-th worker of a machine takes, or 0 where it sees a single one.

    Slurm can show each of its tasks one GPU, or one MIG instance: for each, that is gpu(0).

    Parameters
    ----------
    local_rank : int
        i, from 0.
    """
    return 0 if num_mxnet_gpus() == 1 else local_rank


def uuid_of(number: int) -> str:
    """Return what tells a GPU from all others, '' if the driver does not say.

    Parameters
    ----------
    number : int
        i of ``mx.gpu(i)``.
    """
    return next((gpu.uuid for gpu in ask_driver().gpus if gpu.index == number), '')


def dotted(version: tuple[int, int] | None) -> str:
    """(9, 0) -> '9.0', None -> 'unknown'

    Parameters
    ----------
    version : (int, int) or None
        Major and minor.
    """
    return '.'.join(map(str, version)) if version else 'unknown'
