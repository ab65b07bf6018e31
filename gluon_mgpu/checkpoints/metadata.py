"""The metadata of a run, its configuration and state, in files that may be of another program."""
from types import NoneType
from typing import Any

from ..base.arguments import check_entries
from ..training.epoch import check_state

CONFIG = {  # entries that programs use without checking them as settings
    'chapter': str, 'dataset': str, 'devices': list, 'batch_size': int, 'num_epochs': int, 'dtype': (str, NoneType),
    'data_dir': (str, NoneType)}


def check_metadata(metadata: dict) -> None:
    """Raise ValueError unless this is the metadata of a run: its state and its configuration."""
    check_state(metadata.get('run'))
    check_config(metadata.get('config'))


def check_config(config: Any) -> None:
    """Raise ValueError unless a configuration has the entries of a run's."""
    check_entries('configuration', config, CONFIG)
