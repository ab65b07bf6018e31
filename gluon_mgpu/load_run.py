"""Trained networks from the checkpoints of runs, for `predict` and `export`."""
from __future__ import annotations

from pathlib import Path
from typing import Any

from . import scratch
from .base.flags import quoted
from .checkpoints import checkpoint
from .checkpoints.find import run_to_load
from .devices import devices_text, parse_devices
from .networks.hybridize import hybridized
from .networks.precision import check_dtype
from .networks.resnet import resnet18


def trained_network(path, devices: list | None = None) -> tuple:
    """Load the network that a run has trained; blocks.

    `path` is a checkpoint, or the folder of a run, for its newest complete checkpoint. `devices` are by default those
    of the run. On another number of devices, each gets the mean of batch norm's running statistics.

    Returns
    -------
    net : callable
        Maps X (n, 1, 28, 28) on one of `devices` to scores (n, 10) there; does not block.
    devices : list of mx.Context
    config : dict
        Configuration of the run.
    """
    found, metadata = run_to_load(path)
    config = metadata['config']
    if devices is None:
        devices = parse_devices(devices_text(config['devices']))  # each once; workers may have devices of the same name
    if config['chapter'] == 'scratch':
        params_on = dict(zip(devices, load_run(found, config, devices)))
        return lambda X: scratch.lenet(X, params_on[X.ctx]), devices, config
    try:
        check_dtype(config['dtype'], devices)
    except ValueError as error:
        problem = str(error).partition(';')[0]
        raise ValueError(f'{problem}; name other devices, or write a float32 model: python -m gluon_mgpu.export '
                         f'{quoted(path)} --out MODEL.onnx') from None
    return hybridized(load_run(found, config, devices)), devices, config


def load_run(found: Path, config: dict, devices: list) -> Any:
    """Load the checkpoint that `run_to_load` has found; blocks.

    Returns LeNet's parameters as a list for each device, or ResNet-18 as a ``gluon.Block``.
    """
    if config['chapter'] == 'scratch':
        net: Any = [scratch.get_params(scratch.init_params(), d) for d in devices]
    else:
        net = resnet18(10, config['dtype'])
        net.initialize(ctx=devices)
    checkpoint.load(found, net, log=print)
    return net
