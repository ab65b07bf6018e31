"""Tests of one worker: without Horovod, or the only one of its job."""
import sys

import pytest

from gluon_mgpu import scratch
from gluon_mgpu.distributed import horovod_workers
from gluon_mgpu.distributed.horovod_workers import HorovodWorkers
from gluon_mgpu.mxnet_setup.compat import MXNET_MAJOR


@pytest.mark.parametrize('flags', [['--num-gpus', '2'], ['--devices', 'cpu:0'], ['--allreduce', 'ring']])
def test_flags_that_exclude_each_other(capsys, flags):
    assert scratch.main(['--horovod', *flags]) == 2
    assert 'each worker has one device' in capsys.readouterr().err


def test_horovodrun_without_the_flag_horovod(monkeypatch, capsys):
    monkeypatch.setenv('HOROVOD_SIZE', '2')
    assert scratch.main([]) == 2
    assert 'horovodrun has started 2 workers, and each would train alone: add --horovod' in capsys.readouterr().err


def test_a_process_that_horovodrun_has_not_started(monkeypatch):
    monkeypatch.setattr(horovod_workers, 'check_horovod', lambda: None)
    monkeypatch.delenv('HOROVOD_RANK', raising=False)
    with pytest.raises(ValueError, match='^Horovod has not started this process: start it with horovodrun'):
        HorovodWorkers()


def test_the_flag_horovod_without_horovod(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, 'horovod', None)
    monkeypatch.setitem(sys.modules, 'horovod.mxnet', None)
    assert scratch.main(['--horovod']) == 2
    line = 'Horovod does not support MXNet 2' if MXNET_MAJOR >= 2 else 'make horovod'
    assert line in capsys.readouterr().err
