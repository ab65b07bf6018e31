"""Tests of the facts about this machine."""
from __future__ import annotations

import os

from gluon_mgpu.base import machine, machine as this_machine
from gluon_mgpu.mxnet_setup.compat import mx


def test_cores_are_those_that_the_process_may_use(monkeypatch):
    monkeypatch.setattr(os, 'sched_getaffinity', lambda pid: {1, 3, 5}, raising=False)
    assert this_machine.num_cores() == 3
    monkeypatch.delattr(os, 'sched_getaffinity')
    assert this_machine.num_cores() == os.cpu_count()


def test_machine_facts():
    assert machine.num_cores() >= 1
    assert machine.processor()
    assert ('(family ' in machine.processor()) == bool(machine.processor_flags())  # Linux on x86-64
    versions = machine.versions()
    assert list(versions) == ['gluon_mgpu', 'mxnet', 'numpy', 'python', 'platform']
    assert versions['mxnet'] == mx.__version__ and all(versions.values())


def test_machine_facts_without_proc(monkeypatch):
    def missing(self):
        raise FileNotFoundError

    monkeypatch.setattr(machine.Path, 'read_text', missing)
    assert machine.processor_flags() == []
    assert isinstance(machine.processor(), str)
