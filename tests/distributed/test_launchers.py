"""Tests of launchers: the place of a worker in its job, and how workers meet."""
import socket

import pytest

from gluon_mgpu.distributed import horovod_workers, launchers
from gluon_mgpu.distributed.launchers import LaunchInfo, launch_info

pytestmark = pytest.mark.usefixtures('no_launcher')


@pytest.mark.parametrize('launcher', launchers.VARIABLES)
def test_place_reads_the_variables_of_each_launcher(monkeypatch, launcher):
    assert launch_info() == LaunchInfo()
    for name, value in zip(launchers.VARIABLES[launcher], '351'):
        monkeypatch.setenv(name, value)
    assert launch_info() == LaunchInfo(launcher, 3, 5, 1)


def test_srun_with_the_variables_of_mpiexec(monkeypatch):
    """``srun --mpi=pmi2`` sets both, but not mpiexec's local rank."""
    for name, value in {'PMI_RANK': '3', 'PMI_SIZE': '4', 'SLURM_PROCID': '3', 'SLURM_NTASKS': '4',
                        'SLURM_LOCALID': '1'}.items():
        monkeypatch.setenv(name, value)
    assert launchers.launch_info() == LaunchInfo('srun', 3, 4, 1)
    monkeypatch.setenv('MPI_LOCALRANKID', '2')
    assert launchers.launch_info() == LaunchInfo('mpiexec', 3, 4, 2)


def test_horovodrun_within_srun(monkeypatch):
    monkeypatch.setenv('SLURM_PROCID', '0')
    monkeypatch.setenv('SLURM_NTASKS', '1')
    monkeypatch.setenv('HOROVOD_RANK', '1')
    monkeypatch.setenv('HOROVOD_SIZE', '2')
    assert launch_info() == LaunchInfo('horovodrun', 1, 2, 0)


def test_address_and_port_are_required():
    with pytest.raises(ValueError, match='srun does not say where the workers meet: on all of them, set HOROVOD_'):
        launchers.rendezvous(LaunchInfo('srun', 0, 2, 0))


@pytest.mark.parametrize('rank, served, words', [
    (1, False, 'no answer from http://127.0.0.1:{port}/gluon_mgpu/ in 0.5 s: check that all 2 workers are running'),
    (1, True, 'a worker did not connect to http://127.0.0.1:{port}/gluon_mgpu/ in 0.5 s: check that all 2 workers are'
     ' running'),
    (0, True, 'worker 1 did not connect to http://127.0.0.1:{port}/gluon_mgpu/ in 0.5 s: check that all 2 workers are'
     ' running'),
])
def test_a_missing_worker(job, monkeypatch, rank, served, words):
    with socket.create_server(('127.0.0.1', 0)) as free:
        port = free.getsockname()[1]
    if served:
        launchers._serve(('127.0.0.1', port))
    monkeypatch.setattr(launchers, 'PATIENCE', 0.5)
    monkeypatch.setattr(launchers.os, 'environ', {launchers.ADDRESS: '127.0.0.1', launchers.PORT: str(port)})
    with pytest.raises(ValueError, match=words.format(port=port)):
        launchers.rendezvous(LaunchInfo('srun', rank, 2, 0))


def test_a_launcher_that_sets_only_some_variables(monkeypatch):
    """Other launchers need only the documented ones; Horovod would abort without the rest."""
    environ = {'HOROVOD_RANK': '1', 'HOROVOD_SIZE': '2', 'HOROVOD_LOCAL_RANK': '1', launchers.ADDRESS: '127.0.0.1',
               launchers.PORT: '29500'}
    monkeypatch.setattr(launchers.os, 'environ', environ)
    monkeypatch.setattr(launchers, '_meet', lambda where, found: None)
    launchers.rendezvous(launch_info())
    of_horovodrun = {'LOCAL_RANK': '0', 'LOCAL_SIZE': '1', 'CROSS_RANK': '1', 'CROSS_SIZE': '2', 'HOSTNAME': 'worker1',
                     'RANK': '1', 'SIZE': '2'}
    assert of_horovodrun.items() <= {name[len('HOROVOD_'):]: value for name, value in environ.items()}.items()
    environ.update({'HOROVOD_LOCAL_RANK': '1', 'HOROVOD_LOCAL_SIZE': '2'})  # what horovodrun sets stays
    launchers.rendezvous(launch_info())
    assert (environ['HOROVOD_LOCAL_RANK'], environ['HOROVOD_LOCAL_SIZE']) == ('1', '2')


@pytest.mark.parametrize('variables, words', [
    ({'HOROVOD_RANK': 'a'}, "HOROVOD_RANK 'a': must be an integer"),
    ({launchers.PORT: 'b'}, "HOROVOD_GLOO_RENDEZVOUS_PORT 'b': must be an integer"),
    ({'HOROVOD_RANK': '2'}, 'HOROVOD_RANK 2: must be an integer from 0 to 1')])
def test_invalid_variables(monkeypatch, variables, words):
    monkeypatch.setattr(launchers.os, 'environ', {
        'HOROVOD_RANK': '1', 'HOROVOD_SIZE': '2', launchers.ADDRESS: '127.0.0.1', launchers.PORT: '29500', **variables})
    with pytest.raises(ValueError, match=f'^{words}$'):
        launchers.rendezvous(launch_info())


def test_a_missing_network_interface(monkeypatch):
    monkeypatch.setattr(launchers.os, 'environ', {launchers.ADDRESS: '127.0.0.1', launchers.PORT: '29500',
                                                  'HOROVOD_GLOO_IFACE': 'eth99'})
    with pytest.raises(ValueError, match='HOROVOD_GLOO_IFACE eth99: not a network interface of this machine, which has '
                                         r'.*\blo\b.*; horovodrun --network-interfaces needs'):
        launchers.rendezvous(LaunchInfo('horovodrun', 1, 2, 0))


def test_a_worker_that_cannot_start_names_its_machine(monkeypatch):
    monkeypatch.setattr(horovod_workers, 'check_horovod', lambda: None)
    monkeypatch.setattr(launchers.os, 'environ', {'HOROVOD_RANK': '1', 'HOROVOD_SIZE': '2', 'HOROVOD_LOCAL_RANK': '0',
                                                  'HOROVOD_HOSTNAME': 'b'})
    with pytest.raises(ValueError, match=r'^worker 1 \(b\): horovodrun does not say where the workers meet'):
        horovod_workers.HorovodWorkers()
