"""The metadata of a run, its configuration and state, in files that somebody may have changed or forged."""
import re
from typing import Any

from ..base.arguments import is_count
from ..training.epoch import check_state

DEVICE = re.compile(r'(cpu|gpu)\(\d{1,9}\)')
MAX_DEVICES = 10**4  # of all workers
IS_ENTRY = {  # entries of a configuration that programs use without checking them as settings
    'chapter': lambda value: isinstance(value, str), 'dataset': lambda value: isinstance(value, str),
    'devices': lambda value: (isinstance(value, list) and 1 <= len(value) <= MAX_DEVICES and all(
        isinstance(name, str) and DEVICE.fullmatch(name) for name in value)),
    'batch_size': lambda value: is_count(value, 1), 'num_epochs': lambda value: is_count(value, 1),
    'dtype': lambda value: value is None or isinstance(value, str),
    'data_dir': lambda value: value is None or isinstance(value, str)}


def check_metadata(metadata: dict) -> None:
    """Raise ValueError unless the metadata of a run, possibly forged, is complete and possible."""
    check_state(metadata.get('run'))
    check_config(metadata.get('config'))


def check_config(config: Any) -> None:
    """Raise ValueError unless a configuration of a run, possibly forged, has the entries that programs use."""
    if not isinstance(config, dict):
        raise ValueError('its configuration is missing')
    for name, is_valid in IS_ENTRY.items():
        if not is_valid(config.get(name)):
            raise ValueError(f'{name} of its configuration is missing or malformed')
