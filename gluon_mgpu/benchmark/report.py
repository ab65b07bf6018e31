"""Tables of the results."""
from __future__ import annotations

from ..base.machine import num_cores, processor
from ..devices.nvidia_driver import ask_driver
from ..mxnet_setup.compat import mx

TITLES = {'lenet': 'LeNet', 'resnet18': 'ResNet-18'}


def machine_line(devices: list) -> str:
    """Return one line with the devices, the processor and MXNet's version."""
    numbers = [device.device_id for device in devices if device.device_type == 'gpu']
    names = [gpu.name for gpu in ask_driver().gpus if gpu.index in numbers]
    names += ['CPU context'] * (len(devices) - len(numbers))
    facts = [f'{names.count(name)} x {name}' for name in dict.fromkeys(names)]
    return ', '.join([*facts, f'{num_cores()} cores of {processor()}', f'MXNet {mx.__version__}'])


def scaling_table(results: list) -> list[str]:
    """Return the lines of a table of speeds, from the results of `scaling`."""
    lines = [['network', 'mode', 'devices', 'batch', 'images/s', '', 'speed-up', '', 'efficiency', 'ms per step']]
    for r in results:
        least, most = r['images_per_second_range']
        low, high = r['speed_up_range']
        lines.append([TITLES[r['network']], r['mode'], f'{r["num_devices"]}', f'{r["rows"]}',
                      f'{r["images_per_second"]:,.0f}', f'({least:,.0f} to {most:,.0f})',
                      f'{r["speed_up"]:.2f}', f'({low:.2f} to {high:.2f})',
                      f'{r["efficiency"]:.0%}', f'{r["ms_per_step"]:.1f}'])
    return _aligned(lines)


def shares_table(results: list) -> list[str]:
    """Return the lines of two tables of a step's parts, from the results of `scaling`."""
    sums = [['sum, ms', *(f'{sum(r["parts_ms"].values()):.1f}' for r in results)]]
    steps = [['step, ms', *(f'{r["ms_per_step"]:.1f}' for r in results)],
             ['overlap, ms', *(f'{r["overlap_ms"]:.1f}' for r in results)]]
    return ['share of the sum, measured part by part', *_shares(results, 'parts_ms', sums),
            '', 'share of a step, as trained', *_shares(results, 'as_trained_ms', steps)]


def _shares(results, key, more_columns) -> list[str]:
    lines = [['network', 'mode', 'devices', *results[0][key]]]
    for r in results:
        total = sum(r[key].values())
        lines.append([TITLES[r['network']], r['mode'], f'{r["num_devices"]}',
                      *(f'{ms / total:.1%}' for ms in r[key].values())])
    return _aligned([[*line, *more] for line, more in zip(lines, zip(*more_columns))])


def dispatch_table(dispatch: list) -> list[str]:
    """Return the lines of a table of Python's time to start a step, from `measure_dispatch`."""
    lines = [['network', 'CPU contexts', 'ms per step', 'of which running']]
    lines += [[TITLES[d['network']], f'{d["devices"]}', f'{d["wall_ms"]:.2f}', f'{d["cpu_ms"]:.2f}']
              for d in dispatch]
    return ['dispatch: time of a train_batch call, one row per device', *_aligned(lines)]


def _aligned(lines: list) -> list[str]:
    """Align columns: words to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*lines)]
    left = [column[1][:1].isalpha() for column in zip(*lines)]
    return ['  '.join(cell.ljust(width) if to_left else cell.rjust(width)
                      for cell, width, to_left in zip(line, widths, left)).rstrip() for line in lines]
