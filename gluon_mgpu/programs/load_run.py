"""Trained networks from the checkpoints of runs, for `predict` and `export`."""
from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

from ..base.flags import quoted
from ..base.text import print_text
from ..checkpoints import checkpoint
from ..checkpoints.metadata import check_metadata
from ..checkpoints.run_folder import newest_checkpoint
from ..devices import devices_text, parse_devices
from ..networks.precision import check_dtype
from ..settings.chapters import CHAPTERS, Chapter
from ..training.epoch import place_of


def trained_network(path, devices: list | None = None) -> tuple:
    """Load the network that a run has trained; return it, its devices and the metadata of the checkpoint; blocks.

    `path` is as for `run_to_load`. The network maps X (n, 1, 28, 28) on one of `devices`, by default those of the run,
    to scores (n, 10) there. On another number of devices, each gets the mean of batch norm's running statistics.
    """
    found, metadata = run_to_load(path)
    config = metadata['config']
    if devices is None:
        devices = parse_devices(devices_text(config['devices']))  # each once; workers may have devices of the same name
    try:
        check_dtype(config.get('dtype', 'float32'), devices)
    except ValueError as error:
        problem = str(error).partition(';')[0]
        raise ValueError(f'{problem}; name other devices, or write a float32 model: python -m gluon_mgpu export '
                         f'{quoted(path)} --out MODEL.onnx') from None
    net, chapter = load_run(found, config, devices), CHAPTERS[config['chapter']]
    if not chapter.forward:
        net.hybridize()  # needed for other dtypes than float32
    return chapter.scores_of(module_of(chapter), net, devices), devices, metadata


def run_to_load(path) -> tuple[Path, dict]:
    """Return the checkpoint `path`, or the newest complete one in the folder `path`, and its metadata."""
    try:
        if not os.path.lexists(path):
            raise checkpoint.DamagedError(f'{path}: does not exist')
        found, metadata = newest_checkpoint(Path(path))
    except checkpoint.DamagedError as error:
        raise checkpoint.CheckpointError(f'{error}; name the folder of a run or one of its checkpoints') from None
    if found is None:
        raise checkpoint.CheckpointError(f'{path}: no complete checkpoint was found; resume the run, or name the '
                                         'folder of another one')
    try:
        check_metadata(metadata)
        if metadata['config']['chapter'] not in CHAPTERS:
            raise ValueError(f'its chapter is {metadata["config"]["chapter"]!r}')
    except ValueError as error:
        raise checkpoint.CheckpointError(f'{found}: must be from a run of {" or ".join(CHAPTERS)}; {error}') from None
    return found, metadata


def module_of(chapter: Chapter) -> Any:
    """Return the module of a chapter."""
    return importlib.import_module(f'gluon_mgpu.{chapter.name}')


def place_of_checkpoint(metadata: dict) -> str:
    """Return how far the run of a checkpoint had come, such as ``'after epoch 3 of 10'``."""
    return place_of(metadata['run'], f' of {metadata["config"]["num_epochs"]}')


def load_run(found: Path, config: dict, devices: list) -> Any:
    """Load what `run_to_load` found: parameters as a list for each device, or a Gluon block; blocks."""
    chapter = CHAPTERS[config['chapter']]
    net = chapter.make_net(module_of(chapter), config)
    if chapter.forward:
        net = [[param.copyto(device) for param in net] for device in devices]
    else:
        net.initialize(ctx=devices)
    checkpoint.load(found, net, log=print_text)
    return net
