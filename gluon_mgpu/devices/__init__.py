"""The devices of this machine, and lists of them.

    python -m gluon_mgpu.devices      the GPUs, whether MXNet can use them, and the CPU contexts

Can be imported without MXNet, which is loaded inside the functions that need it.
"""
from .lists import check_devices, devices_from, parse_devices, try_all_gpus, try_gpu

__all__ = ['check_devices', 'devices_from', 'parse_devices', 'try_all_gpus', 'try_gpu']
