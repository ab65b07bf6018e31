"""Launchers: rank and size of this process, and the variables that Horovod needs to connect the workers.

`horovodrun` sets all variables. `mpirun`, `mpiexec` and `srun` set rank and size only: the user gives an address of
rank 0's machine and a port, and rank 0 serves there.
"""
from __future__ import annotations

import os
import platform
import socket
import time
import urllib.error
import urllib.request
from typing import NamedTuple

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
    'HOROVOD_CYCLE_TIME': '3',     # ms between two looks for arrays to sum; each look takes time from a core
}


class Place(NamedTuple):
    """Place of a process in a job."""

    launcher: str
    rank: int
    size: int
    local_rank: int


def place() -> Place | None:
    """Return this process's place in a job; None if no launcher started it."""
    for launcher, names in VARIABLES.items():
        if all(name in os.environ for name in names[:2]):
            return Place(launcher, *map(_number, names))
    return None


def prepare(place: Place) -> None:
    """Set the variables that Horovod needs, and wait until all workers are there.

    Except under `horovodrun`, each worker counts as a machine, which is right for any distribution over machines.
    ValueError: a variable is missing or wrong, rank 0 cannot serve, or a worker does not come within 30 s.
    """
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    if place.size == 1:
        return
    if not os.environ.get(ADDRESS) or not os.environ.get(PORT):
        raise ValueError(f'{place.launcher} does not say where the workers meet: on all of them, set {ADDRESS} to an '
                         f"address of worker 0's machine and {PORT} to a free port there")
    if not 0 <= place.rank < place.size:
        raise ValueError(f'{place.launcher} gives this worker the number {place.rank}: must be from 0 to '
                         f'{place.size - 1}')
    rank, size = str(place.rank), str(place.size)
    values = {'HOROVOD_RANK': rank, 'HOROVOD_SIZE': size, 'HOROVOD_LOCAL_RANK': '0', 'HOROVOD_LOCAL_SIZE': '1',
              'HOROVOD_CROSS_RANK': rank, 'HOROVOD_CROSS_SIZE': size, 'HOROVOD_HOSTNAME': f'worker{rank}'}
    if any(name not in os.environ for name in values):
        os.environ.update(values)
    os.environ.setdefault('HOROVOD_CONTROLLER', 'gloo')
    os.environ.setdefault('HOROVOD_CPU_OPERATIONS', 'gloo')
    where = os.environ[ADDRESS], _number(PORT)
    os.environ.setdefault('HOROVOD_GLOO_IFACE', _interface(where))
    if place.rank == 0 and not _is_served(where):
        _serve(where)
    _meet(where, place)


def host() -> str:
    """Return the launcher's name of this machine; call it before `prepare`."""
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


def _is_served(where: tuple) -> bool:
    try:
        socket.create_connection(where, timeout=5).close()
        return True
    except OSError:
        return False


def _serve(where: tuple) -> None:
    """Serve Horovod's rendezvous, where workers find each other, in a thread."""
    from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer
    from horovod.runner.util.threads import in_thread
    try:
        server = RendezvousHTTPServer(where, RendezvousHandler, 0)
    except OSError as error:
        raise ValueError(f'worker 0 cannot serve at {where[0]}:{where[1]} ({error.strerror}): set {ADDRESS} to an '
                         f'address of its machine and {PORT} to a free port') from None
    in_thread(target=server.serve_forever)


def _meet(where: tuple, place: Place) -> None:
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
                problem = f'worker {rank} did not come to {url}'
            except OSError:
                problem = f'no answer from {url}'
            if time.monotonic() > deadline:
                raise ValueError(f'{problem} in {PATIENCE} s: check that all {place.size} workers are running and '
                                 'can reach it')
            time.sleep(0.1)

    if place.rank == 0:  # comes last: its presence means that all workers are there
        for rank in range(1, place.size):
            request('GET', rank)
    request('PUT', place.rank)
    request('GET', 0)
