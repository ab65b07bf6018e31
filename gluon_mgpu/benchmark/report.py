"""Table and chart of the results of `scaling`. Imports matplotlib on first use."""
from __future__ import annotations

from ..base.machine import num_cores, processor
from ..base.pictures import in_lines, write_picture
from ..devices.nvidia_driver import ask_driver
from ..mxnet_setup.compat import mx
from ..plot import figure
from .scaling import NETWORKS


def machine_line(devices: list) -> str:
    """Return one line with the devices, the processor and MXNet's version."""
    numbers = [device.device_id for device in devices if device.device_type == 'gpu']
    names = [gpu.name for gpu in ask_driver().gpus if gpu.index in numbers]
    names += ['CPU context'] * (len(devices) - len(numbers))
    facts = [f'{names.count(name)} x {name}' for name in dict.fromkeys(names)]
    return ', '.join([*facts, f'{num_cores()} cores of {processor()}', f'MXNet {mx.__version__}'])


def table(results: list) -> str:
    """Return the results as aligned text."""
    row = '{:10} {:16} {:>7} {:>6} {:>9} {:21} {:>8} {:15} {:>10} {:>11}'.format
    lines = [row('network', 'mode', 'devices', 'batch', 'images/s', '', 'speed-up', '', 'efficiency', 'ms per step')]
    for r in results:
        least, most = r['images_per_second_range']
        low, high = r['speed_up_range']
        lines.append(row(NETWORKS[r['network']].title, r['mode'], r['num_devices'], r['rows'],
                         f'{r["images_per_second"]:,.0f}', f'({least:,.0f} to {most:,.0f})', f'{r["speed_up"]:.2f}',
                         f'({low:.2f} to {high:.2f})', f'{r["efficiency"]:.0%}', f'{r["ms_per_step"]:.1f}'))
    return '\n'.join(lines)


def chart(results: list, path, title: str) -> None:
    """Draw the speed-ups over devices, with the ideal line, as PNG."""
    fig, (axes,) = figure((7.2, 5.4))
    axes.set_title(in_lines(title), fontsize='medium')
    most = max(r['num_devices'] for r in results)
    axes.plot([1, most], [1, most], '--', color='0.5', label='ideal')
    cases = list(dict.fromkeys((r['network'], r['mode']) for r in results))
    for i, (network, mode) in enumerate(cases):
        points = [r for r in results if (r['network'], r['mode']) == (network, mode)]
        # Side by side, because points for two devices would overlap
        x = [r['num_devices'] + 0.012 * min(most, 4) * (i - (len(cases) - 1) / 2) for r in points]
        y = [r['speed_up'] for r in points]
        spread = [[r['speed_up'] - r['speed_up_range'][0] for r in points],
                  [r['speed_up_range'][1] - r['speed_up'] for r in points]]
        axes.errorbar(x, y, yerr=spread, fmt='os^D'[i] + '-', capsize=3,
                      label=f'{NETWORKS[network].title}, {mode}: {y[-1]:.2f} on {points[-1]["num_devices"]}')
    axes.set(xlabel='devices', ylabel='speed-up (images/s, divided by that of one device)',
             xticks=sorted({r['num_devices'] for r in results}))
    axes.set_ylim(bottom=0)
    axes.legend(loc='lower right')
    write_picture(fig, path)
