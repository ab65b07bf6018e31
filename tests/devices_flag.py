"""Devices as a command-line flag."""
from gluon_mgpu.devices import devices_text


def devices_flag(devices: list) -> list[str]:
    """Return the flag --devices that names these devices."""
    return ['--devices', devices_text(devices)]
