"""GPUs that MXNet can use, and the reasons why it cannot use others."""
from ..base.flags import Parser
from ..base.machine import num_cores
from ..base.program import ProblemError
from ..base.text import print_text
from ..mxnet_setup.installation import BUILDS, installed_versions
from ..mxnet_setup.runtime import import_mxnet
from .nvidia_driver import Gpu, ask_driver, dotted, hidden

CPU_CONTEXTS = 'CPU contexts (cpu:0,cpu:1)'


def num_mxnet_gpus() -> int:
    """Return how many GPUs MXNet sees, including those that it has no code for."""
    mx = import_mxnet()
    try:
        return mx.npx.num_gpus()
    except mx.base.MXNetError:   # a CUDA build with a missing or old driver
        return 0


def why_no_gpus() -> str:
    """Return in a few words why MXNet sees no GPU on this machine."""
    gpus, cuda_version, reason = ask_driver()
    if not gpus:
        return reason if cuda_version else 'no NVIDIA GPU found'  # the doctor has the details
    return f'MXNet cannot use {", ".join(gpu.name for gpu in gpus)}; python -m gluon_mgpu doctor says why'


def compute_capabilities() -> tuple:
    """Return the lowest and the highest compute capability that the installed MXNet has code for."""
    on_pypi, revived = BUILDS.values()
    return on_pypi if import_mxnet().__version__.startswith(('1.', '2.0.0b')) else revived


def _gpus_without_code() -> dict[int, Gpu]:
    lowest, highest = compute_capabilities()
    return {gpu.index: gpu for gpu in ask_driver().gpus if not lowest <= gpu.capability <= highest}


def usable_gpus() -> list[int]:
    """Return the numbers of the GPUs that MXNet sees and has code for."""
    return sorted({*range(num_mxnet_gpus())} - {*_gpus_without_code()})


def check_gpus(numbers: list[int]) -> None:
    """Raise ValueError if one of these GPUs does not exist or MXNet has no code for it."""
    if not numbers:
        return
    seen, without_code = num_mxnet_gpus(), _gpus_without_code()
    for i in numbers:
        if i in without_code:  # first, because no driver or CUDA build would help
            gpu, others = without_code[i], ','.join(f'gpu:{number}' for number in usable_gpus())
            raise ProblemError(f'gpu({i}) is {gpu}, and this MXNet has code only for '
                               f'{" to ".join(map(dotted, compute_capabilities()))}',
                               f'use {" or ".join(filter(None, [others, *gpu.builds(), CPU_CONTEXTS]))}')
        if not seen:
            raise ProblemError(f'gpu({i}) does not exist ({why_no_gpus()})', f'use {CPU_CONTEXTS}')
        if i >= seen:
            raise ProblemError(f'gpu({i}) does not exist (MXNet sees {seen}{hidden()})',
                               f'use gpu:0{f" to gpu:{seen - 1}" if seen > 1 else ""}')


def gpu_of_worker(local_rank: int) -> int:
    """Return the number of the GPU for a worker of this machine: its local rank, or 0 if it sees a single GPU."""
    return 0 if num_mxnet_gpus() == 1 else local_rank  # Slurm can show each task one GPU or MIG instance


def main(argv: list | None = None) -> int:
    """Run ``python -m gluon_mgpu devices``, without MXNet; return the exit status."""
    parser = Parser('gluon_mgpu devices', 'List the GPUs, the builds of MXNet that support them, and the CPU contexts.')
    return parser.run(argv, _print)


def _print(_) -> None:
    gpus, cuda_version, reason = ask_driver()
    if cuda_version:
        print_text(f'NVIDIA driver for CUDA up to {dotted(cuda_version)}')
    for gpu in gpus:
        print_text(f'gpu:{gpu.index}  {gpu.description()}')
    if not gpus:
        print_text(f'no GPU: {reason}')
    print_text(f'cpu:0-{num_cores() - 1}  (cpu:all) one CPU context per core')
    builds = map(' '.join, installed_versions().items())
    print_text(f'MXNet installed: {" and ".join(builds) or "none"}')
