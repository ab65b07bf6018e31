"""Launchers: rank and size of this process, and the variables that Horovod needs to connect the workers.

`horovodrun` sets all variables. `mpirun`, `mpiexec` and `srun` set rank and size only: the user gives an address of
rank 0's machine and a port, and rank 0 serves there.
"""
from __future__ import annotations

import contextlib
import http.client
import os
import platform
import socket
import time
import urllib.error
import urllib.request
from typing import NamedTuple

from ..base.checks import integer

ADDRESS, PORT = 'HOROVOD_GLOO_RENDEZVOUS_ADDR', 'HOROVOD_GLOO_RENDEZVOUS_PORT'
PATIENCE = 30  # seconds to wait for the other workers
VARIABLES = {  # launcher -> variables for rank, size and rank on the machine
    'horovodrun': ('HOROVOD_RANK', 'HOROVOD_SIZE', 'HOROVOD_LOCAL_RANK'),
    'mpirun': ('OMPI_COMM_WORLD_RANK', 'OMPI_COMM_WORLD_SIZE', 'OMPI_COMM_WORLD_LOCAL_RANK'),
    'mpiexec': ('PMI_RANK', 'PMI_SIZE', 'MPI_LOCALRANKID'),
    'srun': ('SLURM_PROCID', 'SLURM_NTASKS', 'SLURM_LOCALID'),
}
DEFAULTS = {  # of Horovod's settings
    'HOROVOD_LOG_LEVEL': 'fatal',  # this package prints its own messages
    'HOROVOD_CYCLE_TIME': '3',     # ms between two checks for arrays to sum; each check takes time from a core
}


class LaunchInfo(NamedTuple):
    """Rank and size of this process in its job, as its launcher has set them; by default the only worker."""

    launcher: str = ''
    rank: int = 0
    size: int = 1
    local_rank: int = 0


def launch_info() -> LaunchInfo | None:
    """Return the launcher, rank and size of this process; None if no launcher started it."""
    for launcher, names in VARIABLES.items():
        # `srun --mpi=pmi2` sets the variables of mpiexec as well, but not the local rank
        pmi2 = launcher == 'mpiexec' and names[2] not in os.environ and 'SLURM_LOCALID' in os.environ
        if all(name in os.environ for name in names[:2]) and not pmi2:
            return LaunchInfo(launcher, *map(_number, names))
    return None


def rendezvous(info: LaunchInfo) -> None:
    """Set the variables that Horovod needs, and wait until all workers are there.

    Except under `horovodrun`, the variables place each worker on its own machine, which works for all layouts.
    Raises ValueError if a variable is missing or wrong, rank 0 cannot serve, or a worker does not connect within 30 s.
    """
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    if info.size == 1:
        return
    if not os.environ.get(ADDRESS) or not os.environ.get(PORT):
        raise ValueError(f'{info.launcher} does not say where the workers meet: on all of them, set {ADDRESS} to an '
                         f"address of worker 0's machine and {PORT} to a free port there")
    if not 0 <= info.rank < info.size:
        raise ValueError(f'{info.launcher} gives this worker the number {info.rank}: must be from 0 to '
                         f'{info.size - 1}')
    where = os.environ[ADDRESS], integer(PORT, _number(PORT), minimum=1, maximum=65535)
    rank, size = str(info.rank), str(info.size)
    values = {'HOROVOD_RANK': rank, 'HOROVOD_SIZE': size, 'HOROVOD_LOCAL_RANK': '0', 'HOROVOD_LOCAL_SIZE': '1',
              'HOROVOD_CROSS_RANK': rank, 'HOROVOD_CROSS_SIZE': size, 'HOROVOD_HOSTNAME': f'worker{rank}'}
    if any(name not in os.environ for name in values):
        os.environ.update(values)
    os.environ.setdefault('HOROVOD_CONTROLLER', 'gloo')
    os.environ.setdefault('HOROVOD_CPU_OPERATIONS', 'gloo')
    _check_interface(os.environ.setdefault('HOROVOD_GLOO_IFACE', _interface(where)))
    if info.rank == 0:
        _serve(where)
    _meet(where, info)


def host() -> str:
    """Return the launcher's name of this machine; call it before `rendezvous`."""
    return os.environ.get('HOROVOD_HOSTNAME') or platform.node()


def address() -> str:
    """Return this machine's address on the network that Horovod uses."""
    import psutil
    entries = psutil.net_if_addrs().get(os.environ.get('HOROVOD_GLOO_IFACE', 'lo'), [])
    return next((entry.address for entry in entries if entry.family == socket.AF_INET), '127.0.0.1')


def _number(name: str) -> int:
    value = os.environ.get(name) or '0'
    try:
        return int(value)
    except ValueError:
        raise ValueError(f'{name} {value!r}: must be an integer') from None


def _interface(where: tuple) -> str:
    """Return the name of the network interface that leads to an address. Sends nothing."""
    import psutil
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as connection:
            connection.connect(where)
            own = connection.getsockname()[0]
    except OSError as error:
        raise ValueError(f'{ADDRESS} {where[0]}: cannot be reached ({error})') from None
    return next((name for name, entries in psutil.net_if_addrs().items()
                 if any(entry.address == own for entry in entries)), 'lo')


def _check_interface(name: str) -> None:
    import psutil
    if name not in (names := psutil.net_if_addrs()):  # Horovod would abort
        raise ValueError(f'HOROVOD_GLOO_IFACE {name}: not a network interface of this machine, which has '
                         f'{", ".join(names)}; horovodrun --network-interfaces needs one name that all machines have')


def _serve(where: tuple) -> None:
    """Serve Horovod's rendezvous, where workers find each other, in a thread, unless another process serves it."""
    with contextlib.suppress(OSError):
        socket.create_connection(where, timeout=5).close()
        return  # such as horovodrun
    from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer
    from horovod.runner.util.threads import in_thread
    try:
        server = RendezvousHTTPServer(where, RendezvousHandler, 0)
    except OSError as error:
        raise ValueError(f'worker 0 cannot listen on {where[0]}:{where[1]} ({error.strerror}): set {ADDRESS} to an '
                         f'address of its machine and {PORT} to a free port there') from None
    in_thread(target=server.serve_forever)


def _meet(where: tuple, info: LaunchInfo) -> None:
    """Wait for all workers. Horovod itself would end the process without naming the missing one."""
    url = f'http://{where[0]}:{where[1]}/gluon_mgpu/'
    deadline = time.monotonic() + PATIENCE
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # ignores the proxy for the web

    def request(method: str, rank: int) -> None:
        """Repeat a request until it succeeds."""
        data = b'.' if method == 'PUT' else None
        while True:
            try:
                direct.open(urllib.request.Request(f'{url}worker{rank}', data, method=method), timeout=5).close()
                return
            except urllib.error.HTTPError:  # not there yet
                problem = f'{f"worker {rank}" if rank else "a worker"} did not connect to {url}'  # 0 comes last
            except (OSError, http.client.HTTPException):
                problem = f'no answer from {url}'
            if time.monotonic() > deadline:
                raise ValueError(f'{problem} in {PATIENCE} s: check that all {info.size} workers are running and '
                                 'can reach it')
            time.sleep(0.1)

    if info.rank == 0:  # comes last: its presence means that all workers are there
        for rank in range(1, info.size):
            request('GET', rank)
    request('PUT', info.rank)
    request('GET', 0)
