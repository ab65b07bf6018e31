"""Devices as a command-line flag."""


def devices_flag(devices: list) -> list[str]:
    """Return the flag --devices that names these devices."""
    return ['--devices', ','.join(f'{device.device_type}:{device.device_id}' for device in devices)]
