"""What a worker learns from the program that started it, and what Horovod is to know of that.

`horovodrun` tells all. `mpirun`, `mpiexec` and `srun` tell each process its number: where the workers meet must
then be in the environment, and the first worker serves there.
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
PATIENCE = 30  # seconds to wait for the place where workers meet
# By launcher: this process's number, how many there are, and its number among those on its machine
VARIABLES = {
    'horovodrun': ('HOROVOD_RANK', 'HOROVOD_SIZE', 'HOROVOD_LOCAL_RANK'),
    'mpirun': ('OMPI_COMM_WORLD_RANK', 'OMPI_COMM_WORLD_SIZE', 'OMPI_COMM_WORLD_LOCAL_RANK'),
    'mpiexec': ('PMI_RANK', 'PMI_SIZE', 'MPI_LOCALRANKID'),
    'srun': ('SLURM_PROCID', 'SLURM_NTASKS', 'SLURM_LOCALID'),
}


# Defaults for Horovod's settings; what the user has set wins
ENVIRONMENT = {
    'HOROVOD_LOG_LEVEL': 'fatal',  # what is wrong, this package tells in one line
    'HOROVOD_CYCLE_TIME': '3',     # ms from one look at what is to be summed to the next, which takes a core's time
}


class Place(NamedTuple):
    """The place of a process in a job."""

    launcher: str
    rank: int
    size: int
    local_rank: int


def place() -> Place | None:
    """Return what the environment tells of this process's place in a job; None if it was started alone."""
    for launcher, names in VARIABLES.items():
        values = [os.environ.get(name) for name in names]
        if values[0] is not None and values[1] is not None:
            return Place(launcher, *map(_number, names))
    return None


def prepare(found: Place) -> None:
    """Complete in the environment what Horovod needs, and wait until all workers have met; the first worker serves.

    Only Horovod's own launcher sets everything. For the others each worker counts as a machine of its own, which is
    right however the workers are spread over machines.

    Parameters
    ----------
    found : Place
        As from `place`.

    Raises
    ------
    ValueError
        If the environment does not say where the workers meet, the first worker cannot serve there, or one is missing.
    """
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    if found.size == 1:
        return
    if not os.environ.get(ADDRESS) or not os.environ.get(PORT):
        raise ValueError(f'{found.launcher} does not tell where the workers meet: set {ADDRESS} to the address of '
                         f"worker 0's machine and {PORT} to a free port there, for all of them")
    if not 0 <= found.rank < found.size:
        raise ValueError(f'{found.launcher} gives this worker the number {found.rank}: {found.size} workers are '
                         f'numbered 0 to {found.size - 1}')
    rank, size = str(found.rank), str(found.size)
    values = {'HOROVOD_RANK': rank, 'HOROVOD_SIZE': size, 'HOROVOD_LOCAL_RANK': '0', 'HOROVOD_LOCAL_SIZE': '1',
              'HOROVOD_CROSS_RANK': rank, 'HOROVOD_CROSS_SIZE': size, 'HOROVOD_HOSTNAME': f'worker{rank}'}
    if any(name not in os.environ for name in values):
        os.environ.update(values)
    os.environ.setdefault('HOROVOD_CONTROLLER', 'gloo')
    os.environ.setdefault('HOROVOD_CPU_OPERATIONS', 'gloo')
    where = os.environ[ADDRESS], _number(PORT)
    os.environ.setdefault('HOROVOD_GLOO_IFACE', _interface(_own_address(where)))
    if found.rank == 0 and not _answers(where):
        _serve(where)
    _meet(where, found)


def host() -> str:
    """Return the name of this machine, as the launcher was told it; to be called before `prepare`."""
    return os.environ.get('HOROVOD_HOSTNAME') or platform.node()


def address() -> str:
    """Return this machine's address on the network that Horovod uses."""
    import psutil
    for entry in psutil.net_if_addrs().get(os.environ.get('HOROVOD_GLOO_IFACE', 'lo'), []):
        if entry.family == socket.AF_INET:
            return entry.address
    return '127.0.0.1'


def _number(name: str) -> int:
    value = os.environ.get(name) or '0'
    try:
        return int(value)
    except ValueError:
        raise ValueError(f'{name} {value!r}: an integer expected') from None


def _own_address(where: tuple) -> str:
    """This machine's address on the way to another; nothing is sent."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
            way.connect(where)
            return way.getsockname()[0]
    except OSError as error:
        raise ValueError(f'{ADDRESS} {where[0]}: there is no way to it ({error})') from None


def _interface(own: str) -> str:
    import psutil
    return next((name for name, entries in psutil.net_if_addrs().items()
                 if any(entry.address == own for entry in entries)), 'lo')


def _answers(where: tuple) -> bool:
    try:
        socket.create_connection(where, timeout=5).close()
        return True
    except OSError:
        return False


def _meet(where: tuple, found: Place) -> None:
    """Wait until all workers are there: Horovod itself would end the process, without a word of who is missing."""
    place_of = f'http://{where[0]}:{where[1]}/gluon_mgpu/'
    deadline = time.monotonic() + PATIENCE
    _until(deadline, place_of, f'worker{found.rank}', found, put=True)
    for name in [f'worker{rank}' for rank in range(1, found.size)] if found.rank == 0 else ['all']:
        _until(deadline, place_of, name, found)
    if found.rank == 0:
        _until(deadline, place_of, 'all', found, put=True)


def _until(deadline: float, place_of: str, name: str, found: Place, put: bool = False) -> None:
    """Ask for a name, or leave one, again and again."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # not by way of a proxy for the web
    request = urllib.request.Request(place_of + name, data=b'.' if put else None, method='PUT' if put else 'GET')
    while True:
        try:
            direct.open(request, timeout=5).close()
            return
        except urllib.error.HTTPError:  # not there yet
            missing = 'worker 0' if name == 'all' else name.replace('worker', 'worker ')
            problem = f'{missing} has not come to {place_of}'
        except OSError:
            problem = f'nobody answers at {place_of}, where worker 0 or horovodrun serves'
        if time.monotonic() > deadline:
            raise ValueError(f'{problem} for {PATIENCE} s: are all {found.size} workers running, can they reach it?')
        time.sleep(0.1)


def _serve(where: tuple) -> None:
    """Serve, in a thread, as the place where workers find each other."""
    from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer
    from horovod.runner.util.threads import in_thread
    try:
        server = RendezvousHTTPServer(where, RendezvousHandler, 0)
    except OSError as error:
        raise ValueError(f'worker 0 cannot serve at {where[0]}:{where[1]} ({error.strerror}): {ADDRESS} is to be '
                         f'an address of its own machine, {PORT} a free port') from None
    in_thread(target=server.serve_forever)
