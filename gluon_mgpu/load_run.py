"""The network that a run has trained, from its checkpoint: for `predict` and `export`."""
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import scratch
from .checkpoints import checkpoint
from .checkpoints.callback import newest
from .checkpoints.checkpoint import CheckpointError
from .devices import parse_devices
from .networks.hybridize import hybridized
from .networks.precision import check_dtype
from .networks.resnet import resnet18


def trained_network(path, devices: list | None = None, log: Callable[[str], None] = print) -> tuple:
    """Make the network that a run has trained; waits.

    Parameters
    ----------
    path : path-like
        A run's folder, whose newest whole checkpoint is taken, or a checkpoint.
    devices : list of mx.Context, optional
        By default those that the run was on, each once where several workers had devices of the same name. On another
        number of devices, each has the mean of batch norm's running statistics.
    log : callable
        Is told in one line what is not as expected.

    Returns
    -------
    net : callable
        Maps X (n, 1, 28, 28) to scores (n, 10), on X's own device, one of `devices`; does not wait.
    devices : list of mx.Context
    config : dict
        The run's configuration.

    Raises
    ------
    ValueError
        If there is no whole checkpoint, or the devices of the run are not here.
    """
    found, config = find_run(path, log)
    if devices is None:
        names = dict.fromkeys(config['devices'])  # each once: workers may have devices of the same name
        devices = parse_devices(','.join(name.replace('(', ':').rstrip(')') for name in names))
    if config['chapter'] == 'scratch':
        params_on = dict(zip(devices, load_run(found, config, devices, log)))
        return lambda X: scratch.lenet(X, params_on[X.ctx]), devices, config
    check_dtype(config['dtype'], devices)
    return hybridized(load_run(found, config, devices, log)), devices, config


def find_run(path, log: Callable[[str], None] = print) -> tuple[Path, dict]:
    """Find the checkpoint that a path means.

    Parameters
    ----------
    path : path-like
        A run's folder, whose newest whole checkpoint is taken, or a checkpoint.
    log : callable
        Is told in one line of each checkpoint that is not whole.

    Returns
    -------
    found : pathlib.Path
        The checkpoint.
    config : dict
        The run's configuration.

    Raises
    ------
    CheckpointError
        If there is no whole checkpoint, or it is not of a chapter's run.
    """
    path = Path(path)
    found = newest(path, log)[0] if path.is_dir() else path
    if found is None:
        raise CheckpointError(f'{path}: there is no whole checkpoint in it; name the folder of a run')
    config = checkpoint.read(found)[0]['position'].get('config')
    if not isinstance(config, dict) or config.get('chapter') not in ('scratch', 'concise'):
        raise CheckpointError(f'{found}: not of a run of scratch or concise, whose networks are known here')
    devices = config.get('devices')
    if not isinstance(devices, list) or not all(isinstance(name, str) for name in devices) or not devices or (
            config['chapter'] == 'concise' and 'dtype' not in config):
        raise CheckpointError(f'{found}: its configuration lacks the devices or the dtype of the run')
    return found, config


def load_run(found: Path, config: dict, devices: list, log: Callable[[str], None] = print) -> Any:
    """Load what `find_run` has found; waits.

    Parameters
    ----------
    found : pathlib.Path
        The checkpoint.
    config : dict
        The run's configuration.
    devices : list of mx.Context
        What to load it onto.
    log : callable
        Is told in one line if arrays that differed between devices come to another number of them.

    Returns
    -------
    list of lists of np.ndarray, or gluon.Block
        LeNet's parameters on each device, or ResNet-18.
    """
    if config['chapter'] == 'scratch':
        net: Any = [scratch.get_params(scratch.init_params(), d) for d in devices]
    else:
        net = resnet18(10, config['dtype'])
        net.initialize(ctx=devices)
    checkpoint.load(found, net, log=log)
    return net
