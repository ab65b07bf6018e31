"""Devices of this machine, and lists of devices. Imports without MXNet: the functions that need it import it."""
from .lists import check_devices, devices_from, devices_text, devices_words, parse_devices, try_all_gpus, try_gpu

__all__ = ['check_devices', 'devices_from', 'devices_text', 'devices_words', 'parse_devices', 'try_all_gpus', 'try_gpu']
