"""List of the GPUs, the MXNet builds that support them, and the CPU contexts. Does not import MXNet."""
from __future__ import annotations

import sys

from ..base.flags import Parser
from ..base.machine import num_cores
from ..mxnet_setup.installation import installed_builds
from .nvidia_driver import ask_driver, dotted


def main(argv: list | None = None) -> int:
    """Print the devices of this machine; return the exit status."""
    parser = Parser('gluon_mgpu devices', 'List the GPUs, the builds of MXNet that support them, and the CPU contexts.')
    return parser.run(argv, _print)


def _print(_) -> None:
    gpus, cuda_version, reason = ask_driver()
    if cuda_version:
        print(f'NVIDIA driver for CUDA up to {dotted(cuda_version)}')
    for gpu in gpus:
        print(f'gpu:{gpu.index}  {gpu.description()}')
    if not gpus:
        print(f'no GPU: {reason}')
    print(f'cpu:0-{num_cores() - 1}  (cpu:all) one CPU context per core')
    print(f'MXNet installed: {" and ".join(installed_builds()) or "none"}')


if __name__ == '__main__':
    sys.exit(main())
