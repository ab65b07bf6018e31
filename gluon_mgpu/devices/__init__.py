"""Devices of this machine, and lists of devices.

    python -m gluon_mgpu devices      list the GPUs, the MXNet builds that support them, and the CPU contexts

Can be imported without MXNet: the functions that need it import it.
"""
from .lists import check_devices, devices_from, devices_text, parse_devices, try_all_gpus, try_gpu

__all__ = ['check_devices', 'devices_from', 'devices_text', 'parse_devices', 'try_all_gpus', 'try_gpu']
