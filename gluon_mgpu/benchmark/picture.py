"""The curve of what has been measured. Matplotlib is loaded when it is drawn."""
from __future__ import annotations

from .report import TITLES


def scaling_curves(results: list, path, title: str) -> None:
    """Draw speed-up against devices, with the ideal line, as PNG.

    Parameters
    ----------
    results : list of dict
        From `scaling`: `network`, `mode`, `num_devices`, `speed_up` and `speed_up_range` of each.
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
