"""Plot of measured scaling. Imports matplotlib on first use."""
from __future__ import annotations

from ..base.pictures import write_picture
from ..plot import figure
from .report import TITLES


def scaling_curves(results: list, path, title: str) -> None:
    """Plot the speed-ups from `scaling` over devices, with the ideal line, as PNG."""
    fig, (axes,) = figure((7.2, 5.4))
    axes.set_title(title, fontsize='medium', wrap=True)
    most = max(r['num_devices'] for r in results)
    axes.plot([1, most], [1, most], '--', color='0.5', label='ideal')
    cases = list(dict.fromkeys((r['network'], r['mode']) for r in results))
    for i, case in enumerate(cases):
        points = [r for r in results if (r['network'], r['mode']) == case]
        # Side by side, because points for two devices would overlap
        x = [r['num_devices'] + 0.012 * min(most, 4) * (i - (len(cases) - 1) / 2) for r in points]
        y = [r['speed_up'] for r in points]
        spread = [[r['speed_up'] - r['speed_up_range'][0] for r in points],
                  [r['speed_up_range'][1] - r['speed_up'] for r in points]]
        axes.errorbar(x, y, yerr=spread, fmt='os^D'[i] + '-', capsize=3,
                      label=f'{TITLES[case[0]]}, {case[1]}: {y[-1]:.2f} on {points[-1]["num_devices"]}')
    axes.set(xlabel='devices', ylabel='speed-up (images/s, divided by that of one device)',
             xticks=sorted({r['num_devices'] for r in results}))
    axes.set_ylim(bottom=0)
    axes.legend(loc='lower right')
    write_picture(fig, path)
