"""Launchers: rank and size of this process, and the variables that Horovod needs to connect the workers.

`horovodrun` sets all variables. `mpirun`, `mpiexec` and `srun` set rank and size only: the user gives an address of
rank 0's machine and a port, and rank 0 serves there.
"""
import contextlib
import http.client
import os
import socket
import time
from typing import NamedTuple

from ..base.arguments import integer

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


def launch_info() -> LaunchInfo:
    """Return the launcher, rank and size of this process."""
    for launcher, names in VARIABLES.items():
        # `srun --mpi=pmi2` sets the variables of mpiexec as well, but not the local rank
        pmi2 = launcher == 'mpiexec' and names[2] not in os.environ and 'SLURM_LOCALID' in os.environ
        if all(name in os.environ for name in names[:2]) and not pmi2:
            return LaunchInfo(launcher, *map(_number, names))
    return LaunchInfo()


def rendezvous(info: LaunchInfo) -> None:
    """Set the variables that Horovod needs, and wait until all workers are there; ValueError if one does not come."""
    # Except under horovodrun, they place each worker on its own machine, which works for all layouts
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    if info.size == 1:
        return
    if not os.environ.get(ADDRESS) or not os.environ.get(PORT):
        raise ValueError(f'{info.launcher} does not say where the workers meet: on all of them, set {ADDRESS} to an '
                         f"address of worker 0's machine and {PORT} to a free port there")
    integer(VARIABLES[info.launcher][0], info.rank, minimum=0, maximum=info.size - 1)
    where = os.environ[ADDRESS], integer(PORT, _number(PORT), minimum=1, maximum=65535)
    rank, size = str(info.rank), str(info.size)
    values = {'HOROVOD_RANK': rank, 'HOROVOD_SIZE': size, 'HOROVOD_LOCAL_RANK': '0', 'HOROVOD_LOCAL_SIZE': '1',
              'HOROVOD_CROSS_RANK': rank, 'HOROVOD_CROSS_SIZE': size, 'HOROVOD_HOSTNAME': f'worker{rank}'}
    if any(name not in os.environ for name in values):
        os.environ.update(values)
    os.environ.setdefault('HOROVOD_CONTROLLER', 'gloo')
    os.environ.setdefault('HOROVOD_CPU_OPERATIONS', 'gloo')
    interface = os.environ.setdefault('HOROVOD_GLOO_IFACE', _interface(where))
    if interface not in (found := _addresses()):  # Horovod would abort
        raise ValueError(f'HOROVOD_GLOO_IFACE {interface}: not a network interface of this machine, which has '
                         f'{", ".join(found)}; horovodrun --network-interfaces needs one name that all machines have')
    if info.rank == 0:
        _serve(where)
    _meet(where, info)


def address() -> str:
    """Return this machine's address on the network that Horovod uses."""
    return next(iter(_addresses().get(os.environ.get('HOROVOD_GLOO_IFACE', 'lo'), [])), '127.0.0.1')


def _addresses() -> dict[str, list[str]]:
    import psutil
    return {name: [entry.address for entry in entries if entry.family == socket.AF_INET]
            for name, entries in psutil.net_if_addrs().items()}


def _number(name: str) -> int:
    value = os.environ.get(name) or '0'
    try:
        return int(value)
    except ValueError:
        raise ValueError(f'{name} {value!r}: must be an integer') from None


def _interface(where: tuple[str, int]) -> str:
    """Return the name of the network interface that leads to an address. Sends nothing."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as connection:
            connection.connect(where)
            own = connection.getsockname()[0]
    except OSError as error:
        raise ValueError(f'{ADDRESS} {where[0]}: cannot be reached ({error})') from None
    return next((name for name, addresses in _addresses().items() if own in addresses), 'lo')


def _serve(where: tuple[str, int]) -> None:
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


def _meet(where: tuple[str, int], info: LaunchInfo) -> None:
    """Wait for all workers. Horovod itself would end the process without naming the missing one."""
    deadline = time.monotonic() + PATIENCE
    # Rank 0 comes last: its presence means that all workers are there
    others = [('GET', rank) for rank in range(1, info.size)] if info.rank == 0 else []
    for method, rank in [*others, ('PUT', info.rank), ('GET', 0)]:
        while problem := _problem(where, method, rank):
            if time.monotonic() > deadline:
                raise ValueError(f'{problem} in {PATIENCE} s: check that all {info.size} workers are running and '
                                 'can reach it')
            time.sleep(0.1)


def _problem(where: tuple[str, int], method: str, rank: int) -> str:
    """Put or get the name of a worker at the rendezvous; return the reason if that fails, or ''."""
    url = f'http://{where[0]}:{where[1]}/gluon_mgpu/'
    try:
        with contextlib.closing(http.client.HTTPConnection(*where, timeout=5)) as connection:
            connection.request(method, f'/gluon_mgpu/{rank}', body='.' if method == 'PUT' else None)
            is_there = connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return f'no answer from {url}'
    return '' if is_there else f'{f"worker {rank}" if rank else "a worker"} did not connect to {url}'
