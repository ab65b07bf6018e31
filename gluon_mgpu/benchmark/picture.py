"""Plots of measured and expected scaling. Imports matplotlib on first use."""
from __future__ import annotations

from ..base.pictures import write_picture
from ..plot import figure
from .expected import Expected
from .report import TITLES

MARKS = {'devices': 'o', 'Python': 's', 'link': '^'}


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


def expected_curves(expected: list[Expected], path, title: str) -> None:
    """Plot expected images/s over devices as PNG: one line per batch size, marked by the part that sets the pace."""
    fig, (axes,) = figure((7.2, 5.4))
    axes.set_title(title, fontsize='medium', wrap=True)
    counts = sorted({e.devices for e in expected})
    one = max(e.images_per_second for e in expected if e.devices == counts[0])
    axes.plot(counts, [one * k / counts[0] for k in counts], '--', color='0.5', label='ideal')
    for i, rows in enumerate(sorted({e.rows for e in expected})):
        points = [e for e in expected if e.rows == rows]
        axes.plot([e.devices for e in points], [e.images_per_second for e in points], color=f'C{i}',
                  label=f'batch of {rows:,}')
        for e in points:
            axes.plot(e.devices, e.images_per_second, MARKS[e.pace], color=f'C{i}', markersize=8)
    for pace, mark in MARKS.items():
        axes.plot([], [], mark, color='0.3', label=f'pace set by {pace}')
    axes.set_xscale('log', base=2)
    axes.set_yscale('log')
    axes.set(xlabel='devices', ylabel='images/s', xticks=counts, xticklabels=[str(k) for k in counts])
    axes.legend(loc='upper left', fontsize='small')
    write_picture(fig, path)
