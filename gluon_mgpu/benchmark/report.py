"""The results of `gluon_mgpu.benchmark` as tables and as a picture. Matplotlib is loaded when it is drawn."""
from __future__ import annotations

import platform

from ..devices.lists import num_cores
from ..devices.nvidia_driver import ask_driver
from ..mxnet_setup.compat import mx

TITLES = {'lenet': 'LeNet', 'resnet18': 'ResNet-18'}


def machine(devices: list) -> str:
    """The processor, the GPUs among `devices` and MXNet's version, in one line."""
    numbers = [device.device_id for device in devices if device.device_type == 'gpu']
    names = [gpu.name for gpu in ask_driver().gpus if gpu.index in numbers]
    facts = [f'{names.count(name)} x {name}' for name in dict.fromkeys(names)]
    if len(numbers) < len(devices):
        facts.append(f'{len(devices) - len(numbers)} CPU contexts')
    return ', '.join([*facts, f'{num_cores()} cores of {_processor()}', f'MXNet {mx.__version__}'])


def _processor() -> str:
    """The processor's name as Linux tells it, else what Python knows."""
    try:
        with open('/proc/cpuinfo') as file:
            names = [line.split(':', 1)[1].strip() for line in file if line.startswith('model name')]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()


def scaling_table(results: list) -> list[str]:
    """How fast each case is: heading and lines, from `benchmark.scaling`."""
    lines = [['network', 'mode', 'devices', 'batch', 'images/s', '', 'speed-up', '', 'efficiency', 'ms a step']]
    for r in results:
        least, most = r['images_per_second_range']
        low, high = r['speed_up_range']
        lines.append([TITLES[r['network']], r['mode'], f'{r["num_devices"]}', f'{r["rows"]}',
                      f'{r["images_per_second"]:,.0f}', f'({least:,.0f} to {most:,.0f})',
                      f'{r["speed_up"]:.2f}', f'({low:.2f} to {high:.2f})',
                      f'{r["efficiency"]:.0%}', f'{r["ms_per_step"]:.1f}'])
    return _aligned(lines)


def shares_table(results: list) -> list[str]:
    """Where the time of a step goes: two headings and their lines, from `benchmark.scaling`."""
    sums = [['sum, ms', *(f'{sum(r["parts_ms"].values()):.1f}' for r in results)]]
    steps = [['step, ms', *(f'{r["ms_per_step"]:.1f}' for r in results)],
             ['overlap, ms', *(f'{r["overlap_ms"]:.1f}' for r in results)]]
    return ['share of the sum, one part after the other', *_shares(results, 'parts_ms', sums),
            '', 'share of a step, as trained', *_shares(results, 'as_trained_ms', steps)]


def _shares(results, key, more_columns) -> list[str]:
    lines = [['network', 'mode', 'devices', *results[0][key]]]
    for r in results:
        total = sum(r[key].values())
        lines.append([TITLES[r['network']], r['mode'], f'{r["num_devices"]}',
                      *(f'{ms / total:.1%}' for ms in r[key].values())])
    return _aligned([[*line, *more] for line, more in zip(lines, zip(*more_columns))])


def dispatch_table(dispatch: list) -> list[str]:
    """What Python needs to start a step: heading and lines, from `benchmark.measure_dispatch`."""
    lines = [['network', 'CPU contexts', 'ms a step', 'of which running']]
    lines += [[TITLES[d['network']], f'{d["devices"]}', f'{d["wall_ms"]:.2f}', f'{d["cpu_ms"]:.2f}']
              for d in dispatch]
    return ['dispatch: the call of train_batch, one row a device', *_aligned(lines)]


def _aligned(lines: list) -> list[str]:
    """Columns of text: those of words to the left, those of numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*lines)]
    left = [column[1][:1].isalpha() for column in zip(*lines)]
    return ['  '.join(cell.ljust(width) if to_left else cell.rjust(width)
                      for cell, width, to_left in zip(line, widths, left)).rstrip() for line in lines]


def scaling_curves(results: list, path, title: str) -> None:
    """Draw speed-up against devices, with the ideal line, as PNG.

    Parameters
    ----------
    results : list of dict
        From `benchmark.scaling`: `network`, `mode`, `num_devices`, `speed_up` and `speed_up_range` of each.
    path : path-like
        The file to write.
    title : str
        The machine.
    """
    from matplotlib.figure import Figure
    fig = Figure(figsize=(7.2, 5.4), dpi=120, layout='tight')
    axes = fig.subplots()
    most = max(r['num_devices'] for r in results)
    axes.plot([1, most], [1, most], '--', color='0.5', label='ideal')
    cases = list(dict.fromkeys((r['network'], r['mode']) for r in results))
    for i, case in enumerate(cases):
        points = [r for r in results if (r['network'], r['mode']) == case]
        # Side by side: with two devices all points would lie on one another
        x = [r['num_devices'] + 0.012 * min(most, 4) * (i - (len(cases) - 1) / 2) for r in points]
        y = [r['speed_up'] for r in points]
        spread = [[r['speed_up'] - r['speed_up_range'][0] for r in points],
                  [r['speed_up_range'][1] - r['speed_up'] for r in points]]
        axes.errorbar(x, y, yerr=spread, fmt='os^D'[i] + '-', capsize=3,
                      label=f'{TITLES[case[0]]}, {case[1]}: {y[-1]:.2f} on {points[-1]["num_devices"]}')
    axes.set(xlabel='devices', ylabel='speed-up (images/s, divided by that of one device)',
             xticks=sorted({r['num_devices'] for r in results}))
    axes.set_title(title, fontsize='medium', wrap=True)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.4)
    axes.legend(loc='lower right')
    fig.savefig(path)
