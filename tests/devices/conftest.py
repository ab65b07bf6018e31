"""Fixture that simulates machines."""
import pytest
from machines import WHEEL

from gluon_mgpu.devices import (
    gpus as gpu_module,
    lists as module,
)
from gluon_mgpu.devices.nvidia_driver import Driver
from gluon_mgpu.mxnet_setup.compat import mx


@pytest.fixture
def machine(monkeypatch):
    """Return a function that simulates a machine: its GPUs, how many MXNet sees, and the ones it has code for."""
    def pretend(*gpus, seen=None, code_for=WHEEL, cuda=True):
        gpus = [gpu._replace(index=i) for i, gpu in enumerate(gpus)]
        driver = Driver(gpus, (12, 4), '') if gpus else Driver([], None, 'no NVIDIA driver')
        monkeypatch.setattr(gpu_module, 'ask_driver', lambda: driver)
        for r in (module, gpu_module):
            monkeypatch.setattr(r, 'num_mxnet_gpus', lambda: len(gpus) if seen is None else seen)
        monkeypatch.setattr(mx.runtime.Features, 'is_enabled', lambda self, feature: cuda)
        monkeypatch.setattr(gpu_module, 'compute_capabilities', lambda: code_for)
        monkeypatch.setattr(module, 'omp_threads', lambda: 1)
        monkeypatch.delenv('CUDA_VISIBLE_DEVICES', raising=False)
    return pretend
